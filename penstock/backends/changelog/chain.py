"""Segments in a folder, each after the one before: what is in the chain is on the disk, whole, for good.

    <folder>/00000000000000000001.segment …

A segment is written under another name, flushed to the disk, and linked to its number only if that is free:
a power cut leaves a whole segment or none, and two captures can never both write number n. Whoever finds a
number taken by another has been replaced, and stops.
"""

from __future__ import annotations

import os
import re
import uuid
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.change_source import Scratch
from penstock.backends.changelog.segment import Link, decode, decode_rows, encode, encode_rows, footer_of
from penstock.backends.changes import TX, Position, Segment, StoredChanges, TableChanges
from penstock.backends.staging import make_folders, sync
from penstock.errors import PenstockError, StateError
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName

SUFFIX = ".segment"
PIECE = ".changes"  # of a transaction that is too large for a segment
_NAME = re.compile(r"(\d{20})\.segment")


class Fenced(StateError):
    """Another writer goes on with this log."""


class Chain(Scratch):
    """One log. Several may read, one writes: `writer` is its id, made anew with every start."""

    def __init__(self, folder: Path, writer: str = "") -> None:
        self.folder = folder
        self.writer = writer or uuid.uuid4().hex
        self._made = False  # whether the folder is known to be on the disk

    # ------------------------------------------------------------ reading

    def numbers(self) -> list[int]:
        """The numbers that are there, which must follow each other without a gap."""
        found = sorted(int(match[1]) for entry in self._entries() if (match := _NAME.fullmatch(entry)))
        for before, after in pairwise(found):
            if after != before + 1:
                raise StateError(
                    f"the log {self.folder} has a gap",
                    why=f"segment {before} is there, {before + 1} is not, {after} is",
                    kept="everything before the gap was applied",
                    remedy="restore the missing files, or resync: `penstock replications resync NAME`",
                )
        return found

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def path(self, number: int) -> Path:
        return self.folder / f"{number:020d}{SUFFIX}"

    def read(self, number: int, only: frozenset[TableName] | None = None) -> Segment:
        """With `only`, without the rows of other tables."""
        path = self.path(number)
        segment, link = decode(mapped(path), path.name, only)
        if link.number != number:
            raise StateError(f"the segment {path.name} says that it is number {link.number}", remedy="restore the file")
        return segment

    def footer(self, number: int) -> dict[str, Any]:
        """What a segment says of itself, without its rows."""
        return footer_of(mapped(self.path(number)), self.path(number).name)

    def end(self) -> tuple[int, Position] | None:
        """The last segment's number and where it ends."""
        numbers = self.numbers()
        if not numbers:
            return None
        return numbers[-1], Position.from_record(self.footer(numbers[-1])["until"])

    def bytes(self) -> int:
        """What the log takes on the disk."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(entry.stat().st_size for entry in entries if entry.name.endswith((SUFFIX, PIECE)))
        except FileNotFoundError:
            return 0

    def after(self, number: int) -> Iterator[tuple[int, Segment]]:
        """The segments behind `number`, as far as they are there now."""
        following = number + 1
        while self.path(following).exists():
            yield following, self.read(following)
            following += 1

    # ------------------------------------------------------------ writing

    def append(self, segment: Segment, number: int) -> int:
        """Make the segment durable as `number`. Returns its size. On return it may be confirmed, not before."""
        self._make()
        path = self.path(number)
        temporary = self.folder / f".{number:020d}.{self.writer}"
        size = 0
        # If we die before the link, the temporary file is swept by the next writer; the log ends before it.
        with temporary.open("wb") as file:
            for part in encode(segment, Link(number, self.writer)):
                size += file.write(part)
            file.flush()
            failpoint("segment.written")
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            self._stop_if_fenced(path, number)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        failpoint("segment.linked")
        # The name itself is on the disk only after this: without it a power cut takes back what was confirmed.
        sync(self.folder)
        failpoint("segment.durable")
        return size

    def _make(self) -> None:
        """The folder, and on the disk every name that leads to it: else a power cut takes all that was confirmed."""
        if self._made and self.folder.exists():
            return
        make_folders(self.folder)
        self._made = True

    def _stop_if_fenced(self, path: Path, number: int) -> None:
        """A number that is taken: by our own try before, whose answer was lost, or by another writer."""
        found = footer_of(mapped(path), path.name)["writer"]
        if found != self.writer:
            raise Fenced(
                f"another agent writes to {self.folder}",
                why=f"segment {number} is its own",
                kept="nothing of ours was confirmed",
                remedy="stop one of the two agents",
            )

    def sweep(self) -> None:
        """Remove what dead writers have left half written, and pieces of transactions that no segment names."""
        named = {one["file"] for number in self.numbers() for one in self.footer(number)["stored"]}
        for entry in self._entries():
            half = re.fullmatch(r"\.\d{20}\.[0-9a-f]{32}", entry) and not entry.endswith(self.writer)
            if half or (entry.endswith(PIECE) and entry not in named):
                with suppress(FileNotFoundError):
                    (self.folder / entry).unlink()

    # ------------------------------------------------------------ pieces of large transactions

    def put(self, rows: pa.Table) -> tuple[str, int]:
        self._make()
        name = f"{uuid.uuid4().hex}{PIECE}"
        body = encode_rows(rows)
        with (self.folder / name).open("wb") as file:
            file.write(body)
            file.flush()
            # The segment that names it is durable after it: its folder's entry goes to the disk with that one's.
            os.fsync(file.fileno())
        return name, zlib.crc32(body)

    def drop(self, file: str) -> None:
        with suppress(FileNotFoundError):
            (self.folder / file).unlink()

    def piece(self, stored: StoredChanges) -> TableChanges:
        """Its rows, without those of subtransactions that were rolled back."""
        rows = decode_rows(mapped(self.folder / stored.file), stored.file, stored.crc, stored.rows)
        if stored.aborted:
            rows = rows.filter(pc.invert(pc.is_in(rows["sub"], pa.array(stored.aborted, pa.int64()))))
        rows = rows.drop_columns(["sub"])
        tx = pa.repeat(pa.scalar(stored.tx, pa.int32()), rows.num_rows)
        return TableChanges(stored.version, rows.set_column(0, TX, tx))

    def remove_until(self, number: int) -> int:
        """Remove the segments up to `number`, the oldest first so that no gap appears. Returns the bytes."""
        freed = 0
        for known in self.numbers():
            if known > number:
                break
            path = self.path(known)
            pieces = [one["file"] for one in self.footer(known)["stored"]]
            freed += sum(file.stat().st_size for file in (path, *(self.folder / piece for piece in pieces)))
            # The segment first: a piece that nobody names is swept.
            path.unlink()
            for piece in pieces:
                self.drop(piece)
        return freed

    def remove(self) -> None:
        """All of the log: nobody goes on with it."""
        numbers = self.numbers()
        if numbers:
            self.remove_until(numbers[-1])
        self.sweep()
        with suppress(OSError):  # what others have put there stays, and so does the folder
            self.folder.rmdir()


def mapped(path: Path) -> pa.Buffer:
    try:
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except FileNotFoundError as error:
        raise _gone(path) from error


def _gone(path: Path) -> PenstockError:
    return StateError(
        f"the segment {path.name} is gone from {path.parent}",
        why="it was removed, or the retention is shorter than the target was away",
        kept="what was applied before it",
        remedy="resync the replication: `penstock replications resync NAME`",
    )
