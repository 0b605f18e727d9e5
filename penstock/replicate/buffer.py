"""The buffer as its readers see it: which segments lie behind a position, without reading them all."""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position, Segment
from penstock.errors import StateError


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    after: Position
    until: Position
    rows: int
    held: int  # bytes of its rows in memory


# Of one flush, in memory: rows may be of any size.
FLUSH_BYTES = 64 * 1024 * 1024


class Buffer:
    """Knows where every segment ends; asks only for those that came since it last looked."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._known: list[_Known] = []
        self._look()

    def _look(self) -> None:
        numbers = self.chain.numbers() if not self._known else []
        following = self._known[-1].number + 1 if self._known else (numbers[0] if numbers else 1)
        while self.chain.path(following).exists():
            footer = self.chain.footer(following)
            rows = sum(table["rows"] for table in (*footer["tables"], *footer["stored"]))
            held = sum(table.get("held", table["bytes"]) for table in footer["tables"])
            after, until = Position.from_record(footer["after"]), Position.from_record(footer["until"])
            if self._known and after.commit > self._known[-1].until.commit:
                raise self._gap(f"segment {following} begins behind the end of the one before it")
            self._known.append(_Known(following, after, until, rows, held))
            following += 1

    def _gap(self, why: str) -> StateError:
        return StateError(
            f"the log {self.chain.folder} has a gap",
            why=why,
            kept="the target is whole up to its position",
            remedy="copy it again: `penstock replications resync NAME`",
        )

    @property
    def end(self) -> Position | None:
        return self._known[-1].until if self._known else None

    def rows_behind(self, position: Position) -> int:
        """How many changes lie there, of all tables."""
        self._look()
        total = 0
        for known in reversed(self._known):
            if _reached(known.until, position):
                break
            total += known.rows
        return total

    def behind(self, position: Position, rows: int) -> list[Segment]:
        """Segments with something behind a position: at least one if there is one, else no more than so many rows.

        And no more than memory is meant for.
        """
        self._look()
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
            found.append(self.chain.read(known.number))
        return found

    def clear(self) -> None:
        """Remove every segment: nobody goes on with them."""
        if self._known:
            self.chain.remove_until(self._known[-1].number)
            self._known.clear()

    def trim(self, position: Position, retain: float, most_bytes: int) -> None:
        """Remove segments that lie before a position and are old enough; the last one stays: it is where we are.

        What the target has makes room before it is old, once all of them take so much: capture would wait for it.
        """
        now = time.time()
        gone, excess = 0, self.chain.bytes() - most_bytes
        for known in self._known[:-1]:
            found = self.chain.path(known.number).stat()
            old = now - found.st_mtime > retain
            if not (_reached(known.until, position) and (old or excess > 0)):
                break
            excess -= found.st_size
            gone += 1
        if gone:
            self.chain.remove_until(self._known[gone - 1].number)
            del self._known[:gone]


def _reached(until: Position, position: Position) -> bool:
    """Whether all of a segment lies before a position. One without transactions ends later and not behind it."""
    return until.commit <= position.commit and until.end <= position.end
