"""Pipelines on a cluster: the same source and target as elsewhere, another `[spark]`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.base import Receipt
from penstock.errors import Cancelled
from penstock.project import Project
from penstock.project.model import Pipeline, SparkConfig
from penstock.run import pipeline as runs
from penstock.state import RunRecord
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.waiting import await_true

ROWS = 4000
PROMISE_SECONDS = 5.0
SPLIT: dict[str, Any] = {"partition_on": "id", "parallel": 4}  # a table of a few pages is one partition by itself

# Every kind of value that has a way of its own through Arrow or Spark.
ITEMS = (
    "create table items (id bigint primary key, name text, price numeric(38,12), at timestamptz, day date,"
    " code uuid, doc jsonb, raw bytea, tags text[])",
    "insert into items select n, 'name ' || n, n / 7.0, timestamptz '2024-02-29 12:00+00' + n * interval '1 second',"
    " date '1999-12-31' + n::int, md5(n::text)::uuid, jsonb_build_object('n', n), decode(md5(n::text), 'hex'),"
    f" array['a', null, n::text] from generate_series(1, {ROWS}) n",
)

# A function of the project's own, called by a task on another machine.
MODULE = """
import neighbour

def shout(value):
    return neighbour.upper(value) + "!"

def loud(df):
    from pyspark.sql.functions import udf
    return df.where("id % 2 = 0").withColumn("name", udf(shout, "string")("name"))
"""
MODULE += """
def fail(value):
    raise ValueError(value)

def broken(df):
    from pyspark.sql.functions import udf
    return df.withColumn("name", udf(fail, "string")("name"))
"""
NEIGHBOUR = "def upper(value):\n    return value.upper()\n"


class ClusterFlow(Flow):
    """Keeps the receipts of its last run."""

    def __init__(self, source: Harness, target: Harness, root: Path, spark: SparkConfig) -> None:
        super().__init__(source, target, root, runs.stage_with_spark)
        self.spark = spark
        self.receipts: list[Receipt] = []
        self.staging: Path | None = None

    def project(self, pipeline: Pipeline) -> Project:
        target = self.target.options()
        if self.staging is not None:
            target["staging"] = str(self.staging)
        return Project.from_objects(
            self.root,
            connections={"from_": self.source.options(), "to": target},
            pipelines=[pipeline],
            spark=self.spark,
        )

    def run_here(self, **options: Any) -> RunRecord:
        """The same without Spark, to compare with."""
        return Flow(self.source, self.target, self.root).run(**options)

    def module(self, name: str) -> Callable[..., Any]:
        """A function of the project's module, imported as the project's loader does."""
        (self.root / "shouting.py").write_text(MODULE)
        (self.root / "neighbour.py").write_text(NEIGHBOUR)
        for known in ("shouting", "neighbour"):
            sys.modules.pop(known, None)
        from penstock.project.discover import import_modules

        assert import_modules(self.root, ["shouting"], "test") == []
        found: Callable[..., Any] = getattr(sys.modules["shouting"], name)
        return found


def sleeping(harness: Harness) -> int:
    """How many sessions of a run read slowly at this moment."""
    [(count,)] = harness.query(
        "select count(*) from pg_stat_activity where starts_with(application_name, 'penstock:')"
        " and datname = current_database() and state = 'active' and query ilike '%copy%pg_sleep%'"
    )
    return int(count)


def sessions(harness: Harness) -> int:
    [(count,)] = harness.query(
        "select count(*) from pg_stat_activity where starts_with(application_name, 'penstock:')"
        " and datname = current_database()"
    )
    return int(count)


def cancelled(flow: ClusterFlow, *over: Callable[[], bool]) -> None:
    """Run slowly, press Ctrl-C while it reads, and see that within five seconds nothing is left; then run again."""
    source = flow.source
    assert isinstance(source, PostgresHarness)
    source.execute(*ITEMS)
    began: list[float] = []

    def interrupt() -> None:
        await_true(lambda: sleeping(source) == 1, 60)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    slow = "select id, name || pg_sleep(0.05)::text as name from items"
    with pytest.raises(Cancelled):
        flow.run(query=slow)  # in one partition: its bounds would take as long
    watcher.join()
    left = PROMISE_SECONDS - (time.monotonic() - began[0])
    await_true(lambda: sessions(source) == 0 and all(one() for one in over), left)
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []
    assert flow.run().rows == ROWS
