"""A bench for the DuckDB backend without Spark: files in a folder, and loads by hand."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.backends.base import (
    RAW,
    STAGED,
    Execute,
    LoadPlan,
    ReadRequest,
    RunContext,
    Source,
    StagedColumn,
    TableLoad,
)
from penstock.backends.duckdb import DuckDBBackend, DuckDBConfig
from penstock.schema import Column, ColumnDef, CreateTable, Schema, TableName

BACKEND = DuckDBBackend()
INTS = [Column("id", pa.int64())]


@dataclass
class Files:
    """Two files in a folder, and runs between them without Spark."""

    folder: Path
    lock_timeout: float = 10

    def config(self, name: str, **options: object) -> DuckDBConfig:
        path = str(self.folder / f"{name}.duckdb")
        return DuckDBConfig.model_validate({"path": path, "name": name, "lock_timeout": self.lock_timeout, **options})

    def sql(self, name: str, *statements: str) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        with duckdb.connect(str(self.folder / f"{name}.duckdb")) as connection:
            connection.execute("set TimeZone = 'UTC'")
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def run(self, pipeline: str = "orders") -> RunContext:
        return RunContext(uuid.uuid4().hex, pipeline, self.folder / "unused")

    def source(self, name: str = "source", **request: object) -> Source:
        made = {"table": TableName(None, "t")} if "query" not in request else {}
        return BACKEND.source(self.config(name), ReadRequest(**(made | request)), self.run())  # type: ignore[arg-type]  # fields by name

    def plan(self, columns: Sequence[Column], run: RunContext | None = None, table: str = "t") -> LoadPlan:
        """Create the table if it is not there, and append."""
        run = run or self.run()
        target = BACKEND.target(self.config("target"), run)
        name = target.qualify(TableName(None, table))
        existing = target.inspect(name)
        staged = tuple(
            StagedColumn(c.name, c, target.native(c, existing.column(c.name) if existing else None, None))
            for c in columns
        )
        quote = target.dialect.quote
        decoded = ", ".join(
            f"{s.native.decode.replace('{}', quote(s.column.name))} as {quote(s.column.name)}" for s in staged
        )
        names = ", ".join(quote(s.column.name) for s in staged)
        create = CreateTable(name, tuple(ColumnDef(s.column.name, s.native.sql) for s in staged))
        steps = [Execute(sql) for sql in (target.render(create) if existing is None else [])]
        steps.append(Execute(f"create temp view {STAGED} as select {decoded} from {RAW}"))
        into = f"insert into {target.dialect.relation(name)} ({names}) select {names} from {STAGED}"
        steps.append(Execute(into, "inserted"))
        watermark, continues = json.dumps({"run": run.run_id}), target.watermark(run.pipeline, name)
        return LoadPlan(run, (TableLoad(name, staged, tuple(steps)),), watermark, continues)

    def copy(self, schema: Schema, source: Source, want: int = 1) -> LoadPlan:
        plan = self.plan(list(schema))
        load = BACKEND.target(self.config("target"), plan.run).begin(plan)
        try:
            split = source.partitions(list(schema), want)
            sink = pickle.loads(pickle.dumps(load.sink(0)))  # noqa: S301  as Spark carries it
            parts = pickle.loads(pickle.dumps(split.partitions))  # noqa: S301  our own, just pickled
            receipts = [sink.write(number, part.read()) for number, part in enumerate(parts)]
            source.close()
            load.commit(receipts)
        finally:
            load.close()
        return plan

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if ".penstock" in path.name)


def ints(*values: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": pa.array(values, pa.int64())})


def rows_of(batches: Iterator[pa.RecordBatch], name: str) -> list[object]:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def load_batches(files: Files, columns: Sequence[Column], *batches: pa.RecordBatch) -> LoadPlan:
    plan = files.plan(columns)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    try:
        load.commit([load.sink(0).write(0, iter(batches))])
    finally:
        load.close()
    return plan


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)
