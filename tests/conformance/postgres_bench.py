"""A bench for the Postgres backend on a real server, without Spark: databases of a test's own, and a load by hand."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.backends.base import (
    Execute,
    Load,
    LoadPlan,
    LoadResult,
    ReadRequest,
    Receipt,
    RunContext,
    Source,
    StagedColumn,
    TableLoad,
    Window,
)
from penstock.backends.postgres import PostgresBackend, PostgresConfig
from penstock.backends.postgres.write import PostgresTarget
from penstock.schema import ColumnDef, CreateTable, TableName
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import PostgresHarness
from tests.conformance.values import POSTGRES_SETUP

BACKEND = PostgresBackend()


def new_run() -> RunContext:
    return RunContext(uuid.uuid4().hex, "test", Path("unused"))


class Database(PostgresHarness):
    """One database of the test's own, for tests that speak to the backend itself."""

    @property
    def config(self) -> PostgresConfig:
        return PostgresConfig(name="db", dsn=self.dsn)


def numbered(db: Database, rows: int, table: str = "t") -> None:
    db.execute(
        f"create table {table} (id int primary key, v text)",
        f"insert into {table} select n, repeat('x', 100) || n from generate_series(1, {rows}) n",
    )


def read_all(source: Source, want: int = 1, window: Window | None = None) -> pa.Table:
    schema = source.schema()
    batches = []
    for partition in source.partitions(list(schema), want, window).partitions:
        batches += list(pickle.loads(pickle.dumps(partition)).read())  # noqa: S301  our own object
    for batch in batches:
        assert batch.schema.equals(schema.arrow())
    return pa.Table.from_batches(batches, schema.arrow())


@dataclass
class Bench:
    """Copies a table from one database into another as the load planner and the engine would."""

    source: Source
    target: PostgresTarget
    table: TableName
    run: RunContext
    key: tuple[str, ...] = ("id",)
    exists: bool = False
    adopt: bool = False

    def columns(self, texts: tuple[str, ...] = ()) -> list[StagedColumn]:
        wanted = [c.as_text() if c.name in texts else c for c in self.source.schema()]
        existing = self.target.inspect(self.table)
        return [
            StagedColumn(c.name, c, self.target.native(c, existing.column(c.name) if existing else None, None))
            for c in wanted
        ]

    def plan(self, columns: list[StagedColumn]) -> LoadPlan:
        quote = self.target.dialect.quote
        made = CreateTable(
            self.target.qualify(self.table), tuple(ColumnDef(s.column.name, s.native.sql) for s in columns)
        )
        ddl = [] if self.exists else [*(d for s in columns for d in s.native.ddl), made]
        staged = ", ".join(
            f"{s.native.decode.replace('{}', quote(s.column.name))} as {quote(s.column.name)}" for s in columns
        )
        names = ", ".join(quote(s.column.name) for s in columns)
        steps = [
            *(Execute(line) for item in ddl for line in self.target.render(item)),
            Execute(f"create temporary view _penstock_staged as select {staged} from _penstock_raw"),
            Execute(
                f"insert into {self.target.dialect.relation(made.table)} ({names}) select {names}"
                " from _penstock_staged",
                counts="inserted",
            ),
        ]
        adopt = (made,) if self.adopt else ()
        loading = TableLoad(made.table, tuple(columns), () if adopt else tuple(steps), adopt=adopt, lock=self.exists)
        continues = self.target.watermark(self.run.pipeline, made.table)
        return LoadPlan(self.run, (loading,), '{"at": 1}', continues, self.key)

    def begin(self, columns: list[StagedColumn] | None = None) -> tuple[Load, list[StagedColumn]]:
        staged = columns or self.columns()
        return self.target.begin(self.plan(staged)), staged

    def stage(self, loading: Load, columns: list[StagedColumn], want: int = 1) -> list[Receipt]:
        pieces = self.source.partitions([s.column for s in columns], want).partitions
        sink = pickle.loads(pickle.dumps(loading.sink(0)))  # noqa: S301  our own object
        return [sink.write(number, piece.read()) for number, piece in enumerate(pieces)]

    def load(self, columns: list[StagedColumn] | None = None, want: int = 1) -> LoadResult:
        loading, staged = self.begin(columns)
        try:
            return loading.commit(self.stage(loading, staged, want))
        except BaseException:  # as a run does, for Ctrl-C too
            loading.abort()
            raise
        finally:
            loading.close()


@pytest.fixture(scope="module")
def database(postgres_server: EmbeddedPostgres) -> Callable[[], Database]:
    def make() -> Database:
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return Database(postgres_server.dsn_of(name))

    return make


@pytest.fixture(scope="module")
def typed(database: Callable[[], Database]) -> tuple[Database, Database]:
    """Two databases with the same extensions and types, for tables of the tests' own."""
    pair = database(), database()
    for made in pair:
        made.execute(*POSTGRES_SETUP)
    return pair


@pytest.fixture
def db(database: Callable[[], Database]) -> Database:
    return database()


@pytest.fixture
def opened() -> Iterator[Callable[..., Source]]:
    """Opens sources, and closes them when the test ends."""
    sources: list[Source] = []

    def make(db: Database, query: str = "", table: str = "", **rest: Any) -> Source:
        request = ReadRequest(TableName.parse(table) if table else None, query or None, **rest)
        sources.append(BACKEND.source(db.config, request, new_run()))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


@pytest.fixture
def bench(opened: Callable[..., Source]) -> Iterator[Callable[..., Bench]]:
    targets: list[PostgresTarget] = []

    def make(source: Database, target: Database, table: str = "t", **rest: Any) -> Bench:
        run = new_run()
        targets.append(PostgresTarget(target.config, run))
        name = TableName("public", table)
        reading = opened(source, table=str(name), keys=("id",))
        return Bench(reading, targets[-1], name, run, **rest)

    yield make
    for made in targets:
        made.close()
