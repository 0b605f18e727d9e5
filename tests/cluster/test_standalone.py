"""A standalone master with two workers: the same pipelines, the same values, nothing written too early.

The workers' Python has no Penstock: whatever runs there came with the job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.backends.base import Receipt
from penstock.engine import session, status
from penstock.errors import SourceError, SparkError
from penstock.project.model import SparkConfig
from tests.cluster.flow import ITEMS, ROWS, SPLIT, ClusterFlow, cancelled, sleeping
from tests.cluster.servers import Cluster, bare_python
from tests.conformance.harness import Harness
from tests.e2e.command import Project
from tests.waiting import await_true

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture(scope="module")
def config(cluster: Cluster) -> Iterator[SparkConfig]:
    session.stop()  # of other tests in this process
    yield SparkConfig(master=cluster.url, conf=cluster.conf(), parallel=4)
    session.stop()


@pytest.fixture
def make(config: SparkConfig, harness: Callable[[str], Harness], tmp_path: Path) -> Callable[[str, str], ClusterFlow]:
    def flow(source: str, target: str) -> ClusterFlow:
        return ClusterFlow(harness(source), harness(target), tmp_path, config)

    return flow


@pytest.fixture
def receipts(monkeypatch: pytest.MonkeyPatch) -> list[Receipt]:
    """Those of all runs of the test, on their way to the commit."""
    from penstock.engine import job

    kept: list[Receipt] = []
    plain = job.Job.receipts

    def keep(self: job.Job) -> list[Receipt]:
        made = plain(self)
        kept.extend(made)
        return made

    monkeypatch.setattr(job.Job, "receipts", keep)
    return kept


def executors_of(receipts: list[Receipt]) -> set[int]:
    """The executors' processes: a worker is a child of a daemon, which is a child of its executor."""
    parents = [psutil.Process(receipt.pid).parent() for receipt in receipts]
    return {parent.ppid() for parent in parents if parent is not None}


def test_fused_on_two_executors_gives_the_same_values(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster, receipts: list[Receipt]
) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute(*ITEMS)
    planned = flow.plan(target="to.main.there", **SPLIT)
    assert planned.path == "fused"
    assert f"tasks run on {cluster.url}" in planned.notes

    done = flow.run(target="to.main.there", **SPLIT)
    assert (done.state, done.rows) == ("done", ROWS)
    assert len(receipts) == planned.partitions >= 2
    assert len(executors_of(receipts)) == 2

    flow.run_here(target="to.main.here")
    for one, other in (("there", "here"), ("here", "there")):
        assert flow.target.query(f"select count(*) from (from {one} except all from {other})") == [(0,)]
    assert flow.target.leftovers() == []


def test_sql_and_a_function_of_the_project_on_two_executors(
    make: Callable[[str, str], ClusterFlow], receipts: list[Receipt]
) -> None:
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    sql = "select *, id * 2 as twice from source where id % 2 = 0"
    flow.run(target="to.public.by_sql", transform=sql, **SPLIT)
    assert len(executors_of(receipts)) == 2
    flow.run(target="to.public.by_function", transform_function=flow.module("loud"))
    flow.run_here(target="to.public.plain")

    there = flow.target.query("select id, name, price, at, day, code, doc, raw, tags, twice from by_sql order by id")
    here = flow.target.query("select *, id * 2 from plain where id % 2 = 0 order by id")
    assert there == here
    assert len(here) == ROWS // 2
    loud = flow.target.query("select id, name, price, at from by_function order by id")
    assert loud == flow.target.query("select id, upper(name) || '!', price, at from plain where id % 2 = 0 order by id")


