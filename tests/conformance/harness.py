"""What a backend brings to inherit every test of the suite: start, seed, read back."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from penstock.backends import registry
from penstock.backends.base import Capabilities
from penstock.backends.memory import memory
from penstock.errors import UNTOUCHED, Unsupported
from penstock.project import Project
from penstock.project.model import Pipeline
from penstock.run.pipeline import RunOptions, Stage, plan, run
from penstock.run.records import PipelinePlan
from penstock.state import RunRecord, open_store
from tests.faults.bare import stage_here


class Harness(ABC):
    """One database of one backend, of the test's own."""

    backend: ClassVar[str]
    schema: ClassVar[str]  # where unqualified tables go
    decimals_hold_nan: ClassVar[bool] = False
    negative_zero: ClassVar[bool] = True  # floats keep its sign
    hashes: ClassVar[bool] = True  # `row_hash` is filled

    @property
    def capabilities(self) -> Capabilities:
        return registry.backend(self.backend).capabilities

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The connection's options, as in penstock.toml."""

    @abstractmethod
    def execute(self, *statements: str) -> None: ...

    @abstractmethod
    def query(self, sql: str) -> list[tuple[Any, ...]]: ...

    def leftovers(self) -> list[str]:
        """Staging that a finished or dead run has left."""
        return []

    def has_table(self, table: str) -> bool:
        return bool(
            self.query(
                "select 1 from information_schema.tables"
                f" where table_schema = '{self.schema}' and table_name = '{table}'"
            )
        )

    def columns(self, table: str) -> list[str]:
        rows = self.query(
            "select column_name from information_schema.columns"
            f" where table_schema = '{self.schema}' and table_name = '{table}' order by ordinal_position"
        )
        return [row[0] for row in rows]

    def rows(self, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        return self.query(f"select * from {table} order by {order}")


class PostgresHarness(Harness):
    backend = "postgres"
    schema = "public"
    decimals_hold_nan = True

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def options(self) -> dict[str, Any]:
        return {"type": "postgres", "dsn": self.dsn}

    def execute(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def leftovers(self) -> list[str]:
        tables = self.query("select relname from pg_class where relname ~ '^s_[0-9a-f]{32}' and relkind = 'r'")
        names = [row[0] for row in tables]
        if self.query("select to_regclass('_penstock.receipts')")[0][0]:
            names += [f"receipt of {row[0]}" for row in self.query("select distinct run from _penstock.receipts")]
            names += [f"lease of {row[0]}" for row in self.query("select run from _penstock.leases")]
        return names


class DuckDBHarness(Harness):
    backend = "duckdb"
    schema = "main"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute()  # the file exists from the start, as a server's database does

    def options(self) -> dict[str, Any]:
        return {"type": "duckdb", "path": str(self.path)}

    def execute(self, *statements: str) -> None:
        import duckdb

        with duckdb.connect(str(self.path)) as connection:
            connection.execute("set timezone = 'UTC'")
            for statement in statements:
                connection.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        import duckdb

        with duckdb.connect(str(self.path)) as connection:
            connection.execute("set timezone = 'UTC'")
            return connection.execute(sql).fetchall()

    def leftovers(self) -> list[str]:
        folder = Path(f"{self.path}.penstock")
        return [entry.name for entry in folder.iterdir()] if folder.exists() else []


class InMemoryDuckDBHarness(Harness):
    """A database of this process, which no worker can open."""

    backend = "duckdb"
    schema = "main"

    def __init__(self, name: str, staging: Path) -> None:
        self.name = name
        self._staging = staging

    def options(self) -> dict[str, Any]:
        return {"type": "duckdb", "path": f":memory:{self.name}"}

    def execute(self, *statements: str) -> None:
        from penstock.backends.duckdb import database

        with database(self.name) as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        from penstock.backends.duckdb import database

        with database(self.name) as cursor:
            return cursor.execute(sql).fetchall()

    def leftovers(self) -> list[str]:
        return left_in_project(self._staging)


def left_in_project(root: Path) -> list[str]:
    """What a run has left in the project's own staging."""
    folders = [root / ".penstock" / "staging" / name for name in ("read", "write")]
    return [entry.name for folder in folders if folder.exists() for entry in folder.iterdir()]


class MemoryHarness(Harness):
    """A store of this process. It runs no SQL: a DuckDB reads its tables, and makes those that are seeded."""

    backend = "memory"
    schema = "main"

    def __init__(self, name: str, staging: Path) -> None:
        self.store = memory(name)
        self._staging = staging

    def options(self) -> dict[str, Any]:
        return {"type": "memory", "store": self.store.name}

    def execute(self, *statements: str) -> None:
        with self._database() as database:
            for statement in statements:
                database.execute(statement)
            tables = database.execute("select schema_name, table_name from duckdb_tables()").fetchall()
            for schema, table in tables:
                quoted = f'"{schema}"."{table}"'
                self.store[quoted] = database.sql(f"from {quoted}").to_arrow_table()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._database() as database:
            return database.execute(sql).fetchall()

    @contextmanager
    def _database(self) -> Iterator[Any]:
        import duckdb

        with duckdb.connect(":memory:") as database:
            database.execute("set timezone = 'UTC'; set arrow_lossless_conversion = true")
            for name in self.store.names():
                database.register("held", self.store[str(name)])
                quoted = ".".join(f'"{part}"' for part in name.parts)
                database.execute(f'create schema if not exists "{name.schema or "main"}"')
                database.execute(f"create table {quoted} as from held")
                database.unregister("held")
            yield database

    def leftovers(self) -> list[str]:
        return left_in_project(self._staging)


class SQLiteHarness(Harness):
    """Through the backend's own library: a second one in the process would drop the first one's locks."""

    backend = "sqlite"
    schema = "main"
    negative_zero = False
    hashes = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute("create table made (a)", "drop table made")  # the file exists from the start

    def options(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": str(self.path)}

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.query(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("pragma busy_timeout = 10000")
            cursor.fetchall()
            cursor.execute(sql.replace("_penstock.", "_penstock_"))  # it has no schemas
            return cursor.fetchall()

    def _connect(self) -> Any:
        from adbc_driver_sqlite import dbapi

        return dbapi.connect(f"file:{quote(str(self.path))}", autocommit=True)

    def leftovers(self) -> list[str]:
        folder = Path(f"{self.path}.penstock")
        return [entry.name for entry in folder.iterdir()] if folder.exists() else []

    def has_table(self, table: str) -> bool:
        return bool(self.query(f"select 1 from sqlite_schema where type = 'table' and name = '{table}'"))

    def columns(self, table: str) -> list[str]:
        return [row[0] for row in self.query(f"select name from pragma_table_xinfo('{table}')")]


class InMemorySQLiteHarness(SQLiteHarness):
    """A database of this process, which no worker can open."""

    def __init__(self, name: str, staging: Path) -> None:
        self.name = name
        self._staging = staging

    def options(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": f":memory:{self.name}"}

    def _connect(self) -> Any:
        from penstock.backends.sqlite import database

        return database(self.name)

    def leftovers(self) -> list[str]:
        return left_in_project(self._staging)


class Flow:
    """A source, a target and one pipeline between them, run as a user's would be.

    The partitions are staged in this process unless Spark is the point: the same partitions, sinks
    and commits, several times as fast.
    """

    def __init__(self, source: Harness, target: Harness, root: Path, stage: Stage = stage_here) -> None:
        self.source = source
        self.target = target
        self.root = root
        self.stage = stage
        self.store = open_store("memory:")
        self.name = f"p{uuid.uuid4().hex[:8]}"

    def pipeline(self, **options: Any) -> Pipeline:
        defaults: dict[str, Any] = {
            "name": self.name,
            "source": "from_",
            "target": f"to.{self.target.schema}.items",
            "mode": "append",
            "place": "test",
        }
        if not {"query", "tables", "table"} & options.keys():
            defaults["table"] = f"{self.source.schema}.items"
        return Pipeline.model_validate(defaults | options)

    def project(self, pipeline: Pipeline) -> Project:
        return Project.from_objects(
            self.root,
            connections={"from_": self.source.options(), "to": self.target.options()},
            pipelines=[pipeline],
        )

    def plan(self, **options: Any) -> PipelinePlan:
        pipeline = self.pipeline(**options)
        [planned] = plan(self.project(pipeline), pipeline)
        return planned

    def run(self, run_options: RunOptions | None = None, **options: Any) -> RunRecord:
        pipeline = self.pipeline(**options)
        return run(self.project(pipeline), pipeline, self.store, run_options, stage=self.stage)[-1]

    def run_all(self, **options: Any) -> list[RunRecord]:
        pipeline = self.pipeline(**options)
        return run(self.project(pipeline), pipeline, self.store, stage=self.stage)


class RefusedAsDenied(Exception):
    """What a test is about is denied by a backend's capabilities, and was refused with the right error."""


class Inherited(Flow):
    """A flow of a backend that inherits tests: what its capabilities deny must be refused, and ends the test."""

    def plan(self, **options: Any) -> PipelinePlan:
        self._end_if_denied(**options)
        return super().plan(**options)

    def run(self, run_options: RunOptions | None = None, **options: Any) -> RunRecord:
        self._end_if_denied(**options)
        return super().run(run_options, **options)

    def run_all(self, **options: Any) -> list[RunRecord]:
        self._end_if_denied(**options)
        return super().run_all(**options)

    def _end_if_denied(self, **options: Any) -> None:
        if self._denied(self.pipeline(**options)):
            with pytest.raises(Unsupported) as caught:
                super().run_all(**options)
            assert caught.value.kept == UNTOUCHED
            raise RefusedAsDenied

    def _denied(self, pipeline: Pipeline) -> bool:
        source, target = self.source.capabilities, self.target.capabilities
        sql = (pipeline.transforms_post, pipeline.order_by, pipeline.delete_scope)
        return (
            pipeline.mode not in target.modes
            or (pipeline.deletes != "none" and pipeline.deletes not in target.deletes)
            or (any(sql) and not target.user_sql)
            or (pipeline.event_time is not None and not target.event_time)
            or (pipeline.ttl is not None and not target.ttl)
            or (pipeline.incremental is not None and not source.incremental)
            or (pipeline.query is not None and not source.queries)
        )


Maker = Callable[[], Harness]
