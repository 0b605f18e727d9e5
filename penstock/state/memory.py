"""A store that lives as long as its process: for tests and notebooks."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

from penstock.errors import StateError
from penstock.state.base import DEFAULT_LIMIT, AgentRecord, Command, Event, RunRecord, Store

VERSION = 2


class MemoryStore(Store):
    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: dict[str, RunRecord] = {}
        self._events: dict[str, list[Event]] = {}
        self._agents: dict[str, AgentRecord] = {}
        self._commands: list[Command] = []

    @property
    def version(self) -> int:
        return VERSION

    def run(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return self._runs.get(run_id)

    def runs(
        self, pipeline: str | None = None, state: str | None = None, limit: int | None = DEFAULT_LIMIT
    ) -> list[RunRecord]:
        with self._lock:
            found = [r for r in self._runs.values() if pipeline in (None, r.pipeline) and state in (None, r.state)]
        found.sort(key=lambda record: (record.started_at, record.run_id), reverse=True)
        return found[:limit]

    def add_event(self, event: Event) -> None:
        with self._lock:
            self._events.setdefault(event.run_id, []).append(event)

    def events(self, run_id: str) -> list[Event]:
        with self._lock:
            return list(self._events.get(run_id, ()))

    def tell_agent(self, record: AgentRecord) -> None:
        with self._lock:
            self._agents[record.name] = record

    def agents(self) -> list[AgentRecord]:
        with self._lock:
            return [self._agents[name] for name in sorted(self._agents)]

    def ask(self, name: str, word: str, table: str = "") -> int:
        with self._lock:
            self._commands.append(Command(len(self._commands) + 1, name, word, table))
            return len(self._commands)

    def asked(self, name: str) -> list[Command]:
        with self._lock:
            return [one for one in self._commands if one.name == name and one.answer is None]

    def command(self, command: int) -> Command | None:
        with self._lock:
            return self._commands[command - 1] if 0 < command <= len(self._commands) else None

    def close(self) -> None:
        """Nothing is held."""

    def _insert(self, record: RunRecord) -> None:
        with self._lock:
            if record.run_id in self._runs:
                raise StateError(f"run {record.run_id} is known already")
            self._runs[record.run_id] = record

    def _forget_agent(self, name: str) -> None:
        with self._lock:
            self._agents.pop(name, None)

    def _answer(self, command: int, text: str) -> bool:
        with self._lock:
            if not 0 < command <= len(self._commands):
                return False
            self._commands[command - 1] = replace(self._commands[command - 1], answer=text)
            return True

    def _update(self, record: RunRecord, *, only_running: bool) -> bool:
        with self._lock:
            found = self._runs.get(record.run_id)
            if found is None or (only_running and found.state != "running"):
                return False
            self._runs[record.run_id] = record
            return True
