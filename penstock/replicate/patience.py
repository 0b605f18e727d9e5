"""Patience with a disk: what it refuses is tried until it is done, and people are told what is waited for."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from penstock.backends.change_source import Scratch

RETRY_SECONDS = 0.5  # between two looks at a buffer that is full, away, or cannot be written to
SLOW_SECONDS = 2.0  # a disk that takes longer to make a segment durable is called slow

# What a capture may wait for.
FULL, AWAY, UNWRITABLE, SLOW = "buffer full", "buffer away", "buffer unwritable", "buffer slow"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why nothing is read; "" when it goes on."""

    state: str
    why: str


class Stopped(Exception):
    """It was told to stop while it waited: what was to be written is not there, and was never confirmed."""


class Patience:
    """Of one writer. `told` is called in a thread of its own as well, one call at a time."""

    def __init__(self, told: Callable[[Waiting], None], go_on: Callable[[], bool]) -> None:
        self._tell = told
        self._go_on = go_on
        self._turn = threading.Lock()
        self._state = ""
        self._began: float | None = None  # what is tried now
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="penstock-patience", daemon=True).start()

    def until_done(self, act: Callable[[], T]) -> T:
        """Do it, as often as it takes."""
        while True:
            self._note(time.monotonic())
            try:
                done = act()
            except OSError as error:
                self._note(None)
                self.say(_state_of(error), os.strerror(error.errno or 0))
                self.pause()
            else:
                self._note(None)
                self.say("")
                return done

    def pause(self) -> None:
        if not self._go_on():
            raise Stopped
        time.sleep(RETRY_SECONDS)

    def say(self, state: str, why: str = "") -> None:
        """What is waited for, once; "" if for nothing."""
        with self._turn:
            if state != self._state:
                self._state = state
                self._tell(Waiting(state, why))

    def close(self) -> None:
        self._over.set()

    def _note(self, began: float | None) -> None:
        with self._turn:
            self._began = began

    def _watch(self) -> None:
        """Nobody who waits for a disk can say so: this one can."""
        with suppress(BrokenPipeError):  # the agent is gone, and so are we
            while not self._over.wait(SLOW_SECONDS / 4):
                began = self._began
                if began is not None and time.monotonic() - began > SLOW_SECONDS:
                    self._say_slow(began)

    def _say_slow(self, began: float) -> None:
        with self._turn:
            if self._began == began and not self._state:
                self._state = SLOW
                self._tell(Waiting(self._state, f"the disk takes more than {SLOW_SECONDS:.0f} s"))


def _state_of(error: OSError) -> str:
    return AWAY if error.errno == errno.ENOENT else UNWRITABLE


class PatientScratch(Scratch):
    """Pieces of large transactions, written with patience."""

    def __init__(self, scratch: Scratch, patience: Patience) -> None:
        self._scratch = scratch
        self._patience = patience

    def put(self, rows: pa.Table) -> tuple[str, int]:
        return self._patience.until_done(lambda: self._scratch.put(rows))

    def drop(self, file: str) -> None:
        self._scratch.drop(file)
