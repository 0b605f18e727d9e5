"""A file of a table, and the parts of it that tasks read: rows in the columns that are asked for.

Every file is the same at the end of its reading as it was when it was listed, or the run stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import RunContext
from penstock.backends.files import csv, jsonl, parquet, types
from penstock.backends.files.config import Dialect
from penstock.backends.files.jsontext import unquoted
from penstock.backends.files.place import Mark
from penstock.backends.files.texts import Unreadable, text_of, value_of, value_of_token
from penstock.errors import DataError, SourceError, SourceMoved
from penstock.observe.failpoints import failpoint
from penstock.schema import Column

KEYS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a table."""

    path: Path
    staged: Path | None  # where it is while its run has not moved it
    mark: Mark
    dialect: Dialect
    columns: tuple[Column, ...]  # that the file itself holds, in its order
    folders: tuple[tuple[str, str | None], ...] = ()
    rows: int | None = None
    own: bool = False
    lines: bool | None = None  # of CSV: whether it may be cut at any line; None: not known


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that one task reads."""

    entry: Entry
    groups: tuple[int, ...] | None = None  # of Parquet
    part: tuple[int, int] | None = None  # bytes of lines

    def read(self, columns: Sequence[Column], keys: Sequence[str], run: RunContext) -> Iterator[pa.RecordBatch]:
        """Batches of exactly these columns."""
        path = self.path()
        yield from _raw(self, path, columns, keys, run)
        self._same(path, "while it was read")

    def path(self) -> Path:
        """Where the file is: its run may move it at any moment, and another may lie at its place until then."""
        for path in (self.entry.path, self.entry.staged, self.entry.path):
            if path is not None and self._is_at(path):
                return path
        raise self._moved("since the run began")

    def _is_at(self, path: Path) -> bool:
        try:
            return Mark.of(path) == self.entry.mark
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _same(self, path: Path, when: str) -> None:
        # Moved to its place meanwhile, it is the same file.
        if not self._is_at(path) and not self._is_at(self.entry.path):
            raise self._moved(when)

    def _moved(self, when: str) -> SourceMoved:
        return SourceMoved(
            f"{self.entry.path} was replaced, written to or removed {when}",
            why="what was read of it is no one moment of it",
            remedy="run it again when nobody writes there; let writers use another name and rename when done",
        )


def _raw(
    piece: Piece, path: Path, columns: Sequence[Column], keys: Sequence[str], run: RunContext
) -> Iterator[pa.RecordBatch]:
    entry = piece.entry
    held = {column.name: column for column in entry.columns}
    names = [column.name for column in columns if column.name in held]
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    seen = 0
    for batch, tokens in _batches(piece, path, names, run):
        arrays = []
        for column in columns:
            if column.name in held:
                array = batch.column(column.name)
                arrays.append(_value(array, held[column.name], column, piece, (batch, keys, seen), tokens=tokens))
            else:
                arrays.append(_constant(entry, column, batch.num_rows))
        seen += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(piece: Piece, path: Path, names: Sequence[str], run: RunContext) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Batches as the file's format gives them, and whether the texts are JSON."""
    entry = piece.entry
    failpoint("read.open")
    if entry.dialect.format == "parquet":
        for batch in parquet.read(path, names, piece.groups, run):
            yield batch, False
    elif entry.dialect.format == "csv":
        own = [column.name for column in entry.columns]
        for batch in csv.read(path, entry.dialect, own, names, piece.part, run):
            yield batch, False
    elif entry.dialect.format == "jsonl":
        known = [column.name for column in entry.columns]
        for _, batch in jsonl.read(path, entry.dialect, names, known, piece.part):
            yield batch, True
    else:
        raise SourceError(
            f"the rows of {path} are counted and read by Spark alone",
            why="it is ORC of others",
            remedy="move it away, or load into another table",
        )


def _value(
    array: pa.Array,
    held: Column,
    wanted: Column,
    piece: Piece,
    place: tuple[pa.RecordBatch, Sequence[str], int],
    *,
    tokens: bool,
) -> pa.Array:
    entry = piece.entry
    try:
        if entry.dialect.format == "parquet":
            return types.convert(array, wanted.type, own=entry.own)
        if pa.types.is_string(wanted.type):
            return unquoted(array) if tokens else array
        value = (value_of_token if tokens else value_of)(array, held.type, own=entry.own)
        return types.convert(value, wanted.type)
    except (Unreadable, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        batch, keys, seen = place
        places = error.places if isinstance(error, Unreadable) else []
        whole = piece.part is None and piece.groups is None
        where = f", row {seen + places[0] + 1}" if places and whole else ""
        shown = [key for key in keys if key in batch.schema.names]
        raise DataError(
            f"column {wanted.name} of {entry.path}{where} holds a value that is no {wanted.describe()}",
            why="its type is declared, or that of the table's other files",
            remedy="correct the value, or declare another type for the column",
            keys=tuple(key_of(batch, shown, found, tokens=tokens) for found in places[:KEYS_SHOWN]) if shown else (),
        ) from error


def key_of(batch: pa.RecordBatch, keys: Sequence[str], place: int, *, tokens: bool) -> str:
    cells = ((key, batch.column(key).slice(place, 1)) for key in keys)
    texts = ((key, text_of(unquoted(cell) if tokens else cell)[0].as_py()) for key, cell in cells)
    return ", ".join(f"{key}={text}" for key, text in texts)


def _constant(entry: Entry, column: Column, rows: int) -> pa.Array:
    """A column that the file's folders give, or that it does not have."""
    text = dict(entry.folders).get(column.name)
    if text is None:
        return pa.nulls(rows, column.type)
    try:
        value = value_of(pa.array([text]), column.type)
    except Unreadable as error:
        raise DataError(
            f"the folder of {entry.path} holds a value of {column.name} that is no {column.describe()}",
            remedy="rename the folder, or declare another type for the column",
        ) from error
    return pa.concat_arrays([value]).take(pa.array([0] * rows, pa.int32())) if rows else value.slice(0, 0)
