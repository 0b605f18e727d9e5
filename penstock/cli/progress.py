"""A run as it goes: a bar on a terminal, a plain log line per phase anywhere else. Both on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from penstock.cli import output, signals
from penstock.observe import logs

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.run.pipeline import ProgressEvent

BAR_AFTER_SECONDS = 2.0  # what is over sooner needs no bar
LINE_EVERY_SECONDS = 10.0  # a copy that takes longer says how far it has got

PHASES = {"plan": "planning", "copy": "copying", "commit": "committing", "done": "done"}


class Reporter(Protocol):
    def __call__(self, event: ProgressEvent) -> None: ...
    def __enter__(self) -> Reporter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def reporter(title: str) -> Reporter:
    """The right one for where stderr goes."""
    return Bar(title) if sys.stderr.isatty() else Lines()


class Lines:
    """One log line when a phase begins, and one every ten seconds of a long copy."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logs.Log("run")
        self._clock = clock
        self._phases: dict[tuple[str, str], str] = {}
        self._said: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Nothing to tidy."""

    def __call__(self, event: ProgressEvent) -> None:
        _keep_signals()
        key = (event.pipeline, str(event.table))
        now = self._clock()
        begins = self._phases.get(key) != event.phase
        if not begins and now - self._said[key] < LINE_EVERY_SECONDS:
            return
        self._phases[key] = event.phase
        self._said[key] = now
        fields: dict[str, object] = {"pipeline": event.pipeline, "table": event.table}
        if event.phase != "plan":
            about = event.total_rows if event.phase == "copy" else None
            fields |= {"rows": event.rows, "of_about": about, "seconds": event.seconds}
        self._log.info(PHASES.get(event.phase, event.phase), **fields)


class Bar:
    """A line per table that moves, from the third second on, gone when the work is done."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._progress = _progress()
        self._waiting = self._progress.add_task(title, total=None, phase="starting", speed="")
        self._timer = threading.Timer(BAR_AFTER_SECONDS, self._progress.start)
        self._timer.daemon = True

    def __enter__(self) -> Bar:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()

    def __call__(self, event: ProgressEvent) -> None:
        _keep_signals()
        if self._waiting in self._progress.task_ids:
            self._progress.remove_task(self._waiting)
        key = (event.pipeline, str(event.table))
        name = event.pipeline if event.table in ("", "query") else f"{event.pipeline} {event.table}"
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(name, total=None, phase="", speed="")
        task = self._tasks[key]
        self._progress.update(
            task,
            completed=event.rows,
            total=_total(event),
            phase=PHASES.get(event.phase, event.phase),
            speed=f"{output.per_second(event.rows, event.seconds)} rows/s" if event.rows and event.seconds else "",
        )


def _total(event: ProgressEvent) -> int | None:
    """An estimate that was too low does not make a bar that is full too early."""
    if event.phase == "done":
        return event.rows
    return None if event.total_rows is None else max(event.total_rows, event.rows + 1)


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("[dim]{task.fields[phase]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f} rows"),
        TextColumn("[dim]{task.fields[speed]}"),
        TimeElapsedColumn(),
        console=output.err(),
        transient=True,
    )


def _keep_signals() -> None:
    """Spark's start replaces the SIGINT handler by one that would interrupt a rollback: take it back."""
    if threading.current_thread() is threading.main_thread():
        signals.install()
