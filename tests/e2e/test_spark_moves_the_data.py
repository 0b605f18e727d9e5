"""It is Spark that moves the data: tasks and worker processes, while the driver stays small."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.backends.base import Receipt
from penstock.run import pipeline as runs
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

ROWS = 1_000_000


@pytest.fixture
def large(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    source = harness("postgres")
    source.execute(
        "create table items (id bigint primary key, name text, price numeric(38,12))",
        f"insert into items select n, 'name ' || n, n / 7.0 from generate_series(1, {ROWS}) as n",
    )
    return Flow(source, harness("duckdb"), tmp_path)


def test_a_million_rows_run_in_several_tasks_and_workers_and_never_reach_the_driver(large: Flow) -> None:
    from pyspark.sql import SparkSession

    receipts: list[Receipt] = []

    def stage(project, prepared, sink, on_progress):  # type: ignore[no-untyped-def]
        receipts.extend(runs.stage_with_spark(project, prepared, sink, on_progress))
        return receipts

    def run(target: str, limit: str) -> None:
        query = f"select id, name, price from items where id <= {limit}"
        pipeline = large.pipeline(query=query, target=f"to.main.{target}")
        runs.run(large.project(pipeline), pipeline, large.store, stage=stage)

    run("warm", "1000")
    receipts.clear()
    driver = psutil.Process(os.getpid())
    before = driver.memory_full_info().uss
    run("all_rows", str(ROWS))
    grown = driver.memory_full_info().uss - before

    assert large.target.query("select count(*), count(distinct id) from all_rows") == [(ROWS, ROWS)]
    assert sum(receipt.rows for receipt in receipts) == ROWS
    assert len({receipt.part for receipt in receipts}) >= 2
    workers = {receipt.pid for receipt in receipts}
    assert len(workers) >= 2
    assert os.getpid() not in workers
    # A million rows are about 60 MB of Arrow.
    assert grown < 40 * 1024 * 1024

    spark = SparkSession.getActiveSession()
    assert spark is not None
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    assert any(stage is not None and stage.numCompletedTasks >= 2 for stage in stages)
