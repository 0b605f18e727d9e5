"""Reading files: a table as a source, its windows, and what a task reads of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from penstock.backends.base import Cursor, Partition, ReadRequest, RunContext, Shared, Source, Split, Window
from penstock.backends.files import types
from penstock.backends.files.config import FilesConfig
from penstock.backends.files.listing import Listing
from penstock.backends.files.pieces import KEYS_SHOWN, Piece, key_of
from penstock.backends.files.place import locate
from penstock.backends.files.shares import share
from penstock.backends.files.window import inside, null_count, upper_bound
from penstock.backends.sql import no_column, without_cursor
from penstock.errors import SourceError
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Schema

# What compression saves is not known before a file is read; it is seldom more than this.
UNPACKED = 10
VALUE_BYTES = 16  # at least, of each value: a column of equal ones is next to nothing in a file


@dataclass(frozen=True, slots=True)
class FilesPartition(Partition):
    """Pieces that one task reads, one after the other."""

    pieces: tuple[Piece, ...]
    columns: tuple[Column, ...]
    run: RunContext
    keys: tuple[str, ...] = ()
    window: Window | None = None
    cursor: Column | None = None
    limit: int | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        left, first = self.limit, True
        for batch in _sized(self._selected(), self.run):
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
            if first:
                first = False
                failpoint("read.batch")
            if left == 0:
                return

    def _selected(self) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.columns]
        for piece in self.pieces:
            if self.window is None or self.cursor is None:
                yield from piece.read(self.columns, self.keys, self.run)
                continue
            asked = [*self.columns, self.cursor] if self.cursor.name not in names else list(self.columns)
            typed = [self.cursor if column.name == self.cursor.name else column for column in asked]
            for batch in piece.read(typed, self.keys, self.run):
                kept = batch.filter(inside(self.window, batch.column(self.cursor.name)))
                yield _as_asked(kept, self.columns)


def _as_asked(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    arrays = [types.convert(batch.column(column.name), column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))


def _sized(batches: Iterator[pa.RecordBatch], run: RunContext) -> Iterator[pa.RecordBatch]:
    """Batches joined up to the run's batch size, and cut where they are larger."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _cut(batch, run):
            if kept and (rows + piece.num_rows > run.batch_rows or size + piece.nbytes > run.batch_bytes):
                yield pa.concat_batches(kept)
                kept, rows, size = [], 0, 0
            kept.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if kept:
        yield pa.concat_batches(kept)


def _cut(batch: pa.RecordBatch, run: RunContext) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or (batch.num_rows <= run.batch_rows and batch.nbytes <= run.batch_bytes):
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half), run)
    yield from _cut(batch.slice(half), run)


# ---------------------------------------------------------------- the source


class FilesSource(Source):
    """A table of files, as it is when the source is opened."""

    def __init__(self, config: FilesConfig, request: ReadRequest, run: RunContext) -> None:
        if request.table is None:
            raise SourceError("files are read by table, not by query", remedy="name a `table`")
        self._request = request
        self._run = run
        self._now = datetime.now(UTC)
        self._without_cursor: tuple[str, ...] = ()
        self.place = locate(config, request.table, exists=True)
        self.listing = Listing.of(config, self.place, run)

    @property
    def formats(self) -> frozenset[str]:
        """Of the files that there are."""
        return frozenset(entry.dialect.format for entry in self.listing.entries)

    def schema(self) -> Schema:
        return Schema.of(self.listing.columns)

    def primary_key(self) -> tuple[str, ...]:
        return ()

    def rows(self) -> int | None:
        counted = [entry.rows for entry in self.listing.entries]
        return sum(rows for rows in counted if rows is not None) if None not in counted else None

    def size(self) -> int:
        values = (self.rows() or 0) * len(self.listing.columns)
        return max(UNPACKED * sum(entry.mark.size for entry in self.listing.entries), VALUE_BYTES * values)

    def notes(self) -> tuple[str, ...]:
        return (*self.listing.notes, *self._without_cursor)

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.file(self.place.root),)

    # ------------------------------------------------------------ windows

    def upper(self, cursor: Cursor) -> str:
        return upper_bound(cursor, self._column(cursor.column), self._values(cursor.column), self._now)

    def _values(self, name: str) -> Iterator[pa.Array]:
        column = self._column(name)
        for entry in self.listing.entries:
            for batch in Piece(entry).read([column], (), self._run):
                yield batch.column(0)

    def _column(self, name: str) -> Column:
        for column in self.listing.columns:
            if column.name == name:
                return column
        raise no_column(name, [column.name for column in self.listing.columns])

    def _check_nulls(self, window: Window) -> None:
        count = null_count(self._values(window.column))
        self._without_cursor = without_cursor(window, count, self.place.shown, lambda: self._null_keys(window.column))

    def _null_keys(self, name: str) -> tuple[str, ...]:
        keys = [self._column(key) for key in self._request.keys if any(c.name == key for c in self.listing.columns)]
        if not keys:
            return ()
        found: list[str] = []
        for entry in self.listing.entries:
            for batch in Piece(entry).read([*keys, self._column(name)], (), self._run):
                for place in pa.compute.indices_nonzero(batch.column(name).is_null()).to_pylist():
                    if len(found) < KEYS_SHOWN:
                        found.append(key_of(batch, [key.name for key in keys], place, tokens=False))
        return tuple(found)

    # ------------------------------------------------------------ how it is split

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        cursor = None
        if window is not None:
            self._check_nulls(window)
            cursor = self._column(window.column)
        parts, reason = share(self.listing.entries, 1 if self._request.limit is not None else max(want, 1))
        if self._request.partition_on is not None:
            reason += "; partition_on is for queries, files are split as they lie"
        made = [
            FilesPartition(pieces, tuple(columns), self._run, self._request.keys, window, cursor, self._request.limit)
            for pieces in parts
        ]
        return Split(tuple(made), reason)
