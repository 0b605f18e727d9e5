"""The copies of tables that a log begins with: rows of a moment, from which on its changes count.

    <log>/copies/00000000000000000001.segment     names the pieces of one table's copy
    <log>/copies/<copy>-<part>-<id>.changes       a piece: the rows of one range, as texts
    <log>/copies/<copy>-<part>.receipt            says which piece is the range's, until the copy is whole

A piece counts once its receipt has its name, the rows of a table once a segment names all its pieces: a reader sees
a copy whole or not at all. They have a chain of their own, so that whoever copies never waits for whoever captures.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from penstock.backends.base import Load, LoadResult, Receipt, Sink
from penstock.backends.changelog.chain import PIECE, Chain, mapped
from penstock.backends.changelog.segment import damaged
from penstock.backends.changes import TRANSACTIONS, VALUE, Position, Segment, TableVersion
from penstock.backends.staging import sync
from penstock.errors import Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName

FOLDER = "copies"
RECEIPT = ".receipt"
_PART = re.compile(r"(?P<copy>[0-9a-f]+)-(?P<part>\d{8})(-[0-9a-f]{32}\.changes|\.receipt)")


@dataclass(frozen=True, slots=True)
class PieceReceipt:
    """One range of a copy that is durable."""

    part: int
    file: str
    rows: int
    bytes: int
    crc: int
    commit: int  # the moment that its rows are of
    at: str

    def to_record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole copy of a table, as a reader finds it."""

    number: int
    copy: str
    version: TableVersion
    position: Position  # changes behind it count
    exact: int  # the last moment that one of its rows is of: before it, the rows are of no one moment
    pieces: tuple[PieceReceipt, ...]

    @property
    def table(self) -> TableName:
        return self.version.table


