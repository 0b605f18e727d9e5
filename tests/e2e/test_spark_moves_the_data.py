"""It is Spark that moves the data: tasks and worker processes, while the driver stays small."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from penstock.backends.base import Partition, Receipt, Split
from penstock.engine import session, status
from penstock.run import pipeline as runs
from tests.conformance.harness import Flow, Harness
from tests.e2e.spark_parts import meet

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

ROWS = 1_000_000


@dataclass(frozen=True)
class Meeting(Partition):
    """A partition that is not read before two workers are at work."""

    partition: Partition
    folder: Path

    def read(self) -> Iterator[pa.RecordBatch]:
        meet(self.folder)
        yield from self.partition.read()


@pytest.fixture
def large(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    source = harness("postgres")
    source.execute(
        "create table items (id bigint primary key, name text, price numeric(38,12))",
        f"insert into items select n, 'name ' || n, n / 7.0 from generate_series(1, {ROWS}) as n",
    )
    return Flow(source, harness("duckdb"), tmp_path)


def test_a_million_rows_run_in_several_tasks_and_workers_and_never_reach_the_driver(
    large: Flow, tmp_path: Path
) -> None:
    receipts: list[Receipt] = []
    folder = tmp_path / "meeting"
    folder.mkdir()

    def stage(project, prepared, sink, on_progress):  # type: ignore[no-untyped-def]  # as `Stage` says
        if len(prepared.split.partitions) > 1:
            met = tuple(Meeting(partition, folder) for partition in prepared.split.partitions)
            prepared.split = Split(met, prepared.split.reason)
        receipts.extend(runs.stage_with_spark(project, prepared, sink, on_progress))
        return receipts

    def run(target: str, limit: str) -> None:
        query = f"select id, name, price from items where id <= {limit}"
        pipeline = large.pipeline(query=query, target=f"to.main.{target}")
        runs.run(large.project(pipeline), pipeline, large.store, stage=stage)

    run("warm", "1000")
    receipts.clear()
    spark = session.spark(large.project(large.pipeline()).spark, large.root)
    tracker = status.context(spark).statusTracker()  # type: ignore[union-attr]  # the suite's Spark is a classic one
    earlier = set(tracker.getJobIdsForGroup(None))
    driver = psutil.Process(os.getpid())
    before = driver.memory_full_info().uss
    run("all_rows", str(ROWS))
    grown = driver.memory_full_info().uss - before

    assert large.target.query("select count(*), count(distinct id) from all_rows") == [(ROWS, ROWS)]
    assert sum(receipt.rows for receipt in receipts) == ROWS
    assert len({receipt.part for receipt in receipts}) == len(receipts) >= 2
    workers = {receipt.pid for receipt in receipts}
    assert len(workers) >= 2
    assert os.getpid() not in workers
    # A million rows are about 60 MB of Arrow.
    assert grown < 40 * 1024 * 1024

    [job] = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None) if job not in earlier]
    [stage_id] = job.stageIds
    done = tracker.getStageInfo(stage_id)
    assert (done.numTasks, done.numCompletedTasks, done.numFailedTasks) == (len(receipts), len(receipts), 0)
