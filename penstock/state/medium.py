"""Where a SQL store keeps its tables: what the store and its migrations need of a database.

Statements are plain SQL that SQLite and Postgres both read, with `:name` for values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from penstock.errors import StateError
from penstock.observe import redact

# Longer than any of our own transactions takes, shorter than patience.
BUSY_SECONDS = 10.0


class Transaction(ABC):
    """Statements that happen together or not at all."""

    @abstractmethod
    def execute(self, sql: str, values: Mapping[str, Any] | None = None) -> int:
        """Run a statement; how many rows it touched."""

    @abstractmethod
    def query(self, sql: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]: ...


class Medium(ABC):
    prefix: str  # before the name of every table
    moment_type: str  # of a column that holds a time
    serial_type: str  # of a column that numbers its rows
    remedy: str  # what to do when it cannot be used

    def __init__(self, where: str) -> None:
        self.where = where  # as it may be shown: never with a secret

    @abstractmethod
    def transaction(self, *, writes: bool) -> AbstractContextManager[Transaction]:
        """Errors of the driver come out as `StateError`."""

    @abstractmethod
    def has_table(self, transaction: Transaction, name: str) -> bool: ...

    @abstractmethod
    def claim(self, transaction: Transaction) -> None:
        """Keep other processes from changing the tables until the transaction ends."""

    @abstractmethod
    def stored(self, moment: datetime) -> Any:
        """A time as the medium keeps it."""

    @abstractmethod
    def moment(self, stored: Any) -> datetime:
        """The time in UTC that was stored."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Safe twice."""

    def known_already(self, error: object) -> StateError:
        return StateError("the run is known already", why=first_line(error), kept="nothing in the history was changed")

    def unusable(self, why: str) -> StateError:
        remedy = self.remedy
        if "not a database" in why or "malformed" in why:
            remedy = "move the file away: a new one is made; what was loaded is recorded in the targets themselves"
        return StateError(f"the state store {self.where} cannot be used", why=why, remedy=remedy)


def first_line(error: object) -> str:
    """The first line of a driver's error, without secrets."""
    return redact.redact((str(error).strip().splitlines() or [type(error).__name__])[0])
