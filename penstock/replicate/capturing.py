"""The capture's own process: nothing that the applier does can keep the source waiting.

`python -m penstock.replicate.capturing` is told on its standard input what to read and where to, and says on its
standard output, a line of JSON each, what is durable. It ends when its input does: with its agent, however that ends.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from penstock.backends.base import ConnectionConfig
from penstock.backends.change_source import LogNames, ReadsChanges, TableRequest
from penstock.backends.changelog.chain import Chain
from penstock.backends.changelog.segment import ARROW, Turn
from penstock.backends.changes import Position, TableVersion
from penstock.backends.registry import backend
from penstock.errors import LinkLost, PenstockError, from_record
from penstock.observe.failpoints import failpoint
from penstock.observe.process import start_of
from penstock.replicate.buffer import is_marked
from penstock.replicate.capture import Capture, Captured
from penstock.replicate.patience import Patience, PatientScratch, Stopped

STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What a capture is told. Holds secrets: it goes through a pipe alone."""

    config: ConnectionConfig
    names: LogNames
    tables: tuple[TableRequest, ...]
    folder: Path
    turn: Turn  # of the agent
    start: Position  # of a buffer that has nothing yet
    segment_seconds: float
    max_bytes: int
    known: tuple[TableVersion, ...] = ()  # what the log has told last of each table
    form: str = ARROW  # of the files of large transactions

    def __repr__(self) -> str:
        return f"Orders({self.names.slot!r}, {self.folder})"


class CaptureProcess:
    """A running capture, as its agent sees it. What it tells arrives in a thread of its own."""

    def __init__(self, orders: Orders, told: Callable[[dict[str, Any]], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.replicate.capturing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self.error: PenstockError | None = None
        assert self._process.stdin is not None  # noqa: S101  asked for
        pickle.dump(orders, self._process.stdin)
        self._process.stdin.flush()
        self._told = told
        self._reader = threading.Thread(target=self._read, name="penstock-captured", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  asked for
        for line in self._process.stdout:
            record = json.loads(line)
            if "error" in record:
                self.error = from_record(record["error"])
            self._told(record)
        self._process.wait()
        self._told({"ended": True})

    @property
    def ended(self) -> PenstockError | None:
        """Why it runs no more; None while it does."""
        if self._process.poll() is None:
            return None
        self._reader.join(STOP_SECONDS)
        return self.error or LinkLost(
            "the capture has ended",
            why=f"its process ended with {self._process.returncode}",
            kept="what is in the buffer",
            remedy="it is started again by itself",
        )

    def stop(self) -> None:
        """Let it finish its segment; then it is ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# ---------------------------------------------------------------- inside the process


def main() -> int:
    say = _Agent(os.dup(sys.stdout.fileno()))
    try:
        orders: Orders = pickle.load(sys.stdin.buffer)  # noqa: S301  of the agent that has started us
        over = threading.Event()
        threading.Thread(target=_await_end, args=(sys.stdin.buffer, over), daemon=True).start()
        try:
            _capture(orders, say, lambda: not over.is_set())
        except PenstockError as error:
            say({"error": error.to_record()})
            return 1
    except (BrokenPipeError, EOFError, KeyboardInterrupt):
        return 1  # the agent is gone, or everything is to end
    return 0


def _await_end(stdin: IO[bytes], over: threading.Event) -> None:
    # Not through Python's buffer, whose lock the interpreter would die of at its end.
    while os.read(stdin.fileno(), 1):
        pass
    over.set()


class _Agent:
    """What we say to it, a line each. Unbuffered: what it cannot hear any more must not come up again at our end."""

    def __init__(self, descriptor: int) -> None:
        self._out = os.fdopen(descriptor, "wb", buffering=0)
        self._turn = threading.Lock()

    def __call__(self, record: dict[str, Any]) -> None:
        with self._turn:
            left = memoryview(json.dumps(record).encode() + b"\n")
            while left:
                left = left[self._out.write(left) :]


def _capture(orders: Orders, say: _Agent, go_on: Callable[[], bool]) -> None:
    reads = backend(orders.config.type)
    assert isinstance(reads, ReadsChanges)  # noqa: S101  the agent has asked
    source = reads.change_source(orders.config, orders.names, orders.tables)
    chain = Chain(orders.folder, turn=orders.turn, form=orders.form)
    patience = Patience(lambda waiting: say({"waiting": waiting.state, "why": waiting.why}), go_on)
    with suppress(Stopped), closing(source), closing(patience):
        # Before the stream: a capture that we replace may have gone on since the agent looked, and confirmed it.
        number, after = patience.until_done(lambda: _claim(chain, orders))
        # If we die here, the log has an empty segment more, and the next one claims it behind that.
        failpoint("capture.claimed")
        known = {version.table: version for version in orders.known}
        stream = source.stream(after, PatientScratch(chain, patience), known)
        say({"started": os.getpid(), "process": start_of(os.getpid())})

        def told(news: Captured) -> None:
            say(
                {
                    "segment": news.number,
                    "until": news.until.to_record(),
                    "rows": news.rows,
                    "transactions": news.transactions,
                    "bytes": news.bytes,
                    "source_end": stream.source_end,
                }
            )

        with closing(stream):
            told(Captured(number, after, 0, 0, 0))
            pace, limit = orders.segment_seconds, orders.max_bytes
            Capture(stream, chain, number, after, pace, limit, patience, told, go_on, source.beat).run()


def _claim(chain: Chain, orders: Orders) -> tuple[int, Position]:
    if not is_marked(chain.folder):
        # What was there is away, with its disk perhaps: one that began anew would be taken for all there is.
        raise FileNotFoundError(errno.ENOENT, "the buffer is not there", str(chain.folder))
    return chain.claim(orders.start)


if __name__ == "__main__":
    sys.exit(main())
