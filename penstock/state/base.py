"""What a store of runs can do, and the records it keeps.

Never holds a secret, a cell's value or a key's value: errors are stored without their `keys`.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from penstock.errors import PenstockError, StateError
from penstock.observe.process import start_of

RunState = Literal["running", "done", "failed", "cancelled", "interrupted"]

DEFAULT_LIMIT = 50  # a screenful


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of one pipeline's table. `host`, `pid` and `process` tell whether it still lives."""

    run_id: str
    pipeline: str
    kind: str = "batch"
    state: RunState = "running"
    started_at: datetime = field(default_factory=now)
    finished_at: datetime | None = None
    path: str | None = None
    mode: str | None = None
    source: str | None = None
    target: str | None = None
    rows: int | None = None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    bytes: int | None = None
    partitions: int | None = None
    error: Mapping[str, Any] | None = None  # as `PenstockError.to_record` gives it, without `keys`
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: start_of(os.getpid()) or "")
    plan: str | None = None  # JSON

    @property
    def seconds(self) -> float | None:
        """How long it took, if it is known to have ended."""
        return None if self.finished_at is None else (self.finished_at - self.started_at).total_seconds()

    def ended(
        self,
        state: RunState,
        error: PenstockError | Mapping[str, Any] | None = None,
        finished_at: datetime | None = None,
        **figures: Unpack[Figures],
    ) -> RunRecord:
        """The record of the same run after its end."""
        told = error.to_record() if isinstance(error, PenstockError) else error
        return replace(self, state=state, finished_at=finished_at or now(), error=without_keys(told), **figures)


class Figures(TypedDict, total=False):
    """What a run has learnt about itself by the time it ends."""

    path: str | None
    mode: str | None
    source: str | None
    target: str | None
    rows: int | None
    inserted: int | None
    updated: int | None
    deleted: int | None
    bytes: int | None
    partitions: int | None
    plan: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth remembering that happened in a run: a retry, a sweep, a drift."""

    run_id: str
    name: str
    data: Mapping[str, Any] = field(default_factory=dict)  # JSON; no cell's value, no secret
    at: datetime = field(default_factory=now)


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """A replication's agent as it last told of itself."""

    name: str  # the replication's
    state: str  # running, paused, waiting for target, waiting for source, stopped, failed
    status: Mapping[str, Any] = field(default_factory=dict)  # JSON, for people; no cell's value, no secret
    at: datetime = field(default_factory=now)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: start_of(os.getpid()) or "")

    @property
    def hears(self) -> bool:
        """Whether it was at work when it last told of itself, and is not known to have ended since."""
        return self.works and not self.gone

    @property
    def works(self) -> bool:
        return self.state in ("running", "paused") or self.state.startswith("waiting for ")

    @property
    def gone(self) -> bool:
        """Whether its process is known to have ended: of another host nobody here can tell."""
        return not self.elsewhere and _gone(self)

    @property
    def elsewhere(self) -> bool:
        return self.host != socket.gethostname()


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody asks of an agent, and what it has answered."""

    id: int
    name: str  # the replication's
    word: str  # pause, resume, resync, reload, stop
    table: str = ""  # of those that speak of one
    answer: str | None = None


class Store(ABC):
    """Runs and their events, agents and what is asked of them.

    Safe for several processes at once, where the medium is shared.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """Of the stored tables."""

    def start_run(self, record: RunRecord) -> None:
        """Remember a run. The same id twice is an error."""
        self._insert(replace(record, error=without_keys(record.error)))

    def finish_run(
        self,
        run_id: str,
        state: RunState,
        *,
        error: PenstockError | Mapping[str, Any] | None = None,
        finished_at: datetime | None = None,
        **figures: Unpack[Figures],
    ) -> RunRecord:
        """Remember how a run ended, and what it moved; the record as it is now."""
        found = self.run(run_id)
        if found is not None:
            ended = found.ended(state, error, finished_at, **figures)
            if self._update(ended, only_running=False):
                return ended
        raise StateError(f"there is no run {run_id}", remedy="penstock runs list shows the known ones")

    @abstractmethod
    def run(self, run_id: str) -> RunRecord | None: ...

    @abstractmethod
    def runs(
        self, pipeline: str | None = None, state: str | None = None, limit: int | None = DEFAULT_LIMIT
    ) -> list[RunRecord]:
        """The latest first."""

    @abstractmethod
    def add_event(self, event: Event) -> None: ...

    @abstractmethod
    def events(self, run_id: str) -> list[Event]:
        """In the order they were added."""

    @abstractmethod
    def tell_agent(self, record: AgentRecord) -> None:
        """Replace what is known of a replication's agent."""

    @abstractmethod
    def agents(self) -> list[AgentRecord]:
        """By name."""

    def forget_agent(self, name: str) -> None:
        """Of a replication that is no more: what its agent has told, and what is asked of it."""
        for command in self.asked(name):
            self.answer(command.id, "refused: the replication was removed")
        self._forget_agent(name)

    def agent(self, name: str) -> AgentRecord | None:
        return next((record for record in self.agents() if record.name == name), None)

    @abstractmethod
    def ask(self, name: str, word: str, table: str = "") -> int:
        """Ask something of a replication's agent, which finds it when it next looks; the command's id."""

    @abstractmethod
    def asked(self, name: str) -> list[Command]:
        """What is not answered yet, the oldest first."""

    def answer(self, command: int, text: str) -> None:
        """Say what became of a command: it is asked no more."""
        if not self._answer(command, text):
            raise StateError(f"there is no command {command}")

    @abstractmethod
    def command(self, command: int) -> Command | None: ...

    def interrupt_dead_runs(self) -> list[RunRecord]:
        """Mark runs of this host whose process is gone; which they were.

        When they ended nobody knows, so `finished_at` stays empty. A process that was given the
        pid of a dead one started at another time, and is not taken for it.
        """
        host = socket.gethostname()
        dead = [record for record in self.runs(state="running", limit=None) if record.host == host and _gone(record)]
        # A run that ended between the look and the mark keeps its own ending.
        marked = [replace(record, state="interrupted") for record in dead]
        return [record for record in marked if self._update(record, only_running=True)]

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Safe twice."""

    @abstractmethod
    def _insert(self, record: RunRecord) -> None: ...

    @abstractmethod
    def _forget_agent(self, name: str) -> None: ...

    @abstractmethod
    def _answer(self, command: int, text: str) -> bool:
        """Whether there was such a command."""

    @abstractmethod
    def _update(self, record: RunRecord, *, only_running: bool) -> bool:
        """Replace a run's record; whether there was one to replace."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _gone(record: RunRecord | AgentRecord) -> bool:
    alive = start_of(record.pid)
    return alive is None or bool(record.process and record.process != alive)


def without_keys(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An error's record as it may be stored: key values are for the user's own terminal."""
    return None if error is None else {name: value for name, value in error.items() if name != "keys"}
