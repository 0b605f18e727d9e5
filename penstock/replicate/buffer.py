"""The buffer as its readers see it: which segments lie behind a position, without reading them all."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position, Segment
from penstock.backends.staging import make_folders, sync
from penstock.errors import ConfigError, LinkLost, StateError

FLUSH_BYTES = 64 * 1024 * 1024  # of one flush, in memory: rows may be of any size
MARK = "buffer.json"  # in the folder: whose it is. Where it is missing, the folder is not what it was


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    after: Position
    until: Position
    rows: int
    held: int  # bytes of its rows in memory
    bytes: int  # on the disk
    first_at: datetime | None = None  # when its first transaction was committed


class Buffer:
    """Knows where every segment ends; asks only for those that came since it last looked.

    For several threads: who shows how far a replication is asks while another one flushes.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._turn = threading.RLock()
        self._known: list[_Known] = []
        self._look()

    def _look(self) -> None:
        numbers = self.chain.numbers() if not self._known else []
        following = self._known[-1].number + 1 if self._known else (numbers[0] if numbers else 1)
        while self.chain.path(following).exists():
            footer = self.chain.footer(following)
            rows = sum(table["rows"] for table in (*footer["tables"], *footer["stored"]))
            held = sum(table.get("held", table["bytes"]) for table in footer["tables"])
            first_at = datetime.fromisoformat(at) if (at := footer.get("first_at")) else None
            after, until = Position.from_record(footer["after"]), Position.from_record(footer["until"])
            if self._known and after.commit > self._known[-1].until.commit:
                raise self._gap(f"segment {following} begins behind the end of the one before it")
            taken = self.chain.path(following).stat().st_size + self.chain.piece_bytes(footer)
            self._known.append(_Known(following, after, until, rows, held, taken, first_at))
            following += 1

    def _gap(self, why: str) -> StateError:
        return StateError(
            f"the log {self.chain.folder} has a gap",
            why=why,
            kept="the target is whole up to its position",
            remedy="copy it again: `penstock replications resync NAME`",
        )

    @contextmanager
    def _looked(self) -> Iterator[None]:
        """Nobody else looks or removes meanwhile: a segment that two find at once would be there twice."""
        with self._turn:
            self._look()
            yield

    @property
    def end(self) -> Position | None:
        return self._known[-1].until if self._known else None

    def rows_behind(self, position: Position) -> int:
        """How many changes lie there, of all tables."""
        with self._looked():
            total = 0
            for known in reversed(self._known):
                if _reached(known.until, position):
                    break
                total += known.rows
            return total

    def waiting_since(self, position: Position) -> datetime | None:
        """When the first transaction behind a position was committed at the source; None if none is there."""
        with self._looked():
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
        with self._looked():
            found: list[Segment] = []
            total = 0
            for known in reversed(self._known):  # the ones that are asked for are the last
                if _reached(known.until, position):
                    break
                total += 1
            if total == len(self._known) > 0 and self._known[0].after.commit > position.commit:
                # Of a target that was restored from a backup, perhaps: what it needs was removed long since.
                raise self._gap("it begins behind what the target has: the changes in between were removed")
            held = FLUSH_BYTES
            for known in self._known[len(self._known) - total :]:
                if found and (known.rows > rows or known.held > held):
                    break
                rows -= known.rows
                held -= known.held
                found.append(self._read(known.number))
            return found

    def _read(self, number: int) -> Segment:
        try:
            return self.chain.read(number)
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
        return bool(self._known) and not self.chain.path(self._known[-1].number).exists()

    def clear(self) -> None:
        """Remove every segment: nobody goes on with them."""
        with self._turn:
            if self._known:
                self.chain.remove_until(self._known[-1].number)
                self._known.clear()

    def trim(self, position: Position, retain: float, most_bytes: int) -> None:
        """Remove segments that lie before a position and are old enough; the last one stays: it is where we are.

        What the target has makes room before it is old, once all of them take so much: capture would wait for it.
        """
        with self._turn:
            if self._away:
                return
            now = time.time()
            gone, excess = 0, sum(known.bytes for known in self._known) - most_bytes
            for known in self._known[:-1]:
                old = now - self.chain.path(known.number).stat().st_mtime > retain
                if not (_reached(known.until, position) and (old or excess > 0)):
                    break
                excess -= known.bytes
                gone += 1
            if gone:
                last = self._known[gone - 1].number
                try:
                    self.chain.remove_until(last)
                finally:
                    # Of a disk that refuses in the middle, those that are gone are not asked for again.
                    first = self.chain.first()
                    self._known = [known for known in self._known if known.number >= first]


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
