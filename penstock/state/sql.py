"""The store in SQL, whatever the medium: runs and events as rows, times in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from penstock.state.base import DEFAULT_LIMIT, AgentRecord, Command, Event, RunRecord, Store, now
from penstock.state.medium import Medium
from penstock.state.migrations import META, MIGRATIONS, Migration, migrate, refuse_newer

_COLUMNS = [field.name for field in fields(RunRecord)]
_LISTED = ", ".join(f'"{name}"' for name in _COLUMNS)
_VALUES = ", ".join(f":{name}" for name in _COLUMNS)
_SETS = ", ".join(f'"{name}" = :{name}' for name in _COLUMNS)
_TIMES = ("started_at", "finished_at")
_AGENT = [field.name for field in fields(AgentRecord)]


class SqlStore(Store):
    def __init__(self, medium: Medium, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._medium = medium
        self._runs = f"{medium.prefix}runs"
        self._events = f"{medium.prefix}events"
        self._agents = f"{medium.prefix}agents"
        self._commands = f"{medium.prefix}commands"
        self._version = self._prepare(migrations)

    @property
    def version(self) -> int:
        return self._version

    def run(self, run_id: str) -> RunRecord | None:
        found = self._query(f"select {_LISTED} from {self._runs} where run_id = :run_id", {"run_id": run_id})
        return self._record(found[0]) if found else None

    def runs(
        self, pipeline: str | None = None, state: str | None = None, limit: int | None = DEFAULT_LIMIT
    ) -> list[RunRecord]:
        asked = {"pipeline": pipeline, "state": state}
        where = " and ".join([f"{name} = :{name}" for name, value in asked.items() if value is not None] or ["1 = 1"])
        query = f"select {_LISTED} from {self._runs} where {where} order by started_at desc, run_id desc"
        values: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if limit is not None:
            query, values = f"{query} limit :limit", values | {"limit": limit}
        return [self._record(row) for row in self._query(query, values)]

    def add_event(self, event: Event) -> None:
        values = {
            "run_id": event.run_id,
            "at": self._medium.stored(event.at),
            "name": event.name,
            "data": json.dumps(dict(event.data)),
        }
        with self._medium.transaction(writes=True) as transaction:
            transaction.execute(
                f"insert into {self._events} (run_id, at, name, data) values (:run_id, :at, :name, :data)", values
            )

    def events(self, run_id: str) -> list[Event]:
        query = f"select run_id, at, name, data from {self._events} where run_id = :run_id order by id"
        return [
            Event(row["run_id"], row["name"], json.loads(row["data"]), self._medium.moment(row["at"]))
            for row in self._query(query, {"run_id": run_id})
        ]

    def tell_agent(self, record: AgentRecord) -> None:
        values = {name: getattr(record, name) for name in _AGENT}
        values |= {"at": self._medium.stored(record.at), "status": json.dumps(dict(record.status))}
        listed, given = ", ".join(_AGENT), ", ".join(f":{name}" for name in _AGENT)
        sets = ", ".join(f"{name} = excluded.{name}" for name in _AGENT if name != "name")
        with self._medium.transaction(writes=True) as transaction:
            transaction.execute(
                f"insert into {self._agents} ({listed}) values ({given}) on conflict (name) do update set {sets}",
                values,
            )

    def agents(self) -> list[AgentRecord]:
        rows = self._query(f"select {', '.join(_AGENT)} from {self._agents} order by name", {})
        return [
            AgentRecord(**dict(row) | {"at": self._medium.moment(row["at"]), "status": json.loads(row["status"])})
            for row in rows
        ]

    def ask(self, name: str, word: str, table: str = "") -> int:
        values = {"name": name, "word": word, "table": table, "at": self._medium.stored(now())}
        with self._medium.transaction(writes=True) as transaction:
            [row] = transaction.query(
                f'insert into {self._commands} (name, word, "table", at)'
                " values (:name, :word, :table, :at) returning id",
                values,
            )
            return int(row["id"])

    def asked(self, name: str) -> list[Command]:
        return self._found("name = :name and answer is null", {"name": name})

    def command(self, command: int) -> Command | None:
        found = self._found("id = :id", {"id": command})
        return found[0] if found else None

    def _found(self, where: str, values: Mapping[str, Any]) -> list[Command]:
        query = f'select id, name, word, "table", answer from {self._commands} where {where} order by id'
        return [Command(**dict(row)) for row in self._query(query, values)]

    def close(self) -> None:
        self._medium.close()

    def _insert(self, record: RunRecord) -> None:
        with self._medium.transaction(writes=True) as transaction:
            transaction.execute(f"insert into {self._runs} ({_LISTED}) values ({_VALUES})", self._values(record))

    def _forget_agent(self, name: str) -> None:
        with self._medium.transaction(writes=True) as transaction:
            transaction.execute(f"delete from {self._agents} where name = :name", {"name": name})

    def _answer(self, command: int, text: str) -> bool:
        with self._medium.transaction(writes=True) as transaction:
            statement = f"update {self._commands} set answer = :answer where id = :id"
            return transaction.execute(statement, {"answer": text, "id": command}) > 0

    def _update(self, record: RunRecord, *, only_running: bool) -> bool:
        statement = f"update {self._runs} set {_SETS} where run_id = :run_id"
        if only_running:
            statement += " and state = 'running'"
        with self._medium.transaction(writes=True) as transaction:
            return transaction.execute(statement, self._values(record)) > 0

    def _prepare(self, migrations: Sequence[Migration]) -> int:
        """The tables at their latest version. The common case, nothing to do, takes no lock."""
        with self._medium.transaction(writes=False) as transaction:
            if self._medium.has_table(transaction, META):
                stored = transaction.query(f"select max(version) as version from {self._medium.prefix}{META}")
                version = stored[0]["version"] or 0
                refuse_newer(version, len(migrations))
                if version == len(migrations):
                    return int(version)
        with self._medium.transaction(writes=True) as transaction:
            self._medium.claim(transaction)
            return migrate(self._medium, transaction, migrations)

    def _query(self, sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        with self._medium.transaction(writes=False) as transaction:
            return transaction.query(sql, values)

    def _values(self, record: RunRecord) -> dict[str, Any]:
        values = {name: getattr(record, name) for name in _COLUMNS}
        values |= {name: self._medium.stored(values[name]) for name in _TIMES if values[name] is not None}
        return values | {"error": None if record.error is None else json.dumps(dict(record.error))}

    def _record(self, row: Mapping[str, Any]) -> RunRecord:
        values = dict(row) | {name: self._medium.moment(row[name]) for name in _TIMES if row[name] is not None}
        return RunRecord(**values | {"error": None if row["error"] is None else json.loads(row["error"])})
