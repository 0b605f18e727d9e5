"""What a class declares of its columns, held in the tasks: for targets that have no SQL to check it by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtypes import KEYS_SHOWN, key_text
from penstock.backends.base import Receipt, Sink, Target, WritesFrames
from penstock.errors import NOT_COMMITTED, DataError
from penstock.schema.columns import ENUM
from penstock.schema.declared import DeclaredTable
from penstock.schema.words import parse


@dataclass(frozen=True)
class HeldSink(Sink):
    """Another sink, to which no batch goes that the class does not allow. Whole columns are looked at, in C."""

    sink: Sink
    table: DeclaredTable

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return self.sink.write(part, self._held(batches))

    def _held(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        labels = {one.name: _labels(one.word) for one in self.table.columns}
        for batch in batches:
            for one in self.table.columns:
                if one.name not in batch.schema.names:
                    continue
                array = batch.column(one.name)
                if not one.nullable and array.null_count:
                    self._refuse(batch, pc.is_null(array), f"column {one.name} takes no NULL")
                if labels[one.name] is not None:
                    known = pc.or_(pc.is_null(array), pc.is_in(array, labels[one.name]))
                    if not pc.all(known).as_py():
                        self._refuse(batch, pc.invert(known), f"column {one.name} has a text that is no label")
            yield batch

    def _refuse(self, batch: pa.RecordBatch, wrong: pa.Array, what: str) -> None:
        keys = [key for key in self.table.keys if key in batch.schema.names]
        shown = batch.select(keys).filter(wrong).slice(0, KEYS_SHOWN) if keys else None
        raise DataError(
            what,
            why=f"{self.table.title} declares it so",
            kept=NOT_COMMITTED,
            remedy="change the value at the source, or the class",
            keys=tuple(key_text(shown, keys, row) for row in range(shown.num_rows)) if shown is not None else (),
        )


def held(sink: Sink, target: Target, table: DeclaredTable | None) -> Sink:
    """The sink, guarded where the target's own statements do not check what the class says."""
    return sink if table is None or target.dialect is not None else HeldSink(sink, table)


def unheld(target: Target, table: DeclaredTable | None) -> list[str]:
    """What nobody would check: a writer of Spark's takes a frame as it is."""
    if table is None or not isinstance(target, WritesFrames):
        return []
    strict = [one.name for one in table.columns if not one.nullable or _labels(one.word) is not None]
    return [f"{target.writer} does not check {', '.join(strict)} of {table.title}: declare `| None`"] if strict else []


def _labels(word: str) -> pa.Array | None:
    logical = parse(word).logical
    return pa.array(logical.labels) if logical is not None and logical.kind == ENUM else None
