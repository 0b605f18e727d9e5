"""A Spark Connect server on a cluster: the same pipelines, without a JVM in this process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.engine import session, status
from penstock.errors import SparkError, TransformError
from penstock.project.model import SparkConfig
from tests.cluster.flow import ITEMS, ROWS, SPLIT, ClusterFlow, cancelled, sessions, sleeping
from tests.cluster.servers import Cluster
from tests.conformance.harness import Harness
from tests.e2e.command import Project
from tests.waiting import await_true

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture(scope="module")
def config(cluster: Cluster) -> Iterator[SparkConfig]:
    session.stop()  # of other tests in this process
    yield SparkConfig(remote=cluster.remote, parallel=4, conf={"spark.sql.shuffle.partitions": "3"})
    session.stop()


@pytest.fixture
def make(config: SparkConfig, harness: Callable[[str], Harness], tmp_path: Path) -> Callable[[str, str], ClusterFlow]:
    def flow(source: str, target: str) -> ClusterFlow:
        return ClusterFlow(harness(source), harness(target), tmp_path, config)

    return flow


def test_fused_gives_the_same_values_and_the_plan_names_the_server(
    make: Callable[[str, str], ClusterFlow], config: SparkConfig
) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute(*ITEMS)
    planned = flow.plan(target="to.main.there", **SPLIT)
    assert planned.path == "fused"
    assert planned.partitions >= 2
    assert f"tasks run on the Spark Connect server {config.remote}" in planned.notes
    done = flow.run(target="to.main.there", **SPLIT)
    assert (done.state, done.rows) == ("done", ROWS)
    assert status.context(session.spark(config, flow.root)) is None

    flow.run_here(target="to.main.here")
    for one, other in (("there", "here"), ("here", "there")):
        assert flow.target.query(f"select count(*) from (from {one} except all from {other})") == [(0,)]
    assert flow.target.leftovers() == []


def test_sql_and_a_function_of_the_project(make: Callable[[str, str], ClusterFlow], config: SparkConfig) -> None:
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    sql = "select *, id * 2 as twice from source where id % 2 = 0"
    flow.run(target="to.public.by_sql", transform=sql, **SPLIT)
    flow.run(target="to.public.by_function", transform_function=flow.module("loud"))
    flow.run_here(target="to.public.plain")

    there = flow.target.query("select id, name, price, at, day, code, doc, raw, tags, twice from by_sql order by id")
    here = flow.target.query("select *, id * 2 from plain where id % 2 = 0 order by id")
    assert there == here
    assert len(here) == ROWS // 2
    loud = flow.target.query("select id, name, price, at from by_function order by id")
    assert loud == flow.target.query("select id, upper(name) || '!', price, at from plain where id % 2 = 0 order by id")
    # A run's settings and views are its own session's.
    spark = session.spark(config, flow.root)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert not spark.catalog.tableExists("source")
    assert spark.conf.get("spark.sql.timestampType") == "TIMESTAMP_LTZ"
    assert list(status._told) == [spark.session_id], "a run's session was not given back"


def test_wrong_sql_and_a_failing_function_are_told_with_their_place(
    make: Callable[[str, str], ClusterFlow], capfd: pytest.CaptureFixture[str]
) -> None:
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    with pytest.raises(TransformError, match="`nothing`") as raised:
        flow.run(transform="select nothing from source")
    assert "\n" not in raised.value.why
    assert capfd.readouterr() == ("", "")
    with pytest.raises(TransformError) as raised:
        flow.run(transform_function=flow.module("broken"))
    assert raised.value.why == "ValueError"
    assert "shouting.py:" in raised.value.place
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


def test_staging_that_one_worker_cannot_see_is_found_before_anything_is_written(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster
) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute(*ITEMS)
    flow.staging = cluster.hidden
    with pytest.raises(SparkError, match="is not shared by all workers") as raised:
        flow.run()
    assert raised.value.kept == "nothing was touched"
    assert not flow.target.has_table("items")
    assert list(cluster.hidden.iterdir()) == []


def test_a_run_has_a_session_of_its_own_also_where_the_url_names_one(cluster: Cluster) -> None:
    """Shared, two runs would replace each other's views, and the first to end would end the user's session."""
    from pyspark.sql.connect.session import SparkSession

    named = str(uuid.uuid4())
    url = f"{cluster.remote}/;user_id=somebody;session_id={named}"
    given = SparkSession.builder.remote(url).create()
    assert given.session_id == named
    made = [status.session_apart(given), status.session_apart(given), status.connect(url, {})]
    assert len({named, *(one.session_id for one in made)}) == 4
    assert {one.client._user_id for one in made} == {"somebody"}
    for one in made:
        status.end_apart(one)
    assert given.range(3).count() == 3
    given.stop()


def test_a_session_of_this_machine_starts_after_the_users_connect_session_has_ended(
    cluster: Cluster, config: SparkConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PySpark goes on asking for a server in the whole process, and nothing of its own takes that back."""
    from pyspark.sql import SparkSession

    session.stop()
    monkeypatch.setenv("SPARK_REMOTE", cluster.remote)
    SparkSession.builder.getOrCreate().stop()
    try:
        here = session.spark(SparkConfig(shuffle_partitions=2), tmp_path)
        assert status.context(here) is not None
        assert here.range(3).count() == 3
    finally:
        session.stop()


