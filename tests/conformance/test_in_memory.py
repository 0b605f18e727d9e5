"""Databases in memory: every mode as with a file, although no task can open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.backends import duckdb
from penstock.backends.duckdb.read import DuckDBSource
from penstock.cli.lasting import require_lasting
from penstock.errors import Busy, DataError, PlanRefused, SourceError, Unsupported
from penstock.observe import failpoints
from penstock.project import Project
from penstock.project.model import Pipeline
from penstock.run.pipeline import run, stage_with_spark
from penstock.state import open_store
from tests.conformance.harness import Flow, Harness
from tests.conformance.memory_bench import Interfering
from tests.conformance.test_exactness import agree, seed, texts
from tests.conformance.values import DUCKDB, DUCKDB_ONLY
from tests.faults.bare import stage_here

IN_MEMORY = ("duckdb:memory", "sqlite:memory")
TABLE = "create table items (id bigint primary key, name varchar)"
ROWS = (
    "insert into items with recursive t(n) as (select {} union all select n + 1 from t where n < {} - 1)"
    " select n, 'n' || n from t"
)


def seeded(source: Harness, target: Harness, root: Path) -> Flow:
    source.execute(TABLE, ROWS.format(0, 1000))
    return Flow(source, target, root)


@pytest.fixture(params=IN_MEMORY)
def flow(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Iterator[Flow]:
    """From one database into another; nothing is left in staging, whatever happens."""
    made = seeded(harness(request.param), harness(request.param), tmp_path)
    yield made
    assert made.target.leftovers() == []


@pytest.fixture
def ducks(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return seeded(harness("duckdb:memory"), harness("duckdb:memory"), tmp_path)


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_every_mode(flow: Flow, mode: str) -> None:
    assert flow.run(mode=mode, keys=["id"]).inserted == 1000
    flow.source.execute("update items set name = 'other' where id = 7", ROWS.format(1000, 1001))
    second = flow.run(mode=mode, keys=["id"])
    figures = {"append": (1001, 0, 0), "truncate": (1001, 0, 1000), "merge": (1, 1, 0), "scd2": (2, 1, 0)}
    assert (second.inserted, second.updated, second.deleted) == figures[mode]
    assert second.path == "fused"


def test_every_type_of_duckdb_comes_home(ducks: Flow, harness: Callable[[str], Harness], tmp_path: Path) -> None:
    types = DUCKDB | DUCKDB_ONLY
    out = Flow(harness("duckdb"), ducks.target, tmp_path)
    expected = seed(out.source, types)
    out.run(mode="merge")
    home = Flow(ducks.target, harness("duckdb"), tmp_path)
    home.run(mode="merge", keys=["id"])
    agree(types, texts(home.target, types), expected)


@pytest.mark.spark
def test_spark_moves_the_data_from_and_into_memory(ducks: Flow) -> None:
    """Its workers are other processes, which cannot open the database."""
    flow = ducks
    flow.stage = stage_with_spark
    flow.source.execute(ROWS.format(1000, 250_000))
    record = flow.run(mode="merge", parallel=2)
    assert (record.rows, record.partitions, record.path) == (250_000, 2, "fused")
    figures = "select count(*), sum(id), count(distinct name) from items"
    assert flow.target.query(figures) == flow.source.query(figures)
    wanted = "select id, name from source where id % 2 = 1"
    record = flow.run(query="select * from items where id < 100", target="to.main.odd", transform=wanted)
    assert (record.path, record.rows) == ("spark", 50)
    assert flow.target.query("select sum(id) from odd") == [(2500,)]
    assert flow.target.leftovers() == []


def test_one_name_is_one_database_and_its_own_statements_do_the_work(flow: Flow, tmp_path: Path) -> None:
    record = Flow(flow.source, flow.source, tmp_path).run(target="to.main.copies", mode="merge")
    assert (record.path, record.inserted) == ("native", 1000)
    assert flow.source.query("select count(*) from copies") == [(1000,)]


def test_the_connection_gives_the_name(tmp_path: Path) -> None:
    name = f"c{os.urandom(6).hex()}"
    with duckdb.database(name) as cursor:
        cursor.execute("create table items as select 1 as id")
    pipeline = Pipeline(name="p", source=name, table="items", target=f"{name}.main.copies", mode="append", place="test")
    project = Project.from_objects(
        tmp_path, connections={name: {"type": "duckdb", "path": ":memory:"}}, pipelines=[pipeline]
    )
    run(project, project.pipelines["p"], open_store("memory:"), stage=stage_here)
    with duckdb.database(name) as cursor:
        assert cursor.execute("from copies").fetchall() == [(1,)]


def test_one_moment_rows_that_come_meanwhile_are_not_read(ducks: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_out = DuckDBSource.hand_out

    def late(source: DuckDBSource) -> None:
        ducks.source.execute(ROWS.format(1000, 2000))
        hand_out(source)

    monkeypatch.setattr(DuckDBSource, "hand_out", late)
    assert ducks.run().rows == 1000
    assert ducks.source.query("select count(*) from items") == [(2000,)]


def test_a_source_cannot_write(ducks: Flow) -> None:
    ducks.source.execute("create sequence numbers")
    with pytest.raises(SourceError, match="read-only"):
        ducks.run(query="select nextval('numbers') as id")
    with pytest.raises(SourceError, match="a query must be one SELECT"):
        ducks.run(query="delete from items returning id")
    assert ducks.source.query("select count(*) from items") == [(1000,)]


def test_a_plan_writes_nothing(flow: Flow, tmp_path: Path) -> None:
    planned = flow.plan(mode="merge")
    assert "it is in memory: the driver reads it and hands its rows out to tasks" in planned.notes
    assert not (tmp_path / ".penstock").exists()
    assert not flow.target.has_table("items")


@pytest.mark.parametrize("point", ["load.staging", "sink.staged", "commit.loaded"])
def test_a_load_that_fails_leaves_the_database_as_it_was(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv(failpoints.ENV, f"{point}=raise")
    with pytest.raises(failpoints.FailpointError):
        flow.run()
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []
    monkeypatch.delenv(failpoints.ENV)
    with pytest.raises(DataError):
        flow.run(mode="merge", keys=["name"], query="select 'a' as name from items")
    assert not flow.target.has_table("items")
    assert flow.run().rows == 1000


def test_two_loads_at_once_the_second_is_told_who_is_first(flow: Flow) -> None:
    second = Flow(flow.source, flow.target, flow.root)

    def meanwhile() -> None:
        with pytest.raises(Busy, match=rf"writing to the in-memory database .*pipeline '{flow.name}', run"):
            second.run(target="to.main.others")

    flow.stage = Interfering(meanwhile)
    assert flow.run().rows == 1000


@pytest.mark.parametrize("backend", [*IN_MEMORY, "memory"])
def test_commands_refuse_it_as_a_target(harness: Callable[[str], Harness], tmp_path: Path, backend: str) -> None:
    flow = Flow(harness(backend), harness(backend), tmp_path)
    pipeline = flow.pipeline()
    with pytest.raises(Unsupported, match=r"to cannot be the target of a command: .* nobody could read them"):
        require_lasting(flow.project(pipeline), pipeline)
    lasting = Flow(harness(backend), harness("duckdb"), tmp_path)
    require_lasting(lasting.project(lasting.pipeline()), lasting.pipeline())


def test_a_schema_called_like_the_database_is_refused(ducks: Flow) -> None:
    with pytest.raises(PlanRefused, match="schema 'memory' has the name of its database"):
        ducks.run(target="to.memory.items")


def test_a_table_that_is_not_there(flow: Flow) -> None:
    with pytest.raises(SourceError, match=r"there is no table (main\.)?none in the in-memory database"):
        flow.run(table="main.none")
