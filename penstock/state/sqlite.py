"""The store's tables in a SQLite file, beside the project by default.

A connection is opened for each transaction and closed again: the file is never held, and a forked
worker inherits nothing. Straight through Python's own sqlite3: every command asks the history, and
SQLAlchemy's import alone would take longer than the answer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.state.medium import BUSY_SECONDS, Medium, Transaction, first_line


class SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Mapping[str, Any] | None = None) -> int:
        return self._connection.execute(sql, values or {}).rowcount

    def query(self, sql: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(sql, values or {})]


class SqliteMedium(Medium):
    prefix = ""
    moment_type = "text"
    serial_type = "integer"
    remedy = "make its folder writable, or choose another place: [state] path = … in penstock.toml"

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()
        super().__init__(str(self._path))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.unusable(error.strerror or type(error).__name__) from error

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[Transaction]:
        try:
            # We begin transactions ourselves: Python's own begin would leave DDL outside of them.
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("pragma journal_mode = wal")
                connection.execute("pragma synchronous = normal")
                # One that begins as a reader and then writes is refused at once when another process
                # wrote in between; one that begins as a writer waits for its turn.
                connection.execute("begin immediate" if writes else "begin")
                yield SqliteTransaction(connection)
                # Closed without this, on any way out, it is rolled back.
                connection.execute("commit")
        except sqlite3.IntegrityError as error:
            raise self.known_already(error) from error
        except sqlite3.Error as error:
            raise self.unusable(first_line(error)) from error

    def has_table(self, transaction: Transaction, name: str) -> bool:
        return bool(transaction.query("select 1 from sqlite_master where name = :name", {"name": name}))

    def claim(self, transaction: Transaction) -> None:
        """A transaction that writes is alone already."""

    def stored(self, moment: datetime) -> Any:
        """Text that sorts by time."""
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def moment(self, stored: Any) -> datetime:
        return datetime.fromisoformat(stored)

    def close(self) -> None:
        """Nothing is held."""
