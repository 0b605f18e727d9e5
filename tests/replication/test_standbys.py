"""Standbys: copied from, and as the source itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import PlanRefused
from penstock.replicate.agent import Agent
from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.servers import Servers, promote, replayed
from tests.replication.stand import Stand, stage_here
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

TABLES = (
    "create table items (id bigint primary key, name text)",
    "create table words (word text, n int)",
    "alter table words replica identity full",
    "insert into items select i, repeat('item ', 50) || i from generate_series(1, 2000) i",
    "insert into words select 'w' || i % 7, 0 from generate_series(1, 200) i",
)
Make = Callable[..., Stand]


@pytest.mark.parametrize("target", ["postgres", "duckdb", "sqlite"])
def test_rows_with_a_key_are_copied_from_the_standby(make: Make, servers: Servers, target: str) -> None:
    primary = servers.start()
    standby = servers.standby(primary, log_statement="all", log_min_messages="warning")
    stand = make(target, PostgresHarness(primary.dsn), copy_from="standby")
    stand.others["standby"] = {"type": "postgres", "dsn": standby.dsn}
    stand.source.execute(*TABLES)
    stand.start()
    for number in range(10):
        stand.source.execute(
            f"update items set name = name || '{number}' where id % 10 = {number}",
            f"delete from items where id % 97 = {number}",
            f"update words set n = {number} where word = 'w{number % 7}'",
        )
    stand.sync()
    stand.assert_agrees("items", "words")
    told = (standby.folder / "log").read_text(errors="replace")
    assert '"items"' in told
    assert '"words"' not in told


def test_a_server_that_follows_nobody_is_no_standby(make: Make) -> None:
    stand = make("sqlite", copy_from="standby")
    stand.others["standby"] = stand.source.options()
    stand.source.execute(*TABLES)
    stand.start()
    await_true(lambda: stand.error is not None, 60, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, PlanRefused)
    assert "no standby of the source" in error.what


def test_a_standby_is_no_source_before_16(make: Make, servers: Servers) -> None:
    old = installed(15)
    primary = servers.start(install=old)
    PostgresHarness(primary.dsn).execute(*TABLES)
    standby = servers.standby(primary, install=old)
    replayed(standby, primary)
    stand = make("sqlite", PostgresHarness(standby.dsn))
    stand.start()
    await_true(lambda: stand.error is not None, 60, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, PlanRefused)
    assert "a standby of version 15" in error.why
    assert "copy_from" in error.remedy


def test_a_standby_is_the_source(make: Make, servers: Servers) -> None:
    primary = servers.start()
    owner = PostgresHarness(primary.dsn)
    owner.execute(*TABLES)
    standby = servers.standby(primary)
    replayed(standby, primary)
    stand = make("sqlite", PostgresHarness(standby.dsn))
    publish(stand, owner)
    replayed(standby, primary)
    with ticking(owner):
        stand.start()
        synced(stand, owner)
    stand.assert_agrees("items", "words")
    owner.execute("update items set name = 'changed' where id < 100", "delete from words where word = 'w1'")
    synced(stand, owner)
    replayed(standby, primary)
    stand.assert_agrees("items", "words")
    stand.stop()
    owner.execute("delete from items where id > 1000")
    stand.start()
    synced(stand, owner)
    replayed(standby, primary)
    stand.assert_agrees("items")
    stand.stop()
    owner.execute("delete from items where id > 500")
    replayed(standby, primary)
    Agent(stand.project(), stand.replication, stage=stage_here).run(until_caught_up=True)
    stand.assert_agrees("items")


def test_a_standby_that_is_the_source_is_promoted(make: Make, servers: Servers) -> None:
    primary = servers.start()
    owner = PostgresHarness(primary.dsn)
    owner.execute(*TABLES)
    standby = servers.standby(primary)
    stand = make("sqlite", PostgresHarness(standby.dsn))
    replayed(standby, primary)
    publish(stand, owner)
    replayed(standby, primary)
    with ticking(owner):
        stand.start()
        synced(stand, owner)
    owner.execute("delete from items where id > 1500")
    replayed(standby, primary)
    promote(standby)
    stand.source.execute("update items set name = 'promoted' where id < 100", "insert into words values ('w', 1)")
    stand.sync()
    stand.assert_agrees("items", "words")


def publish(stand: Stand, owner: PostgresHarness) -> None:
    """What a start on the standby says is to be run on its primary."""
    stand.start()
    await_true(lambda: stand.error is not None, 60, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, PlanRefused)
    assert "publications cannot be made on a standby" in error.why
    stand.stop()
    owner.execute(*(f"{one}" for one in error.remedy.removeprefix("on its primary: ").split("; ")))


@contextmanager
def ticking(owner: PostgresHarness) -> Iterator[None]:
    """A primary that says now and then which transactions run: a standby makes no slot before it has heard that."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.2):
            owner.execute("select pg_log_standby_snapshot()")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def synced(stand: Stand, owner: PostgresHarness) -> None:
    """As `sync`, with a mark that only the primary can make."""
    standby, stand.source = stand.source, owner
    try:
        stand.sync()
    finally:
        stand.source = standby