def test_five_seconds_after_a_cancel_nothing_of_the_run_is_left(make: Callable[[str, str], ClusterFlow]) -> None:
    flow = make("postgres", "postgres")
    cancelled(flow)


def test_a_server_that_is_killed_during_a_run_leaves_the_target_as_it_was(
    make: Callable[[str, str], ClusterFlow], cluster: Cluster, config: SparkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "CONNECT_RETRIES", 2)
    flow = make("postgres", "postgres")
    flow.source.execute(*ITEMS)
    flow.run_here()
    before = flow.target.query("select * from items order by id")
    session.stop()
    url, server = cluster.connect("doomed")
    flow.spark = SparkConfig(remote=url, parallel=4)

    def kill() -> None:
        await_true(lambda: sleeping(flow.source) == 1, 60)
        server.kill()

    slow = "select id, name || pg_sleep(0.05)::text as name, price, at, day, code, doc, raw, tags from items"
    watcher = threading.Thread(target=kill)
    watcher.start()
    with pytest.raises(SparkError, match=f"no Spark Connect server answers at {url}"):
        flow.run(query=slow)
    watcher.join()
    last, first = flow.store.runs(flow.name)
    assert (last.state, first.state) == ("failed", "failed")
    assert first.error is not None
    assert first.error["what"] == "the Spark Connect server is gone"
    assert flow.target.query("select * from items order by id") == before
    await_true(lambda: sessions(flow.source) == 0, 30)
    assert flow.target.leftovers() == []

    flow.spark = config
    assert flow.run().rows == ROWS
    doubled = [row for row in before for _ in range(2)]  # it appends
    assert flow.target.query("select * from items order by id") == doubled


def test_the_command_says_what_does_not_answer_and_what_does(
    project: Project, cluster: Cluster, config: SparkConfig
) -> None:
    text = (project.folder / "penstock.toml").read_text()
    # The master's own port speaks, but not gRPC.
    project.write(f'{text}\n[spark]\nremote = "sc://127.0.0.1:{cluster.port}/;token=t0psecret"\n')
    began = time.monotonic()
    done = project.run("run", "customers")
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert f"no Spark Connect server answers at sc://127.0.0.1:{cluster.port}" in done.stderr
    assert "t0psecret" not in done.stderr

    project.write(f'{text}\n[spark]\nremote = "{config.remote}"\n')
    [found] = [one for one in project.json("doctor") if one["check"] == "spark master"]
    assert (found["status"], found["found"]) == ("ok", f"{config.remote} answers")


def test_a_setting_that_only_the_server_can_have_is_refused(config: SparkConfig, tmp_path: Path) -> None:
    session.stop()
    wrong = SparkConfig(remote=config.remote, conf={"spark.executor.memory": "3g"})
    with pytest.raises(SparkError, match="gave no session") as raised:
        session.spark(wrong, tmp_path)
    assert "spark.executor.memory" in raised.value.why
