"""Segments in a folder, each after the one before: what is in the chain is on the disk, whole, for good.

    <folder>/00000000000000001024.segment …
    <folder>/00000000000000000768.pack …       older ones, many in one file

A segment is written under another name, flushed to the disk, and linked to its number only if that is free:
a power cut leaves a whole segment or none, and two captures can never both write number n. Whoever finds a
number taken by another has been replaced, and stops. Whoever replaces another claims the log, with an empty segment
of its own at the end of it: from then on it is the one before that finds its number taken.

A pack has its name, for good, before its segments lose theirs. Where a number is in a pack, it is nowhere else: what
a writer that was replaced long ago may still link to it does not count.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.change_source import Scratch
from penstock.backends.changelog import packs
from penstock.backends.changelog.segment import ARROW, Link, Turn, decode, decode_rows, encode, encode_rows, footer_of
from penstock.backends.changes import TRANSACTIONS, TX, Position, Segment, StoredChanges, TableChanges
from penstock.backends.staging import make_folders, sync
from penstock.errors import PenstockError, StateError
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName

SUFFIX = ".segment"
PIECE = ".changes"  # of a transaction that is too large for a segment
_NAME = re.compile(r"(\d{20})\.(segment|pack)")
LOOKED_AT = 512  # segments in which a piece is looked for, from the time on at which it was written
LISTINGS = 3  # of a folder in which segments are packed and removed meanwhile
_HALF = re.compile(r"\.\d{20}\.[0-9a-f]{32}")


class Fenced(StateError):
    """Another writer goes on with this log."""


class Chain(Scratch):
    """One log. Several may read, one writes: `writer` is its id, made anew with every start.

    `turn` is its agent's: whoever has a lower one than the log knows has been replaced.
    """

    def __init__(self, folder: Path, writer: str = "", turn: Turn = (0, 0), form: str = ARROW) -> None:
        """`form` is that of the files that large transactions are put into; any is read."""
        self.folder = folder
        self._form = form
        self.writer = writer or uuid.uuid4().hex
        self.turn = turn
        self._made = False  # whether the folder is known to be on the disk
        # Where the log was last seen to begin and to end: with many segments, listing them takes seconds.
        self._first = self._last = 0
        self._held: int | None = None  # bytes: counted once, and then what was written since
        self._open: dict[str, int] = {}  # pieces of ours that no segment names yet, with their bytes
        self._packed = 0  # up to there, all that can be packed is

    # ------------------------------------------------------------ reading

    def numbers(self) -> list[int]:
        """The numbers that are there, which must follow each other without a gap."""
        return list(self._extent())

    def _extent(self) -> range:
        for _ in range(LISTINGS):
            found = self._listed()
            gaps = [(one[-1], other[0]) for one, other in pairwise(found) if other[0] > one[-1] + 1]
            before = found[0][0] - 1 if found else 0
            # A listing of a folder that changes may lack both a segment and the pack that it has gone into.
            if not gaps and not (before and self.has(before)):
                break
        if not gaps:
            return range(before + 1, found[-1][-1] + 1) if found else range(0)
        before, after = gaps[0]
        raise StateError(
            f"the log {self.folder} has a gap",
            why=f"segment {before} is there, {before + 1} is not, {after} is",
            kept="everything before the gap was applied",
            remedy="restore the missing files, or resync: `penstock replications resync NAME`",
        )

    def _listed(self) -> list[range]:
        """The numbers in each file, in their order."""
        found = []
        packed: range = range(0)
        for name in sorted(filter(_NAME.fullmatch, self._entries())):
            number = int(name[:20])
            if name.endswith(packs.SUFFIX):
                packed = packs.numbers_beside(number)
                found.append(packed)
            elif number not in packed:
                found.append(range(number, number + 1))
        return found

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def path(self, number: int) -> Path:
        """Of a segment in a file of its own."""
        return self.folder / f"{number:020d}{SUFFIX}"

    def pack_path(self, number: int) -> Path:
        """Of the pack that it is in, if it is in one."""
        return self.folder / f"{number - number % packs.SEGMENTS:020d}{packs.SUFFIX}"

    def has(self, number: int) -> bool:
        return self.path(number).exists() or self.pack_path(number).exists()

    def file(self, number: int) -> tuple[Path, int]:
        """Where a segment lies, and the last number that lies there too."""
        pack = self.pack_path(number)
        return (pack, packs.numbers_beside(number)[-1]) if pack.exists() else (self.path(number), number)

    def _body(self, number: int) -> pa.Buffer:
        """The bytes of a segment."""
        pack = self.pack_path(number)
        # The pack once more at the end: it may have gone there meanwhile.
        for path in (pack, self.path(number), pack):
            if path.exists():
                with suppress(FileNotFoundError):
                    found = _mapped(path)
                    return packs.segment_in(found, number, path.name) if path == pack else found
        raise _gone(self.path(number))

    def read(self, number: int, only: frozenset[TableName] | None = None) -> Segment:
        """With `only`, without the rows of other tables."""
        name = self.path(number).name
        segment, link = decode(self._body(number), name, only)
        if link.number != number:
            raise StateError(f"the segment {name} says that it is number {link.number}", remedy="restore the file")
        return segment

    def footer(self, number: int) -> dict[str, Any]:
        """What a segment says of itself, without its rows."""
        return footer_of(self._body(number), self.path(number).name)

    def first(self) -> int:
        """The number of the first segment; 0 if there is none."""
        last = self.last()
        number = self._first or next(iter(self._extent()), 0)
        while number < last and not self.has(number):
            number += 1  # they are removed from there on
        self._first = number if last else 0
        return self._first

    def last(self) -> int:
        """The number of the last segment; 0 if there is none."""
        number = self._last
        if not number or not self.has(number):
            there = self._extent()
            self._first, number = (there[0], there[-1]) if there else (0, 0)
        while number and self.has(number + 1):
            number += 1
        self._last = number
        return number

    def end(self) -> tuple[int, Position] | None:
        """The last segment's number and where it ends."""
        number = self.last()
        return (number, Position.from_record(self.footer(number)["until"])) if number else None

    def bytes(self) -> int:
        """What the log takes on the disk, counted; without our own pieces of transactions that are not over.

        Those must not keep a capture waiting: it would wait for the end of a transaction that it does not read.
        """
        try:
            with os.scandir(self.folder) as entries:
                found = [_size(entry) for entry in entries if _counts(entry.name) and entry.name not in self._open]
        except FileNotFoundError:
            return 0
        self._held = sum(found)
        return self._held

    def most_bytes(self) -> int:
        """No less than what it takes: what others have removed since it was counted still counts."""
        return self._held if self._held is not None else self.bytes()

    def taken(self, number: int, footer: dict[str, Any]) -> int:
        """What a segment in a file of its own takes on the disk, with its pieces."""
        return _size(self.path(number)) + self._piece_bytes(footer)

    def _piece_bytes(self, footer: dict[str, Any]) -> int:
        """One that is gone is missed when it is read."""
        return sum(_size(self.folder / one["file"]) for one in footer["stored"])

    def after(self, number: int) -> Iterator[tuple[int, Segment]]:
        """The segments behind `number`, as far as they are there now."""
        following = number + 1
        while self.has(following):
            yield following, self.read(following)
            following += 1

    # ------------------------------------------------------------ writing

    def append(self, segment: Segment, number: int) -> int:
        """Make the segment durable as `number`. Returns its size. On return it may be confirmed, not before."""
        if number == 1:
            self._make()
        path = self.path(number)
        temporary = self.folder / f".{number:020d}.{self.writer}"
        size = 0
        try:
            # If we die before the link, the temporary file is swept by the next writer; the log ends before it.
            with temporary.open("wb") as file:
                self._stop_if_away(number - 1)
                for part in encode(segment, Link(number, self.writer, self.turn)):
                    size += file.write(part)
                file.flush()
                failpoint("segment.written")
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                self._stop_if_fenced(path, number)
            else:
                self._stop_if_packed(path, number)
        finally:
            with suppress(OSError):
                temporary.unlink()
        failpoint("segment.linked")
        # The name itself is on the disk only after this: without it a power cut takes back what was confirmed.
        sync(self.folder)
        failpoint("segment.durable")
        self._last = number
        if self._held is not None:
            self._held += size + sum(self._open.get(one.file, 0) for one in segment.stored)
        for one in segment.stored:
            self._open.pop(one.file, None)
        return size

    def claim(self, start: Position, onto: Position | None = None) -> tuple[int, Position]:
        """Take the log over, at its true end; an empty one begins at `start`. Returns its last number and its end.

        With `onto` it goes on from there, behind a hole that nobody will read across.
        """
        while True:
            # Before the claim: what lies there then is of writers that cannot name it any more, once we have it.
            left = self.leftovers()
            number, end = self.end() or (0, start)
            if number:
                self._stop_if_replaced(number)
            until = onto if onto is not None else end
            notes = {"hole": [end.to_record(), until.to_record()]} if number and until != end else {}
            try:
                self.append(Segment(end, until, TRANSACTIONS.empty_table(), notes=notes), number + 1)
            except Fenced:
                continue  # the one before has written on meanwhile: we go on behind that
            self.sweep(left)
            return number + 1, until

    def last_turn(self) -> Turn:
        """Of the agent that wrote last, which one may go on for whose target is away: it gives out no other turn."""
        number = self.last()
        back, epoch = self.footer(number).get("turn", (0, 0)) if number else (0, 0)
        return back, epoch

    def following(self, epoch: int) -> Turn:
        """The turn of an agent that comes with this epoch of its target."""
        back, before = self.last_turn()
        # A target that was restored from a backup counts its agents from there again.
        return (back, epoch) if epoch > before else (back + 1, epoch)

    def _stop_if_replaced(self, number: int) -> None:
        if tuple(self.footer(number).get("turn", (0, 0))) > self.turn:
            raise self._fenced(number)

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
            raise self._fenced(number)

    def _stop_if_packed(self, path: Path, number: int) -> None:
        """A number that was free because others have written it, and packed it, long since."""
        if self.pack_path(number).exists():
            path.unlink()
            raise self._fenced(number)

    def _fenced(self, number: int) -> Fenced:
        return Fenced(
            f"another agent writes to {self.folder}",
            why=f"segment {number} is its own",
            kept="nothing of ours was confirmed",
            remedy="stop one of the two agents",
        )

    def _stop_if_away(self, before: int) -> None:
        """A disk that is not mounted leaves an empty folder: a log that went on there would be lost with it.

        Asked while a file in the folder is open: from then on it cannot become another one unseen.
        """
        if before and not self.path(before).exists():
            if self.pack_path(before).exists():
                raise self._fenced(before)  # our last one is as old as that: others have gone on
            raise FileNotFoundError(errno.ENOENT, f"segment {before} is not there", str(self.folder))

    def leftovers(self) -> list[str]:
        """What may be of dead writers; some of it is named."""
        return [entry for entry in self._entries() if _HALF.fullmatch(entry) or entry.endswith(PIECE)]

    def sweep(self, entries: Sequence[str] | None = None) -> None:
        """Remove what dead writers have left half written, and pieces of transactions that no segment names."""
        found = self.leftovers() if entries is None else entries
        pieces = self._unnamed({entry for entry in found if entry.endswith(PIECE)})
        halves = {entry for entry in found if _HALF.fullmatch(entry) and not entry.endswith(self.writer)}
        for entry in pieces | halves:
            # On a disk that lets nothing be removed they stay: nobody reads them.
            with suppress(OSError):
                (self.folder / entry).unlink()

    def _unnamed(self, pieces: set[str]) -> set[str]:
        """The pieces that no segment names. Only if there are any is every segment read."""
        left = set(pieces)
        numbers = range(self.first(), self.last() + 1) if left and self.last() else range(0)
        # The segment of a transaction is written soon after its last piece, and names all of them.
        for written, piece in sorted(((_written(self.folder / piece), piece) for piece in pieces), reverse=True):
            near = bisect_left(numbers, written, key=lambda number: _written(self.file(number)[0]))
            for number in numbers[near : near + LOOKED_AT]:
                if piece not in left:
                    break
                left -= self._named_by(number)
        for number in reversed(numbers):
            if not left:
                break
            left -= self._named_by(number)
        return left

    def _named_by(self, number: int) -> set[str]:
        return {one["file"] for one in self.footer(number)["stored"]}

    # ------------------------------------------------------------ pieces of large transactions

    def put(self, rows: pa.Table) -> tuple[str, int]:
        if not self._last:
            self._make()
        name = f"{uuid.uuid4().hex}{PIECE}"
        body = encode_rows(rows, self._form)
        try:
            with (self.folder / name).open("wb") as file:
                self._stop_if_away(self._last)
                file.write(body)
                file.flush()
                # The segment that names it is durable after it: its folder's entry goes to the disk with that one's.
                os.fsync(file.fileno())
        except OSError:
            self.drop(name)  # of a disk that is full, half of it takes room that others need
            raise
        self._open[name] = body.size
        return name, zlib.crc32(body)

    def drop(self, file: str) -> None:
        self._open.pop(file, None)
        with suppress(OSError):  # one that stays is swept later
            (self.folder / file).unlink()

    def piece(self, stored: StoredChanges) -> TableChanges:
        """Its rows, without those of subtransactions that were rolled back."""
        rows = decode_rows(mapped(self.folder / stored.file), stored.file, stored.crc, stored.rows)
        if stored.aborted:
            rows = rows.filter(pc.invert(pc.is_in(rows["sub"], pa.array(stored.aborted, pa.int64()))))
        rows = rows.drop_columns(["sub"])
        tx = pa.repeat(pa.scalar(stored.tx, pa.int32()), rows.num_rows)
        return TableChanges(stored.version, rows.set_column(0, TX, tx))

    # ------------------------------------------------------------ old ones

    def pack(self) -> bool:
        """Bring the next segments that are old enough into one file; False if there are none."""
        while True:
            numbers = packs.numbers_beside(max(self._packed + 1, self.first()))
            # Whoever writes finds the one before its own: the last ones stay as they are.
            if numbers[-1] > self.last() - packs.SEGMENTS:
                return False
            done = self._pack(numbers)
            self._packed = numbers[-1]
            if done:
                return True

    def _pack(self, numbers: range) -> bool:
        """Whether anything was to do."""
        # They lose their names in their order: if the last one has none, nor has any other.
        if not self.path(numbers[-1]).exists():
            return False
        files, pack = [self.path(number) for number in numbers], self.pack_path(numbers[0])
        if not pack.exists():
            if not all(file.exists() for file in files) or sum(map(_size, files)) > packs.MOST_BYTES:
                return False
            self._write_pack(pack, files)
        for file in files:
            file.unlink(missing_ok=True)
            failpoint("pack.removed")
        return True

    def _write_pack(self, pack: Path, files: Sequence[Path]) -> None:
        temporary = self.folder / f".{pack.stem}.{self.writer}"
        try:
            # If we die before the link, the temporary file is swept by the next writer, and nothing has changed.
            with temporary.open("wb") as file:
                # One that is gone was packed, or removed, by another agent just now: it is for the next time.
                for part in packs.encode(_mapped(one) for one in files):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            last = files[-1].stat()
            os.utime(temporary, ns=(last.st_atime_ns, last.st_mtime_ns))  # it is as old as its youngest
            failpoint("pack.written")
            with suppress(FileExistsError):
                os.link(temporary, pack)
        finally:
            with suppress(OSError):
                temporary.unlink()
        # Without it a power cut could keep the removals and lose the name of the pack.
        sync(self.folder)
        # If we die here, every segment is there twice and counts once; the next one that packs removes the files.
        failpoint("pack.linked")

    def remove_until(self, number: int) -> int:
        """Remove the segments up to `number`, the oldest first so that no gap appears. Returns the bytes.

        A pack goes when all of it may go.
        """
        freed = 0
        known = self.first() or 1
        while known <= min(number, self.last()):
            path, last = self.file(known)
            if last > number:
                break
            numbers = range(known, last + 1)
            footers = [self.footer(one) for one in numbers]
            freed += _size(path) + sum(map(self._piece_bytes, footers))
            # The segments first: a piece that nobody names is swept.
            for one in numbers:
                self.path(one).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            for footer in footers:
                for piece in footer["stored"]:
                    self.drop(piece["file"])
            known = last + 1
        return freed

    def remove(self) -> None:
        """All of the log: nobody goes on with it."""
        self.remove_until(self.last())
        self.sweep()
        with suppress(OSError):  # what others have put there stays, and so does the folder
            self.folder.rmdir()


def _counts(entry: str) -> bool:
    return entry.endswith((SUFFIX, PIECE, packs.SUFFIX))


def _size(path: Path | os.DirEntry[str]) -> int:
    """On the disk; nothing if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _written(path: Path) -> float:
    """When it was; by the clock, which may have been set back."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def mapped(path: Path) -> pa.Buffer:
    try:
        return _mapped(path)
    except FileNotFoundError as error:
        raise _gone(path) from error


def _mapped(path: Path) -> pa.Buffer:
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _gone(path: Path) -> PenstockError:
    return StateError(
        f"the segment {path.name} is gone from {path.parent}",
        why="it was removed, or the retention is shorter than the target was away",
        kept="what was applied before it",
        remedy="resync the replication: `penstock replications resync NAME`",
    )