@dataclass(frozen=True, slots=True)
class PieceSink(Sink):
    """Writes one range. The piece first, then its receipt: what has none does not count."""

    folder: Path
    copy: str
    columns: tuple[str, ...]  # of the version, in its order
    commit: int
    at: datetime

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = f"{self.copy}-{part:08d}-{uuid.uuid4().hex}{PIECE}"
        failpoint("sink.open")
        rows, size, crc = self._put(self.folder / file, batches)
        failpoint("sink.staged")
        # If we die here, nobody names the piece, and it is swept.
        made = PieceReceipt(part, file, rows, size, crc, self.commit, self.at.isoformat())
        found = self._claim(part, made)
        failpoint("sink.receipt")
        return Receipt(0, part, found.rows, found.bytes, found.file, os.getpid())

    def _put(self, path: Path, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int]:
        schema = pa.schema([pa.field(f"n{number}", VALUE) for number in range(len(self.columns))])
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        rows = 0
        with path.open("wb") as file:
            with pa.ipc.new_stream(file, schema, options=options) as writer:
                for batch in batches:
                    arrays = [batch.column(name).cast(VALUE) for name in self.columns]
                    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        written = mapped(path)
        return rows, written.size, zlib.crc32(written)

    def _claim(self, part: int, made: PieceReceipt) -> PieceReceipt:
        """The first attempt at a range wins."""
        path = receipt_path(self.folder, self.copy, part)
        temporary = self.folder / f".{uuid.uuid4().hex}"
        with temporary.open("w") as file:
            json.dump(made.to_record(), file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            (self.folder / made.file).unlink()
            return PieceReceipt(**json.loads(path.read_text()))
        finally:
            temporary.unlink()
            sync(self.folder)
        return made


def receipt_path(folder: Path, copy: str, part: int) -> Path:
    return folder / f"{copy}-{part:08d}{RECEIPT}"


class Snapshots:
    """The copies of one log. Several may read; of two that write, one is fenced."""

    def __init__(self, log: Path) -> None:
        self.folder = log / FOLDER
        self._turn = threading.Lock()  # copies and flushes ask at once, each in a thread of its own
        self._chain = Chain(self.folder)
        self._known: list[Snapshot] = []

    def all(self) -> list[Snapshot]:
        """In the order in which they became whole."""
        with self._turn:
            following = self._known[-1].number + 1 if self._known else next(iter(self._chain.numbers()), 1)
            while self._chain.path(following).exists():
                self._known.append(_snapshot(self._chain.footer(following), following))
                following += 1
            return list(self._known)

    def newest(self) -> dict[TableName, Snapshot]:
        return {one.table: one for one in self.all()}

    def has(self, copy: str) -> bool:
        return any(one.copy == copy for one in self.all())

    def receipts(self, copy: str) -> list[PieceReceipt]:
        """Of the ranges of a copy that are durable."""
        found = []
        for entry in self._entries():
            match = _PART.fullmatch(entry)
            if match and match["copy"] == copy and entry.endswith(RECEIPT):
                found.append(PieceReceipt(**json.loads((self.folder / entry).read_text())))
        return sorted(found, key=lambda one: one.part)

    def add(self, copy: str, version: TableVersion, position: Position, exact: int) -> None:
        """Make a copy whole: from here on readers see it."""
        pieces = self.receipts(copy)
        notes = {
            "copy": copy,
            "version": version.to_record(),
            "exact": exact,
            "pieces": [one.to_record() for one in pieces],
        }
        known = self.all()
        number = known[-1].number + 1 if known else 1
        until = Position(position.origin, max(position.commit, exact - 1), max(position.end, exact))
        self._chain.append(Segment(position, until, TRANSACTIONS.empty_table(), notes=notes), number)
        # If we die here, the copy is whole, and the receipts are removed when it is looked for again.
        self.forget(copy)

    def forget(self, copy: str) -> None:
        """Remove what a copy has left, unless a segment names it."""
        self._remove(lambda found: found == copy)

    def sweep(self, live: Sequence[str]) -> None:
        """Remove what is left of copies that nobody goes on with, and what dead writers have left half written."""
        self._remove(lambda found: found not in live)
        for entry in self._entries():
            if entry.startswith("."):
                with suppress(FileNotFoundError):
                    (self.folder / entry).unlink()

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        named = {piece.file for one in self.all() for piece in one.pieces}
        for entry in self._entries():
            match = _PART.fullmatch(entry)
            if match and entry not in named and chosen(match["copy"]):
                with suppress(FileNotFoundError):
                    (self.folder / entry).unlink()

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []


def _snapshot(footer: dict[str, Any], number: int) -> Snapshot:
    notes = footer["notes"]
    return Snapshot(
        number,
        notes["copy"],
        TableVersion.from_record(notes["version"]),
        Position.from_record(footer["after"]),
        notes["exact"],
        tuple(PieceReceipt(**one) for one in notes["pieces"]),
    )


def read_piece(path: Path, crc: int) -> Iterator[pa.RecordBatch]:
    """The batches of a piece, once all of it is known to be what was written."""
    body = mapped(path)
    if zlib.crc32(body) != crc:
        raise damaged(path.name, "it is not what was written")
    yield from pa.ipc.open_stream(body)


class SnapshotLoad(Load):
    """One table's copy on its way into a log."""

    def __init__(self, snapshots: Snapshots, copy: str) -> None:
        self._snapshots = snapshots
        self._copy = copy
        self.done = snapshots.has(copy)

    def sink(self, table: int) -> Sink:
        del table
        raise Unsupported("every range has a sink of its own, of the moment that it is read at")

    def staged(self) -> list[Receipt]:
        return [Receipt(0, one.part, one.rows, one.bytes, one.file) for one in self._snapshots.receipts(self._copy)]

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        del receipts
        raise Unsupported("a copy becomes whole by the segment that names it")

    def abort(self) -> None:
        self._snapshots.forget(self._copy)

    def close(self) -> None:
        """It holds nothing."""
