"""The store in SQL: a SQLite file beside the project, or a Postgres that several machines share.

SQLite opens a connection for each statement and closes it again: the file is never held, and a
forked worker inherits nothing. Text of driver errors is shown only after the URL's secrets have
been taken out, and of the URL itself neither its password nor its query.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Engine,
    MetaData,
    NullPool,
    RowMapping,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from penstock.errors import DriverMissing, StateError
from penstock.observe import redact
from penstock.state.base import DEFAULT_LIMIT, Event, RunRecord, Store
from penstock.state.migrations import META, MIGRATIONS, Migration, migrate, prefix, refuse_newer

# Longer than any of our own transactions takes, shorter than patience.
BUSY_SECONDS = 10.0
# An advisory lock that only Penstock's migrations take: "penstock" in ASCII.
MIGRATION_LOCK = 0x70656E73746F636B
POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


class Moment(TypeDecorator[datetime]):
    """A time in UTC: native in Postgres, text that sorts by time in SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DateTime(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        if value is None:
            return None
        return value.astimezone(UTC) if isinstance(value, datetime) else datetime.fromisoformat(value)


METADATA = MetaData()
RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", Text, primary_key=True),
    *(Column(name, Text) for name in ("pipeline", "kind", "state")),
    *(Column(name, Moment) for name in ("started_at", "finished_at")),
    *(Column(name, Text) for name in ("path", "mode", "source", "target")),
    *(Column(name, BigInteger) for name in ("rows", "inserted", "updated", "deleted", "bytes", "partitions")),
    *(Column(name, Text) for name in ("error", "host")),
    Column("pid", BigInteger),
    *(Column(name, Text) for name in ("process", "plan")),
)
EVENTS = Table(
    "events",
    METADATA,
    Column("id", BigInteger, primary_key=True),
    Column("run_id", Text),
    Column("at", Moment),
    Column("name", Text),
    Column("data", Text),
)


class SqlStore(Store):
    def __init__(self, url_or_path: str | Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._where = str(url_or_path)
        if isinstance(url_or_path, str) and "://" in url_or_path and not url_or_path.startswith("sqlite://"):
            self._engine = self._postgres(url_or_path)
        else:
            self._engine = self._sqlite(Path(self._where.removeprefix("sqlite:///")))
        self._version = self._prepare(migrations)

    @property
    def version(self) -> int:
        return self._version

    def run(self, run_id: str) -> RunRecord | None:
        with self._reading() as connection:
            row = connection.execute(select(RUNS).where(RUNS.c.run_id == run_id)).mappings().one_or_none()
        return None if row is None else _record(row)

    def runs(
        self, pipeline: str | None = None, state: str | None = None, limit: int | None = DEFAULT_LIMIT
    ) -> list[RunRecord]:
        query = select(RUNS).order_by(RUNS.c.started_at.desc(), RUNS.c.run_id.desc()).limit(limit)
        if pipeline is not None:
            query = query.where(RUNS.c.pipeline == pipeline)
        if state is not None:
            query = query.where(RUNS.c.state == state)
        with self._reading() as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def add_event(self, event: Event) -> None:
        values = {"run_id": event.run_id, "at": event.at, "name": event.name, "data": json.dumps(dict(event.data))}
        with self._writing() as connection:
            connection.execute(insert(EVENTS).values(values))

    def events(self, run_id: str) -> list[Event]:
        query = select(EVENTS).where(EVENTS.c.run_id == run_id).order_by(EVENTS.c.id)
        with self._reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [Event(row["run_id"], row["name"], json.loads(row["data"]), row["at"]) for row in rows]

    def close(self) -> None:
        self._engine.dispose()

    def _insert(self, record: RunRecord) -> None:
        with self._writing() as connection:
            connection.execute(insert(RUNS).values(_columns(record)))

    def _update(self, record: RunRecord, *, only_running: bool) -> bool:
        statement = update(RUNS).where(RUNS.c.run_id == record.run_id).values(_columns(record))
        if only_running:
            statement = statement.where(RUNS.c.state == "running")
        with self._writing() as connection:
            return connection.execute(statement).rowcount > 0

    # ---------------------------------------------------------------- opening

    def _sqlite(self, path: Path) -> Engine:
        path = path.expanduser().absolute()
        self._where = str(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from error
        engine = create_engine(
            URL.create("sqlite", database=str(path)), poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS}
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _postgres(self, given: str) -> Engine:
        redact.register_fields({"url": given})
        try:
            url: URL | None = make_url(given)
        except (ArgumentError, ValueError):
            # The cause is dropped: a password with a slash in it is read as a port, and shown.
            url = None
        if url is None:
            raise StateError("the state store's URL cannot be read", remedy="like postgresql://user@host/db")
        if url.drivername not in POSTGRES:
            raise StateError(
                f"a state store cannot be a {url.drivername!r}",
                remedy="a file, memory:, or postgresql://user@host/db",
            )
        self._where = url.set(query={}).render_as_string(hide_password=True)
        try:
            engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                pool_size=1,
                pool_pre_ping=True,
                connect_args={"application_name": "penstock:state", "connect_timeout": int(BUSY_SECONDS)},
                execution_options={"schema_translate_map": {None: "penstock_state"}},
            )
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise DriverMissing(
                "the driver of the Postgres state store is not installed",
                why=str(error),
                remedy="pip install 'penstock[postgres]'",
            ) from error
        return engine

    def _prepare(self, migrations: Sequence[Migration]) -> int:
        """The tables at their latest version. The common case, nothing to do, takes no lock."""
        with self._reading() as connection:
            schema = prefix(connection).rstrip(".") or None
            if inspect(connection).has_table(META, schema=schema):
                stored = connection.execute(text(f"select max(version) from {prefix(connection)}{META}")).scalar() or 0
                refuse_newer(stored, len(migrations))
                if stored == len(migrations):
                    return int(stored)
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            return migrate(connection, migrations)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        # SQLite: a transaction that begins as a reader and then writes is refused at once when
        # another process wrote in between; one that begins as a writer waits for its turn.
        engine = self._engine.execution_options(penstock_writes=True)
        with self._errors(), engine.begin() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise StateError("the run is known already", why=_first_line(error.orig)) from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._unusable(_first_line(getattr(error, "orig", None) or error)) from error

    def _unusable(self, why: str) -> StateError:
        if "not a database" in why or "malformed" in why:
            remedy = "move the file away: a new one is made; what was loaded is recorded in the targets themselves"
        elif self._engine_is_postgres():
            remedy = "check that the server answers and that the user may create the schema penstock_state"
        else:
            remedy = "make its folder writable, or choose another place: [state] path = … in penstock.toml"
        return StateError(f"the state store {self._where} cannot be used", why=why, remedy=remedy)

    def _engine_is_postgres(self) -> bool:
        return "://" in self._where


def _first_line(error: object) -> str:
    return redact.redact((str(error).strip().splitlines() or [type(error).__name__])[0])


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # We begin transactions ourselves: Python's own begin would leave DDL outside of them.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"pragma busy_timeout = {int(BUSY_SECONDS * 1000)}")
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = normal")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("penstock_writes", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


def _columns(record: RunRecord) -> dict[str, Any]:
    columns = {field.name: getattr(record, field.name) for field in fields(record)}
    return columns | {"error": None if record.error is None else json.dumps(dict(record.error))}


def _record(row: RowMapping) -> RunRecord:
    return RunRecord(**{**row, "error": None if row["error"] is None else json.loads(row["error"])})