def test_staging_that_one_worker_cannot_see_is_found_before_anything_is_written(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute(*ITEMS)
    flow.staging = cluster.hidden
    begun: list[object] = []
    from penstock.backends.duckdb.write import DuckDBTarget

    monkeypatch.setattr(DuckDBTarget, "begin", lambda *_: begun.append(1))
    with pytest.raises(SparkError) as raised:
        flow.run()
    assert not begun
    assert raised.value.what == f"the staging folder {cluster.hidden}/penstock-staging is not shared by all workers"
    assert "no such file or directory" in raised.value.why
    assert "on host" in raised.value.why
    assert raised.value.kept == "nothing was touched"
    assert "set `staging` of [connections.to]" in raised.value.remedy
    assert not flow.target.has_table("items")
    assert list(cluster.hidden.iterdir()) == []


def test_a_source_file_that_one_worker_cannot_see_is_named(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster
) -> None:
    from tests.conformance.harness import DuckDBHarness

    flow = make("postgres", "postgres")
    file = cluster.hidden / "source.duckdb"
    flow.source = DuckDBHarness(file)
    flow.source.execute("create table items as select range as id from range(1000)")
    try:
        with pytest.raises(SparkError, match="not every worker can read") as raised:
            flow.run()
    finally:
        for left in cluster.hidden.iterdir():
            left.unlink()
    assert str(file) in raised.value.what
    assert "move it to a folder that all workers share" in raised.value.remedy
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


def test_between_servers_nothing_need_be_shared_and_errors_come_back(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster
) -> None:
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    flow.root = cluster.hidden / "project"  # with the counters of its tasks
    flow.root.mkdir()
    try:
        assert flow.run(**SPLIT).rows == ROWS
        with pytest.raises(SourceError, match="SQLSTATE 22012"):
            flow.run(query=f"select id, 1 / (id - {ROWS}) as x from items", target="to.public.other", **SPLIT)
    finally:
        subprocess.run(["rm", "-r", str(flow.root)], check=True)
    assert flow.target.query("select count(*), count(distinct id) from items") == [(ROWS, ROWS)]
    assert not flow.target.has_table("other")
    assert flow.target.leftovers() == []


def test_five_seconds_after_a_cancel_no_task_of_the_run_is_left(make: Callable[[str, str], ClusterFlow]) -> None:
    flow = make("postgres", "postgres")
    cancelled(flow, lambda: _running_tasks(flow) == 0)


def test_an_executor_that_is_killed_while_it_reads_is_made_up_for(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster
) -> None:
    """Its tasks are tried on another: every row once, in one attempt at the run."""
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    slow = "select id, name || pg_sleep(0.001)::text as name from items"
    with killing_one(flow, cluster, lambda: sleeping(flow.source) == 2):
        done = flow.run(query=slow, **SPLIT)
    assert (done.state, done.rows) == ("done", ROWS)
    assert [one.state for one in flow.store.runs()] == ["done"]
    assert flow.target.query("select count(*), count(distinct id) from items") == [(ROWS, ROWS)]
    assert flow.target.leftovers() == []


def test_an_executor_that_is_killed_with_what_it_shuffled_costs_an_attempt(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster
) -> None:
    """Half a stage that ran again might cut the rows otherwise: the run is tried again as a whole."""
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    seen, gone = flow.root / "seen", flow.root / "gone"

    def grouped(df: Any) -> Any:
        from pyspark.sql.functions import udf

        def wait(value: str) -> str:
            import pathlib
            import time

            pathlib.Path(seen).touch()
            while not pathlib.Path(gone).exists():
                time.sleep(0.05)
            return value

        return df.repartition(4, "id").withColumn("name", udf(wait, "string")("name"))

    with killing_one(flow, cluster, seen.exists, gone.touch):
        done = flow.run(transform_function=grouped, **SPLIT)
    assert (done.state, done.rows) == ("done", ROWS)
    last, first = flow.store.runs()
    assert (last.state, first.state) == ("done", "failed")
    assert first.error is not None
    assert first.error["what"].startswith("an executor of Spark was lost")
    assert flow.target.query("select count(*), count(distinct id), count(distinct name) from items") == [(ROWS,) * 3]
    assert flow.target.leftovers() == []


@contextmanager
def killing_one(
    flow: ClusterFlow, cluster: Cluster, when: Callable[[], bool], then: Callable[[], None] | None = None
) -> Iterator[None]:
    """Kill one of the application's two executors as soon as that is so; Spark starts another in its place."""
    spark = session.spark(flow.spark, flow.root)
    context = status.context(spark)
    assert context is not None
    await_true(lambda: status.executors(spark) == len(cluster.executors(context.applicationId)) == 2, 60)

    def kill() -> None:
        await_true(when, 60)
        victim = cluster.executors(context.applicationId)[0]
        victim.kill()
        await_true(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, 10)
        if then is not None:
            then()

    watcher = threading.Thread(target=kill)
    watcher.start()
    yield
    watcher.join()


def _running_tasks(flow: ClusterFlow) -> int:
    context = status.context(session.spark(flow.spark, flow.root))
    infos = context._jsc.sc().statusTracker().getExecutorInfos()  # type: ignore[union-attr]  # a classic session
    return sum(info.numRunningTasks() for info in infos)


# ---------------------------------------------------------------- versions


@pytest.fixture
def python_of_workers(config: SparkConfig, tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Let tasks run on another interpreter, as if the workers had that one."""
    context = status.context(session.spark(config, tmp_path))
    assert context is not None
    own = context.pythonExec

    def use(python: Path) -> None:
        context.pythonExec = str(python)

    yield use
    context.pythonExec = own


def test_a_worker_without_a_driver_or_with_another_version_is_told(
    make: Callable[[str, str], ClusterFlow], python_of_workers: Callable[[Path], None], tmp_path: Path
) -> None:
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    lacking, older = tmp_path / "lacking", tmp_path / "older"
    for folder in (lacking, older):
        folder.mkdir()

    python_of_workers(bare_python(lacking, without=("adbc_driver_postgresql",)))
    with pytest.raises(SparkError, match=r"lack adbc.driver.postgresql") as raised:
        flow.run()
    assert "pip install" in raised.value.remedy

    python_of_workers(bare_python(older, versions={"pyarrow": "9.0.0"}))
    with pytest.raises(SparkError, match=r"have pyarrow 9\.0\.0, this machine has") as raised:
        flow.run()
    assert "pip install 'pyarrow==" in raised.value.remedy

    python_of_workers(tmp_path / "nowhere" / "python")
    with pytest.raises(SparkError, match=r"have no .*nowhere/python"):
        flow.run()
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


# ---------------------------------------------------------------- a session of the user's

OWN = """
import sys
import penstock as ps
from pyspark.sql import SparkSession

master, hidden, *conf = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for one in (*conf, "spark.stage.maxConsecutiveAttempts=1", "spark.ui.showConsoleProgress=false"):
    builder = builder.config(*one.split("=", 1))
frame = builder.getOrCreate().range(0, 1000, 1, 4)
ps.connect("warehouse", type="duckdb", path="warehouse.duckdb")
ps.connect("unshared", type="duckdb", path="unshared.duckdb", staging=hidden)
try:
    ps.write(frame, "unshared.main.items", mode="append")
except ps.SparkError as error:
    print(error.what, error.kept)
print(ps.write(frame, "warehouse.main.items", mode="append").inserted)
"""


def test_a_frame_of_the_users_session_is_written_by_workers_that_were_sent_penstock(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Without `ps.use_spark`: all that is known of that session comes with the frame."""
    session.stop()  # it has the cores
    (tmp_path / "script.py").write_text(OWN)
    conf = [f"{name}={value}" for name, value in cluster.conf().items()]
    done = subprocess.run(
        [sys.executable, "script.py", cluster.url, str(cluster.hidden), *conf],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": str(cluster.python), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    told, inserted = done.stdout.splitlines()
    assert told.endswith("is not shared by all workers nothing was touched")
    assert inserted == "1000"


# ---------------------------------------------------------------- the command


def test_a_master_that_does_not_answer_is_told_at_once(project: Project, cluster: Cluster) -> None:
    text = (project.folder / "penstock.toml").read_text()
    project.write(f'{text}\n[spark]\nmaster = "spark://127.0.0.1:9"\n')
    began = time.monotonic()
    done = project.run("run", "customers")
    assert time.monotonic() - began < 15
    assert done.returncode == 1
    assert "no Spark master answers at spark://127.0.0.1:9" in done.stderr
    assert "connection refused" in done.stderr
    [found] = [one for one in project.json("doctor") if one["check"] == "spark master"]
    assert found["status"] == "failed"

    project.write(f'{text}\n[spark]\nmaster = "{cluster.url}"\n')
    [found] = [one for one in project.json("doctor") if one["check"] == "spark master"]
    assert (found["status"], found["found"]) == ("ok", f"{cluster.url} answers")


def test_something_else_than_a_master_is_told_soon(project: Project, cluster: Cluster) -> None:
    text = (project.folder / "penstock.toml").read_text()
    project.write(f'{text}\n[spark]\nmaster = "spark://127.0.0.1:{cluster.ui}"\n')
    done = project.run("run", "customers")
    assert done.returncode == 1
    assert "no Spark master answers at" in done.stderr
    assert "something else" in done.stderr
