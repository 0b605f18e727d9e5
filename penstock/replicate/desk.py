"""Where an agent says how it is and hears what is asked of it: the state store, which others look into as well."""

from __future__ import annotations

import time
from collections.abc import Callable

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
        if self._store is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.say(status())
        try:
            for command in self._store.asked(self._name):
                self._store.answer(command.id, _answer(command, do))
        except StateError as error:
            log.warning("nobody can ask", replication=self._name, what=error.what, why=error.why)

    def say(self, status: Status) -> None:
        if self._store is None:
            return
        try:
            self._store.tell_agent(AgentRecord(status.name, status.state, status.to_record()))
        except StateError as error:
            log.warning("nobody can be told", replication=self._name, what=error.what, why=error.why)


def _answer(command: Command, do: Callable[[Command], str]) -> str:
    try:
        return do(command)
    except PenstockError as error:
        # Nothing of it was done: the next flush goes on as before.
        return f"refused: {error}" + (f"; {error.remedy}" if error.remedy else "")
