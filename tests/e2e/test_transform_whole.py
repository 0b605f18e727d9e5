"""A transform that fails half way gives all rows after a retry, or an error: never fewer rows.

Spark closes a worker's input when what is before it fails, and to the worker that reads like the
end of its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.base import Partition, Receipt, RunContext
from penstock.backends.staging import StagingArea
from penstock.engine import session
from penstock.engine.transform import transform
from penstock.errors import TransformError
from penstock.schema import Column, Schema
from tests.e2e.spark_parts import LOST, WIRE, Numbers

pytestmark = pytest.mark.spark

ROWS = 300_000  # several batches, so that some have reached the sink before the failure
NUMBERS = Schema.of([Column("id", pa.int64()), Column("label", pa.string())])
CONFIG = SimpleNamespace(
    master="local[2]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)


@dataclass(frozen=True)
class Breaking(Partition):
    """`ROWS` rows; the link is lost after most of them, until `once` exists."""

    once: Path

    def read(self) -> Iterator[pa.RecordBatch]:
        yield from Numbers(0, ROWS - 50_000).read()
        if not self.once.exists():
            self.once.touch()
            raise LOST
        yield from Numbers(ROWS - 50_000, ROWS).read()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return session.spark(CONFIG, tmp_path_factory.mktemp("project"))


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    return RunContext(uuid.uuid4().hex, "p", tmp_path / "tasks", batch_rows=20_000)


@pytest.fixture
def area(tmp_path: Path, run: RunContext) -> Iterator[StagingArea]:
    made = StagingArea.create(tmp_path / "staging", run)
    yield made
    made.close()


def staged(area: StagingArea, receipts: list[Receipt]) -> list[int]:
    tables = [pq.read_table(path) for path in area.files(0, receipts)]
    return sorted(number for table in tables for number in table.column("id").to_pylist())


def write(plan: Any, area: StagingArea, run: RunContext) -> list[Receipt]:
    made: list[Receipt] = plan.write(area.sink(0, [wire for _, wire in WIRE]), WIRE, run)
    return made


@pytest.mark.parametrize("bad", [ROWS - 1, 0], ids=["the last row", "the first row"])
def test_a_value_that_fails_late_fails_the_load(spark: Any, run: RunContext, area: StagingArea, bad: int) -> None:
    sql = f"select id + cast(1 / (id - {bad}) as bigint) * 0 as id, label from source"
    plan = transform(spark, [Numbers(0, ROWS)], NUMBERS, sql, run)
    with pytest.raises(TransformError, match="DIVIDE_BY_ZERO"):
        write(plan, area, run)


def test_a_function_that_fails_late_fails_the_load(spark: Any, run: RunContext, area: StagingArea) -> None:
    from pyspark.sql.functions import udf

    last = str(ROWS - 1)

    def picky(label: str) -> str:
        if label == last:
            raise ValueError
        return label

    def apply(frame: Any) -> Any:
        return frame.select("id", udf(picky, "string")("label").alias("label"))

    plan = transform(spark, [Numbers(0, ROWS)], NUMBERS, apply, run)
    with pytest.raises(TransformError) as raised:
        write(plan, area, run)
    assert raised.value.why == "ValueError"


@pytest.mark.parametrize("sql", ["select * from source", "select id, max(label) as label from source group by id"])
def test_a_link_lost_half_way_gives_every_row_once(
    spark: Any, run: RunContext, area: StagingArea, tmp_path: Path, sql: str
) -> None:
    plan = transform(spark, [Breaking(tmp_path / "lost"), Numbers(ROWS, ROWS + 10)], NUMBERS, sql, run)
    receipts = write(plan, area, run)
    assert (tmp_path / "lost").exists()
    assert sum(receipt.rows for receipt in receipts) == ROWS + 10
    assert staged(area, receipts) == list(range(ROWS + 10))


@pytest.mark.parametrize(("tasks", "parts"), [(1, 1), (None, 2), (8, 2)])
def test_no_more_tasks_write_than_are_allowed(
    spark: Any, run: RunContext, area: StagingArea, tasks: int | None, parts: int
) -> None:
    pieces = [Numbers(0, 10), Numbers(10, 20), Numbers(20, 30), Numbers(30, 40)]
    plan = transform(spark, pieces, NUMBERS, "select * from source", run, tasks)
    receipts = write(plan, area, run)
    assert len(receipts) == parts
    assert staged(area, receipts) == list(range(40))
