"""The captured side of a replication: the capture's process, and what it has told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.backends.changes import Position
from penstock.errors import Kind, PenstockError
from penstock.observe import logs
from penstock.replicate.capturing import CaptureProcess, Orders
from penstock.replicate.circuit import Circuit

log = logs.Log("replicate")


class CapturedSide:
    """What is durable in the buffer, by the word of whoever writes it.

    `news` is called in a thread of its own, and before it `waits` when the capture waits for something, or no more.
    """

    def __init__(self, news: Callable[[], None], waits: Callable[[], None]) -> None:
        self._news = news
        self._waits = waits
        self._process: CaptureProcess | None = None
        self.end: Position | None = None
        self.source_end = 0
        self.waiting = ""
        self.streams = False  # it has reached the source since its start

    def start(self, orders: Orders, end: Position) -> None:
        """`end` is where the buffer ends, as far as is known."""
        self.end, self.waiting, self.streams = end, "", False
        self._process = CaptureProcess(orders, self._heard)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.stop()
        self.streams, self.waiting = False, ""

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def ended(self) -> PenstockError | None:
        """Why the capture runs no more; None while it does, and where there is none."""
        return self._process.ended if self._process is not None else None

    def tend(self, circuit: Circuit, begin: Callable[[], None], look: Callable[[], None] = lambda: None) -> None:
        """Keep it going: one that has ended is begun again when its circuit lets it. `look` asks why it has ended."""
        ended = self.ended
        if ended is not None:
            self.stop()
            look()
            if ended.kind is not Kind.TRANSIENT:
                raise ended
            wait = circuit.failed(ended)
            log.warning("the capture has ended", what=ended.what, why=ended.why, again_in=round(wait, 1))
        elif self.streams:
            circuit.succeeded()
        elif not self.runs and circuit.due:
            try:
                begin()
            except PenstockError as error:
                if error.kind is not Kind.TRANSIENT:
                    raise
                circuit.failed(error)

    def _heard(self, record: dict[str, Any]) -> None:
        if "segment" in record:
            self.end = Position.from_record(record["until"])
            self.source_end = record["source_end"]
        elif "started" in record:
            self.streams = True
        elif "waiting" in record:
            self.waiting = f"{record['waiting']}: {record['why']}" if record["why"] else record["waiting"]
            self._waits()
        self._news()
