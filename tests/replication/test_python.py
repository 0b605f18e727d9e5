"""`ps.replication`: started, asked and stopped from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.run.replicating import ReplicationHandle, copying_by
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.desk import NAME, Desk
from tests.replication.stand import stage_here
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres]

COUNT = "select count(*) from items"


@pytest.fixture
def desk(harness: Callable[[str], Harness], tmp_path: Path) -> Iterator[Desk]:
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    source.execute("create table items (id bigint primary key)", "insert into items select generate_series(1, 100)")
    made = Desk(source, harness("postgres"), tmp_path)
    yield made
    made.clear()


def _made(desk: Desk) -> ReplicationHandle:
    with copying_by(stage_here):
        return ps.replication(NAME, project=desk.folder)


def test_a_replication_of_the_project_is_started_asked_and_stopped(desk: Desk) -> None:
    shop = _made(desk)
    assert repr(shop) == f"<replication '{NAME}': not started>"
    with pytest.raises(ConfigError, match="was not started"):
        shop.status()
    assert shop.start() is shop
    try:
        await_true(lambda: [table.phase for table in shop.status().tables] == ["streaming"], 60)
        desk.source.execute("delete from items where id > 10")
        desk.await_target(COUNT, [(10,)])
        assert shop.status().state == "running"
        assert f"'{NAME}': running" in repr(shop)
        with pytest.raises(ConfigError, match="runs already"):
            shop.start()
        # The command line finds it, and may ask it.
        assert desk.show()["state"] == "running"
        assert "paused" in desk.ask("pause").out
        await_true(lambda: shop.status().state == "paused")
    finally:
        shop.stop()
    assert desk.show()["state"] == "stopped"
    desk.source.execute("insert into items values (1000)")
    assert shop.start(until_caught_up=True).wait(60)
    assert desk.read(COUNT) == [(11,)]


def test_a_replication_that_is_written_nowhere_else(desk: Desk) -> None:
    ends = {"source": "from_", "target": "to"}
    with copying_by(stage_here):
        here = ps.replication(
            "here", **ends, tables=["public.items"], slot=desk.slot, flush_interval_ms=20, project=desk.folder
        )
    with here:
        desk.await_target("select count(*) from information_schema.tables where table_name = 'items'", [(1,)])
        desk.await_target(COUNT, [(100,)])
    assert here.wait(0)


def test_what_keeps_it_from_starting_is_raised_by_start(desk: Desk) -> None:
    desk.configure(tables=["public.nothing"])
    shop = _made(desk)
    with pytest.raises(ConfigError, match=r"public\.nothing"):
        shop.start()
    with pytest.raises(ConfigError, match=r"public\.nothing"):
        shop.status()
    assert desk.source.query(f"select 1 from pg_replication_slots where slot_name = '{desk.slot}'") == []


def test_what_is_wrong_with_it_is_told_at_once_with_its_place(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="no replication 'shp'"):
        ps.replication("shp", project=desk.folder)
    with pytest.raises(ConfigError, match="stands in the project already"):
        ps.replication(NAME, source="from_", target="to", tables=["public.*"], project=desk.folder)
    with pytest.raises(ps.ConfigErrors) as caught:
        ps.replication("x", source="frm_", target="to", tables=["public.*"], deletes="mild", project=desk.folder)
    told = str(caught.value)
    assert told.count("test_python.py") >= 2
    assert all(word in told for word in ("deletes", "'hard' or 'soft'", "'frm_'"))
