"""Signals become one KeyboardInterrupt, so that a run rolls back on the way out.

A second Ctrl-C while the rollback is under way would cut it short and leave staging behind: it
is answered with a line instead. A signal that whoever started us has ignored stays ignored: under
`nohup` a hang-up must not end the run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
_taken: set[signal.Signals] = set()


def received() -> int:
    """The signal that ended the command; SIGINT where a library turned it into an exception."""
    return _received[0] if _received else signal.SIGINT


def taken() -> bool:
    """Whether a signal has come."""
    return bool(_received)


@contextmanager
def once() -> Iterator[None]:
    """Within the block the first signal raises KeyboardInterrupt and later ones are only answered."""
    _received.clear()
    before = {number: signal.getsignal(number) for number in HANDLED}
    _taken.update(number for number, handler in before.items() if handler is not signal.SIG_IGN)
    install()
    try:
        yield
    finally:
        for number in _taken:
            signal.signal(number, before[number])
        _taken.clear()


def install() -> None:
    """Take the signals, inside `once` only.

    Called again after Spark has started, which puts a SIGINT handler of its own.
    """
    for number in _taken:
        signal.signal(number, _handle)


def _handle(number: int, _frame: FrameType | None) -> None:
    if _received:
        os.write(2, b"still rolling back; please wait\n")
        return
    _received.append(number)
    raise KeyboardInterrupt
