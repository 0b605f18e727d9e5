"""Capture: the source's log into durable segments, and only then confirmed.

What it has confirmed is in the buffer; what it has not, the source sends again. A buffer that is full or cannot be
written to stops the reading, not the link: the server hears of us all the while, and the reading goes on by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.backends.change_source import ChangeStream
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import TRANSACTIONS, Batch, Position, Segment, behind, joined
from penstock.observe.failpoints import failpoint
from penstock.replicate.patience import FULL, Patience, Stopped

SEGMENT_ROWS = 200_000
SEGMENT_BYTES = 64 * 1024 * 1024  # in memory, of what does not lie in files of its own
IDLE_SECONDS = 0.05
MARK_SECONDS = 10.0  # between two marks in a log that has nothing for us
BEAT_SECONDS = 30.0  # between two looks at whether a log that has nothing for us has gone on all the same


@dataclass(frozen=True, slots=True)
class Captured:
    """A segment that is durable now."""

    number: int
    until: Position
    transactions: int
    rows: int
    bytes: int


class Capture:
    """Reads one stream into one chain, until it is told to stop."""

    def __init__(
        self,
        stream: ChangeStream,
        chain: Chain,
        number: int,
        after: Position,
        segment_seconds: float,
        max_bytes: int,
        patience: Patience,
        told: Callable[[Captured], None],
        go_on: Callable[[], bool],
        beat: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`beat` lets the source write something for us into its log, if that has gone on without it."""
        self._stream = stream
        self._chain = chain
        self._number = number  # of the last segment that is there
        self._after = after
        self._segment_seconds = segment_seconds
        self._max_bytes = max_bytes
        self._patience = patience
        self._told = told
        self._go_on = go_on
        self._beat = beat
        self._marked = self._beaten = time.monotonic()

    def run(self) -> None:
        with suppress(Stopped):
            self._run()

    def _run(self) -> None:
        while self._go_on():
            self._await_room()
            batches = self._gather()
            if not batches:
                self._mark()
                continue
            made = self._write(joined(batches))
            failpoint("capture.durable")
            # If we die here, the source sends these transactions again, and they are skipped by their positions.
            self._stream.durable(self._after.end)
            if made is not None:
                self._told(made)

    def _mark(self) -> None:
        """Of a log that has nothing for us, keep how far it has gone: the server need not hold it for us.

        In a segment of its own. What is confirmed and not kept would look like a gap at the next start.
        """
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = time.monotonic()
            self._beat(self._after.end)
        end = self._stream.idle_end
        if end <= self._after.end or time.monotonic() - self._marked < MARK_SECONDS:
            return
        self._marked = time.monotonic()
        until = Position(self._stream.origin, self._after.commit, end)
        size = self._append(Segment(self._after, until, TRANSACTIONS.empty_table()))
        self._number += 1
        self._after = until
        self._stream.durable(end)
        self._told(Captured(self._number, until, 0, 0, size))

    def _await_room(self) -> None:
        """Below the limit a slow target never slows capture down; at it, nothing is read or confirmed."""
        if self._chain.most_bytes() < self._max_bytes:
            return
        while (size := self._chain.bytes()) >= self._max_bytes:
            first = self._chain.first()
            if first == self._chain.last():
                break  # all that is applied is gone: one that is larger than the limit must not stop us for ever
            self._patience.say(FULL, f"it holds {size:,} bytes")
            while self._chain.first() == first:  # until the agent has removed some, there is nothing to count
                self._patience.pause()
        self._patience.say("")

    def _gather(self) -> list[Batch]:
        """What comes until a segment is due: when it is old enough, large enough, or nothing more comes."""
        batches: list[Batch] = []
        rows, held, began = 0, 0, 0.0
        while rows < SEGMENT_ROWS and held < SEGMENT_BYTES and self._go_on():
            left = self._segment_seconds - (time.monotonic() - began) if batches else IDLE_SECONDS
            if left <= 0:
                break
            taken = self._stream.take(left)
            if taken is None:
                break
            batch = behind(taken, self._after.commit)
            self._drop_seen(taken, batch)
            if not batches:
                began = time.monotonic()
            batches.append(batch)
            rows += batch.rows
            held += batch.nbytes
        return batches

    def _drop_seen(self, taken: Batch, batch: Batch) -> None:
        """The files of large transactions that were durable before, and were sent again."""
        kept = {one.file for one in batch.stored}
        for one in taken.stored:
            if one.file not in kept:
                self._chain.drop(one.file)

    def _write(self, batch: Batch) -> Captured | None:
        """The segment; None if no transaction ended in it."""
        count = batch.transactions.num_rows
        if count == 0:
            return None
        last = batch.transactions.slice(count - 1).to_pylist()[0]
        until = Position(self._stream.origin, last["commit"], last["end"])
        size = self._append(Segment(self._after, until, batch.transactions, batch.tables, batch.stored))
        self._number += 1
        self._after = until
        return Captured(self._number, until, count, batch.rows, size)

    def _append(self, segment: Segment) -> int:
        """Until it is durable: a disk that is full or away is waited for."""
        return self._patience.until_done(lambda: self._chain.append(segment, self._number + 1))
