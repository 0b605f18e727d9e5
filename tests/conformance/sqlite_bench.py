"""A bench for the SQLite backend without Spark: a file, reads of it, and a process that holds it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.base import ReadRequest, RunContext, Source, Window
from penstock.backends.sqlite import SQLiteBackend, SQLiteConfig
from penstock.schema import TableName
from tests.conformance.harness import Flow, SQLiteHarness

BACKEND = SQLiteBackend()


@dataclass
class Bench:
    """A source file and a target file in a folder."""

    folder: Path
    source: SQLiteHarness
    target: SQLiteHarness
    lock_timeout: float = 10

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = self.source.query(statement)
        return rows

    def config(self, **options: Any) -> SQLiteConfig:
        known = {"path": str(self.source.path), "name": "file", "lock_timeout": self.lock_timeout}
        return SQLiteConfig.model_validate(known | options)

    def run(self) -> RunContext:
        return RunContext(uuid.uuid4().hex, "p", self.folder / ".penstock" / "staging")

    def open(self, **request: Any) -> Source:
        made = {"table": TableName(None, "t")} if "query" not in request else {}
        return BACKEND.source(self.config(), ReadRequest(**(made | request)), self.run())

    def read(self, window: Window | None = None, **request: Any) -> pa.Table:
        with closing(self.open(**request)) as source:
            schema = source.schema()
            parts = pickle.loads(pickle.dumps(source.partitions(list(schema), 1, window).partitions))  # noqa: S301
            batches = [batch for part in parts for batch in part.read()]
            return pa.Table.from_batches(batches, pa.schema([(column.name, column.type) for column in schema]))

    def rows(self, window: Window | None = None, **request: Any) -> list[tuple[Any, ...]]:
        table = self.read(window, **request)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []

    def ids(self, window: Window) -> list[int]:
        ids: list[int] = self.read(window).column("id").to_pylist()
        return ids

    def types(self, **request: Any) -> dict[str, str]:
        with closing(self.open(**request)) as source:
            return {column.name: str(column.type) for column in source.schema()}

    def flow(self) -> Flow:
        return Flow(self.source, self.target, self.folder)


@pytest.fixture
def sqlite(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SQLiteHarness(tmp_path / "source.db"), SQLiteHarness(tmp_path / "target.db"))


@contextmanager
def holding(path: Path, *statements: str) -> Iterator[Callable[[], None]]:
    """Another process that has run the statements and waits; call what is given to end it by SIGKILL."""
    code = (
        "import sys\nfrom adbc_driver_sqlite import dbapi\n"
        f"connection = dbapi.connect({str(path)!r}, autocommit=True)\n"
        f"for statement in {statements!r}:\n"
        "    cursor = connection.cursor(); cursor.execute(statement); cursor.fetchall(); cursor.close()\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"

        def kill() -> None:
            holder.kill()
            holder.wait(20)

        yield kill
        if holder.poll() is None:
            holder.stdin.close()
            holder.wait(20)
