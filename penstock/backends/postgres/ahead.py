"""Read or make one batch ahead on a thread, so that it and writing overlap.

The thread never outlives the generator: on every way out the statement is cancelled, the queue
drained and the thread joined before the connection is closed under it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_END = object()


class ReadAhead(Generic[T]):
    """`items` drawn by a thread through a queue of one."""

    def __init__(self, items: Iterator[T], cancel: Callable[[], None]) -> None:
        self._items = items
        self._cancel = cancel
        self._queue: queue.Queue[object] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="penstock-read-ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        try:
            while (item := self._queue.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item  # type: ignore[misc]  # the thread puts nothing else
        finally:
            self._leave()

    def _draw(self) -> None:
        try:
            for item in self._items:
                self._queue.put(item)
                if self._stop.is_set():
                    return
            self._queue.put(_END)
        except BaseException as error:  # noqa: BLE001  carried over to the reader, never lost
            self._queue.put(error)

    def _leave(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # It may be deep in a read that lasts for minutes.
            self._cancel()
        while self._thread.is_alive():
            # A full queue would keep the thread waiting in `put` for ever.
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
