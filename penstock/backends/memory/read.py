"""Reading a table of a memory store: its rows as they were when the source was opened, in ranges.

The tasks get files, see `exchange`; only the columns and rows that they read are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import as_text, has_text
from penstock.backends.arrowtypes import KEYS_SHOWN, key_text
from penstock.backends.base import Cursor, ReadRequest, RunContext, Shared, Source, Split, Window
from penstock.backends.exchange import Exchange
from penstock.backends.memory.store import Snapshot, StoredTable
from penstock.backends.memory.window import inside, upper_bound
from penstock.backends.sql import no_column, without_cursor
from penstock.backends.staging import StagingArea
from penstock.errors import PlanRefused, SourceError
from penstock.schema import Column, Schema, TableName

# Below this, starting a task costs more than it saves.
MIN_ROWS = 100_000


class MemorySource(Source):
    """A table of a store at one moment."""

    def __init__(self, snapshot: Snapshot, request: ReadRequest, run: RunContext) -> None:
        if request.table is None:
            raise SourceError("a memory store runs no query", remedy="name a table")
        self._request = request
        self._run = run
        self.snapshot = snapshot
        self._table = _find(snapshot, request.table)
        self._now = datetime.now(UTC)
        self._exchange = Exchange(run)
        self._without_cursor: tuple[str, ...] = ()

    def schema(self) -> Schema:
        return Schema.of(self._table.columns)

    def primary_key(self) -> tuple[str, ...]:
        return ()

    def rows(self) -> int:
        return int(self._table.data.num_rows)

    def size(self) -> int:
        return int(self._table.data.nbytes)

    def upper(self, cursor: Cursor) -> str:
        return upper_bound(self._column(cursor.column), cursor, self._now)

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in self._table.data.column_names:
            raise no_column(name, self._table.data.column_names)
        return self._table.data.column(name)

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        for column in columns:
            _check_form(column, self._column(column.name).type)
        if self._request.partition_on is not None:
            self._column(self._request.partition_on)  # not needed, but no name of nothing is passed over
        if window is not None:
            self._check_nulls(window)
        rows = self._table.data.num_rows
        if self._request.limit is not None:
            rows = min(rows, self._request.limit)
        pieces = max(1, min(want, rows // MIN_ROWS)) if self._request.limit is None else 1
        edges = [rows * number // pieces for number in range(pieces + 1)]
        parts = [
            self._exchange.partition(columns, partial(self._batches, tuple(columns), start, end - start, window))
            for start, end in pairwise(edges)
        ]
        reason = f"one partition: {rows:,} rows" if pieces == 1 else f"{pieces} ranges of {rows:,} rows"
        return Split(tuple(parts), reason)

    def _batches(
        self, columns: tuple[Column, ...], start: int, length: int, window: Window | None
    ) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys([*(column.name for column in columns), *([window.column] if window else [])]))
        asked = self._table.data.select(names).slice(start, length)
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        for piece in asked.to_batches(max_chunksize=self._batch_rows(asked)):
            kept = piece if window is None else piece.filter(inside(piece.column(window.column), window))
            arrays = [_in_form(kept.column(column.name), column) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _batch_rows(self, asked: pa.Table) -> int:
        width = asked.nbytes // max(asked.num_rows, 1) + 1
        return int(max(1, min(self._run.batch_rows, self._run.batch_bytes // width)))

    def _check_nulls(self, window: Window) -> None:
        column = self._column(window.column)

        def keys() -> tuple[str, ...]:
            known = [key for key in self._request.keys if key in self._table.data.column_names]
            if not known:
                return ()
            shown = self._table.data.select(known).filter(pc.is_null(column)).slice(0, KEYS_SHOWN)
            return tuple(key_text(shown, known, row) for row in range(shown.num_rows))

        self._without_cursor = without_cursor(window, column.null_count, str(self._request.table), keys)

    def notes(self) -> tuple[str, ...]:
        return self._without_cursor

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.project(StagingArea.base_of(self._run)),)

    def hand_out(self) -> None:
        self._exchange.write()

    def close(self) -> None:
        self._exchange.close()


def _find(store: Snapshot, name: TableName) -> StoredTable:
    found = store.tables.get(name)
    if found is None:
        known = ", ".join(sorted(str(one) for one in store.tables))
        raise SourceError(
            f"there is no table {name} in the memory store {store.name!r}",
            why=f"in this process it has {known}" if known else "it is empty in this process",
            remedy=f"put it in, in the same process: ps.memory({store.name!r})[{str(name)!r}] = table",
        )
    return found


def _check_form(column: Column, held: pa.DataType) -> None:
    if column.type != held and not has_text(held):
        raise PlanRefused(
            f"column {column.name!r} cannot be read as text", why=f"{held} has no text form here", remedy="leave it out"
        )


def _in_form(array: pa.Array, column: Column) -> pa.Array:
    return array if array.type == column.type else as_text(array, column.name)
