"""The buffer as its readers see it: which segments lie behind a position, without reading them all."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position, Segment
from penstock.backends.staging import make_folders, sync
from penstock.errors import ConfigError, LinkLost, StateError

Read = TypeVar("Read")

FLUSH_BYTES = 64 * 1024 * 1024  # of one flush, in memory: rows may be of any size
PACK_SECONDS = 0.1  # for packing old segments, and one pack at least: a flush waits for it
MARK = "buffer.json"  # in the folder: whose it is. Where it is missing, the folder is not what it was


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    after: Position
    until: Position
    rows: int
    held: int  # bytes of its rows in memory
    hole: bool  # what lies between its two positions was never captured
    first_at: datetime | None = None  # when its first transaction was committed


class Buffer:
    """Knows the segments behind the positions that it was asked for: of a day's, nearly all were applied long since.

    For several threads: who shows how far a replication is asks while another one flushes.
    """

    def __init__(self, chain: Chain, *, foreign: bool = False) -> None:
        """A `foreign` one somebody else writes: where that has begun anew, its new copies tell what is missing."""
        self.chain = chain
        self._foreign = foreign
        self._turn = threading.RLock()
        self._known: deque[_Known] = deque()  # each after the one before, up to the last
        self._look()
        self._taken = chain.bytes()  # no less than what it takes on the disk

    def _look(self) -> None:
        """Learn what came since the last look; of the first look, the last one alone."""
        if not self._known:
            last = self.chain.last()
            if not last:
                return
            self._known.append(self._learnt(last)[0])
        while self.chain.has(self._known[-1].number + 1):
            known, taken = self._learnt(self._known[-1].number + 1)
            self._stop_if_apart(self._known[-1], known)
            self._known.append(known)
            self._taken += taken

    def _look_back(self, position: Position) -> None:
        """Learn what lies behind a position."""
        while self._known and not (
            _reached(self._known[0].until, position) or _reached(self._known[0].after, position)
        ):
            before = self._known[0].number - 1
            if before < self.chain.first():
                break
            known, _ = self._learnt(before)
            self._stop_if_apart(known, self._known[0])
            self._known.appendleft(known)

    def _learnt(self, number: int) -> tuple[_Known, int]:
        """With the bytes that it takes on the disk."""
        footer = self._there(self.chain.footer, number)
        rows = sum(table["rows"] for table in (*footer["tables"], *footer["stored"]))
        held = sum(table.get("held", table["bytes"]) for table in footer["tables"])
        first_at = datetime.fromisoformat(at) if (at := footer.get("first_at")) else None
        after, until = Position.from_record(footer["after"]), Position.from_record(footer["until"])
        hole = "hole" in footer["notes"]
        return _Known(number, after, until, rows, held, hole, first_at), self.chain.taken(number, footer)

    def _stop_if_apart(self, before: _Known, known: _Known) -> None:
        if known.after.commit > before.until.commit:
            raise self._gap(f"segment {known.number} begins behind the end of the one before it")

    def _gap(self, why: str) -> StateError:
        return StateError(
            f"the log {self.chain.folder} has a gap",
            why=why,
            kept="the target is whole up to its position",
            remedy="copy it again: `penstock replications resync NAME`",
        )

    @contextmanager
    def _looked(self, position: Position) -> Iterator[None]:
        """Nobody else looks or removes meanwhile: a segment that two find at once would be there twice."""
        with self._turn:
            self._look()
            self._look_back(position)
            yield

    @property
    def end(self) -> Position | None:
        return self._known[-1].until if self._known else None

    def rows_behind(self, position: Position) -> int:
        """How many changes lie there, of all tables."""
        with self._looked(position):
            return sum(known.rows for known in self._behind(position))

    def waiting_since(self, position: Position) -> datetime | None:
        """When the first transaction behind a position was committed at the source; None if none is there."""
        with self._looked(position):
            found = None
            for known in reversed(self._known):
                if known.until.commit <= position.commit:
                    break
                found = known.first_at or found
            return found

    def behind(self, position: Position, rows: int) -> list[Segment]:
        """Segments with something behind a position: at least one if there is one, else no more than so many rows.

        And no more than memory is meant for.
        """
        with self._looked(position):
            found: list[Segment] = []
            behind = self._behind(position)
            if why := self._missing(behind, position):
                raise self._gap(why)
            held = FLUSH_BYTES
            for known in behind:
                if found and (known.rows > rows or known.held > held):
                    break
                rows -= known.rows
                held -= known.held
                found.append(self._there(self.chain.read, known.number))
            return found

    def _behind(self, position: Position) -> list[_Known]:
        """Those that are not reached, from the end back to one that is: positions before a hole may be higher."""
        found = list(takewhile(lambda known: not _reached(known.until, position), reversed(self._known)))
        return found[::-1]

    def lacks(self, position: Position) -> str:
        """Why what lies behind a position cannot be brought to it, "" if it can.

        Of a target that was restored from a backup, perhaps.
        """
        with self._looked(position):
            return self._missing(self._behind(position), position)

    def _missing(self, behind: Sequence[_Known], position: Position) -> str:
        if any(known.hole for known in behind) and not self._foreign:
            return "the target is of before all tables were copied again: the changes in between were not captured"
        if behind and behind[0] is self._known[0] and behind[0].after.commit > position.commit:
            return "the target is older than all that the buffer keeps"
        return ""

    def _there(self, read: Callable[[int], Read], number: int) -> Read:
        try:
            return read(number)
        except StateError:
            if not self._away:
                raise
            raise LinkLost(
                f"the buffer {self.chain.folder} is away",
                why="its folder is not there, or its disk is not mounted",
                kept="the target is whole up to its position",
                remedy="it goes on by itself once the folder is back",
            ) from None

    @property
    def _away(self) -> bool:
        """Whether all of it is gone: of a log that lives, the last segment is never removed."""
        return bool(self._known) and not self.chain.has(self._known[-1].number)

    def clear(self) -> None:
        """Remove every segment: nobody goes on with them."""
        with self._turn:
            if self._known:
                self.chain.remove_until(self._known[-1].number)
                self._known.clear()
                self._taken = 0

    def trim(self, position: Position, retain: float, most_bytes: int) -> None:
        """Remove segments that lie before a position and are old enough; the last one stays: it is where we are.

        What the target has makes room before it is old, once all of them take so much: capture would wait for it.
        """
        with self._turn:
            if not self._known or self._away:
                return
            passed = self._passed(position)
            while len(self._known) > 1 and _reached(self._known[0].until, position):
                self._known.popleft()
            if self._taken > most_bytes:
                self._taken = self.chain.bytes()  # what was swept, and pieces that were there before they were named
            young = time.time() - retain
            number = self.chain.first()
            while number < self._known[-1].number:
                path, last = self.chain.file(number)
                old = path.stat().st_mtime < young
                if not (old or self._taken > most_bytes):
                    break
                if last > passed and not self._has_passed(last, position):
                    break
                self._taken -= self.chain.remove_until(last)
                number = last + 1
            began = time.monotonic()
            while self.chain.pack() and time.monotonic() - began < PACK_SECONDS:
                pass

    def _passed(self, position: Position) -> int:
        """The last number that is known to lie before a position; 0 if none is known."""
        found = self._behind(position)
        if len(found) < len(self._known):
            return self._known[-1].number - len(found)
        return found[0].number - 1 if _reached(found[0].after, position) else 0

    def _has_passed(self, number: int, position: Position) -> bool:
        return _reached(Position.from_record(self.chain.footer(number)["until"]), position)


def _reached(until: Position, position: Position) -> bool:
    """Whether all of a segment lies before a position. One without transactions ends later and not behind it."""
    return until.commit <= position.commit and until.end <= position.end


# ---------------------------------------------------------------- whose it is


def is_marked(folder: Path) -> bool:
    return (folder / MARK).exists()


def mark(folder: Path, replication: str) -> None:
    """Make it the buffer of this replication, unless it is another's."""
    make_folders(folder)
    temporary = folder / f".{uuid.uuid4().hex}"
    with temporary.open("w") as file:
        json.dump({"replication": replication}, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, folder / MARK)
    except FileExistsError:
        stop_if_of_another(folder, replication)
    finally:
        temporary.unlink()
    sync(folder)


def stop_if_of_another(folder: Path, replication: str) -> None:
    try:
        owner = json.loads((folder / MARK).read_text())["replication"]
    except FileNotFoundError:
        return
    if owner != replication:
        raise ConfigError(
            f"{folder} is the buffer of replication {owner!r}",
            why=f"{replication!r} cannot use the same folder",
            kept="nothing was touched",
            remedy="another path in [replications.NAME.buffer] of one of them",
        )


def remove(folder: Path) -> None:
    """All of it: nobody goes on with it."""
    with suppress(FileNotFoundError):
        (folder / MARK).unlink()
    Chain(folder).remove()
