"""What a task does with its part: files of the target's format in staging, one or one per folder by value.

Nothing that it writes counts by itself: the driver's manifest names the files, or nobody does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.backends.arrowtypes import cast_batch, held
from penstock.backends.base import Receipt, StagedColumn
from penstock.backends.files import csv, jsonl, parquet
from penstock.backends.files.config import Dialect
from penstock.backends.files.manifest import DataFile
from penstock.backends.files.place import Mark, folder_name
from penstock.backends.files.texts import text_of
from penstock.backends.staging import StagingSink, sync
from penstock.observe.failpoints import failpoint
from penstock.schema import Column

# A partitioned write keeps a file open per folder; beyond this they are closed and others begun.
OPEN_FOLDERS = 64

Writer = parquet.Writer | csv.Writer | jsonl.Writer


def writer(path: Path, columns: Sequence[Column], dialect: Dialect, *, headed: bool = True) -> Writer:
    """A new file of a format. `headed` says that a CSV begins with its header, if it has one."""
    if dialect.format == "parquet":
        return parquet.Writer(path, columns, dialect)
    if dialect.format == "csv":
        return csv.Writer(path, columns, dialect, headed=headed)
    return jsonl.Writer(path, columns, dialect)


@dataclass(frozen=True)
class FilesSink(StagingSink):
    """Stages one table's parts in the format of the target, one file or one per folder."""

    dialect: Dialect
    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]
    folders: tuple[str, ...]
    single: bool  # parts are put together by the driver, so that only its file has a header

    def _stage(self, part: int, stem: str, batches: Iterator[pa.RecordBatch], made: list[Path]) -> Receipt:
        parts = _Parts(self, part, int(stem[-8:], 16), made)
        try:
            failpoint("sink.open")
            for batch in batches:
                if batch.num_rows:
                    for folder, piece in self._by_folder(cast_batch(batch, self.columns, self.keys)):
                        parts.write(folder, piece)
            parts.close()
        except BaseException:  # Ctrl-C too: half a file must not look like a whole one
            parts.drop()
            raise
        files = parts.files
        size = sum(file.size for file in files)
        ref = json.dumps([file.to_record() for file in files])
        return Receipt(self.table, part, sum(file.rows for file in files), size, ref, os.getpid())

    def _by_folder(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """The rows of each combination of folder values."""
        if not self.folders:
            yield (), batch
            return
        texts = [text_of(batch.column(name)) for name in self.folders]
        coded = [text.dictionary_encode(null_encoding="encode") for text in texts]
        combined = np.zeros(batch.num_rows, np.int64)
        for array in coded:
            combined = combined * len(array.dictionary) + array.indices.to_numpy()
        order = np.argsort(combined, kind="stable")
        edges = np.flatnonzero(np.diff(combined[order])) + 1
        sorted_ = batch.take(pa.array(order))
        kept = [name for name in batch.schema.names if name not in self.folders]
        for start, end in zip([0, *edges], [*edges, batch.num_rows], strict=True):
            values = tuple(text[int(order[start])].as_py() for text in texts)
            yield values, sorted_.slice(int(start), int(end - start)).select(kept)


class _Parts:
    """The files that one attempt at a part writes."""

    def __init__(self, sink: FilesSink, part: int, number: int, made: list[Path]) -> None:
        self._sink = sink
        self._part = part
        self._number = number
        self._made = made
        self._columns = [held(staged) for staged in sink.columns if staged.column.name not in sink.folders]
        self._open: dict[tuple[str | None, ...], tuple[str, Writer, int]] = {}
        self.files: list[DataFile] = []

    def write(self, folder: tuple[str | None, ...], batch: pa.RecordBatch) -> None:
        if folder not in self._open:
            if len(self._open) >= OPEN_FOLDERS:
                self.close()
            name = self._name(folder)
            path = self._sink.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.append(path)
            opened = writer(path, self._columns, self._sink.dialect, headed=not self._sink.single)
            self._open[folder] = (name, opened, 0)
        name, opened, rows = self._open[folder]
        opened.write(batch)
        self._open[folder] = (name, opened, rows + batch.num_rows)

    def _name(self, folder: tuple[str | None, ...]) -> str:
        """Run, part and attempt: names sort by time, and no attempt meets another's."""
        attempt = (self._number + len(self._made)) % 2**32
        file = f"{self._sink.run_id}-{self._part:05d}-{attempt:08x}{self._sink.dialect.extension}"
        steps = [folder_name(name, value) for name, value in zip(self._sink.folders, folder, strict=True)]
        return "/".join([*steps, file])

    def close(self) -> None:
        for folder, (name, opened, rows) in self._open.items():
            opened.close()
            path = self._sink.folder / name
            sync(path)
            mark = Mark.of(path)
            pairs = tuple(zip(self._sink.folders, folder, strict=True))
            self.files.append(DataFile(name, rows, mark.size, mark.modified, pairs, opened.lines))
        self._open = {}

    def drop(self) -> None:
        for _, opened, _ in self._open.values():
            with suppress(OSError):
                opened.drop()
