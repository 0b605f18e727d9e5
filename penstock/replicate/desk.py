"""Where an agent says how it is and hears what is asked of it: the state store, which others look into as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import PenstockError, StateError
from penstock.observe import logs
from penstock.replicate.status import Status
from penstock.state.base import AgentRecord, Command, Store

log = logs.Log("replicate")

LOOK_SECONDS = 0.25  # between two looks at what is asked


class Desk:
    """Of one replication. What lies there is for people: without it everything goes on."""

    def __init__(self, name: str, store: Store | None) -> None:
        self._name = name
        self._store = store
        self._looked = 0.0

    def look(self, status: Callable[[], Status], do: Callable[[Command], str]) -> None:
        """Say how it is, and do what somebody asks: within a second."""
        if self._is_due():
            self.say(status())
            self._hear(do, lambda: self.say(status()))

    def wait(self, state: str, told: Mapping[str, Any], do: Callable[[Command], str]) -> None:
        """The same, of an agent that cannot say how its tables are: they are as the last one has told."""
        if self._is_due():
            self.say_only(state, told)
            self._hear(do, lambda: None)  # what it does while it waits, its next word tells

    def say_only(self, state: str, told: Mapping[str, Any]) -> None:
        blank: dict[str, Any] = {"position": None, "tables": [], "lag_bytes": 0, "lag_seconds": 0.0}
        blank |= {"waiting": "", "remedy": "", "held": None, "warnings": []}
        self._tell(state, {**blank, **self.remembered(), **told})

    def remembered(self) -> dict[str, Any]:
        """What the last agent has told; {} if there was none."""
        if self._store is None:
            return {}
        try:
            known = self._store.agent(self._name)
        except StateError as error:
            log.warning("nothing is remembered", replication=self._name, what=error.what, why=error.why)
            return {}
        return dict(known.status) if known is not None else {}

    def _is_due(self) -> bool:
        if self._store is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        return True

    def _hear(self, do: Callable[[Command], str], say: Callable[[], None]) -> None:
        assert self._store is not None  # noqa: S101  asked by the callers
        try:
            for command in self._store.asked(self._name):
                answer = _answer(command, do)
                say()  # first: whoever has asked looks at it next
                self._store.answer(command.id, answer)
        except StateError as error:
            log.warning("nobody can ask", replication=self._name, what=error.what, why=error.why)

    def say(self, status: Status) -> None:
        self._tell(status.state, status.to_record())

    def _tell(self, state: str, record: Mapping[str, Any]) -> None:
        if self._store is None:
            return
        try:
            self._store.tell_agent(AgentRecord(self._name, state, record))
        except StateError as error:
            log.warning("nobody can be told", replication=self._name, what=error.what, why=error.why)


def _answer(command: Command, do: Callable[[Command], str]) -> str:
    try:
        return do(command)
    except PenstockError as error:
        # Nothing of it was done: the next flush goes on as before.
        return f"refused: {error}" + (f"; {error.remedy}" if error.remedy else "")
