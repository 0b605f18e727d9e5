"""`ps.replication`: a replication as an object, which runs in a thread of its own until it is stopped.

The same agent as on the command line, with the same state store: `penstock replications` finds it, and may ask it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import ConfigError
from penstock.project.decorators import caller, name_of
from penstock.project.discover import place_of
from penstock.project.load import build_replication
from penstock.project.model import Project
from penstock.replicate.agent import Agent
from penstock.replicate.copy import Stage, stage_with_spark
from penstock.replicate.status import Status
from penstock.run.current import project_of
from penstock.state import open_store

if TYPE_CHECKING:
    from penstock.project.replications import Replication

# How rows are copied; another one than Spark's is for tests that need no JVM.
_stage: ContextVar[Stage] = ContextVar("penstock_replication_stage", default=stage_with_spark)


@contextmanager
def copying_by(stage: Stage) -> Iterator[None]:
    """Replications made inside copy their rows in another way than by Spark."""
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


def replication(
    name: str,
    *,
    source: Any = None,
    target: Any = None,
    tables: Sequence[str] = (),
    project: Project | Path | str | None = None,
    **options: Any,
) -> ReplicationHandle:
    """A replication of the project by its name, or one that is written nowhere else: `options` as in the file.

    Nothing is opened until `start`. `name` is what the target remembers it by.
    """
    found = project_of(project)
    if source is None and target is None and not tables and not options:
        return ReplicationHandle(found, found.replication(name), lambda: project_of(project).replication(name))
    if name in found.replications:
        raise ConfigError(
            f"replication {name!r} stands in the project already",
            remedy=f"ps.replication({name!r}) alone, or another name",
            place=found.replications[name].place,
        )
    given: Mapping[str, Any] = {"source": name_of(source), "target": name_of(target), "tables": list(tables), **options}
    named = {key: value for key, value in given.items() if value is not None}
    made = build_replication(found, name, named, place_of(caller(sys._getframe(1))), os.environ)
    return ReplicationHandle(found, made, lambda: made)


class ReplicationHandle:
    """One replication: `start`, `status`, `stop`. Also a context, which starts and stops it."""

    def __init__(self, project: Project, options: Replication, reload: Callable[[], Replication]) -> None:
        self.name = options.name
        self._project = project
        self._options = options
        self._reload = reload
        self._copying = _stage.get()
        self._agent: Agent | None = None
        self._thread: threading.Thread | None = None
        self._status: Status | None = None
        self._told = threading.Event()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<replication {self.name!r}: {self._status.state if self._status is not None else 'not started'}>"

    def start(self, *, until_caught_up: bool = False) -> Self:
        """Begin in the background; returns when it runs, and raises what keeps it from that.

        With `until_caught_up` it ends by itself when the target has all that is committed now: see `wait`, which
        raises if a table has failed.
        """
        if self._thread is not None and self._thread.is_alive():
            raise ConfigError(f"replication {self.name!r} runs already", remedy="stop it first")
        self._error, self._status = None, None
        self._told.clear()
        store = open_store(self._project.state_location)
        self._agent = Agent(
            self._project, self._options, self._tell, store=store, reload=self._reload, stage=self._copying
        )

        def run(agent: Agent) -> None:
            try:
                with store:
                    agent.run(until_caught_up=until_caught_up)
            except BaseException as error:  # noqa: BLE001  raised again by whoever asks
                self._error = error
            finally:
                self._told.set()

        self._thread = threading.Thread(target=run, args=(self._agent,), name=f"penstock-{self.name}", daemon=True)
        self._thread.start()
        self._told.wait()
        self._raise()
        return self

    def status(self) -> Status:
        """How it is: its state, position and lag, and every table. Raises what has ended it."""
        self._raise()
        if self._status is None:
            raise ConfigError(f"replication {self.name!r} was not started", remedy=".start()")
        return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended by itself, or so many seconds; whether it has. Raises what has ended it."""
        if self._thread is not None:
            self._thread.join(timeout)
        self._raise()
        return self._thread is None or not self._thread.is_alive()

    def stop(self) -> None:
        """Let the flush that is on its way end, and no other begin. What is not applied is in the buffer."""
        if self._agent is not None and self._thread is not None:
            self._agent.stop()
            self._thread.join()
        self._raise()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _tell(self, status: Status) -> None:
        self._status = status
        self._told.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
