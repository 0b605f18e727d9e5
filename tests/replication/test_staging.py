"""Where a flush is staged, and how what is staged is found in the table: neither grows with flushes or with rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.backends.postgres import apply
from penstock.backends.postgres.config import PostgresConfig
from penstock.errors import PlanRefused
from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.servers import Servers
from tests.replication.stand import Stand

pytestmark = pytest.mark.postgres

STAGES = "select oid, relname from pg_class where relname like '\\_penstock\\_%' and relpersistence = 't' order by oid"
TABLES = (
    "create table a (id int primary key, v text)",
    "create table b (id int primary key, v text)",
    "insert into a select i, '' from generate_series(1, 100) i",
    "insert into b select i, '' from generate_series(1, 100) i",
)


def changed(stand: Stand, turn: int) -> None:
    """Both tables in one transaction, with rows that come, change and go."""
    stand.source.execute(
        f"do $$ begin update a set v = '{turn}' where id < 50; delete from a where id = {100 - turn};"
        f" update b set v = '{turn}' where id < 50; delete from b where id = {100 - turn}; end $$"
    )
    stand.sync()


def test_flushes_after_flushes_are_staged_in_the_same_relations(make: Callable[..., Stand]) -> None:
    stand = make("postgres")
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    changed(stand, 1)
    before = stand.target.query(STAGES)
    assert len(before) == 4  # what comes and what goes, of two tables
    for turn in range(2, 6):
        changed(stand, turn)
    assert stand.target.query(STAGES) == before
    stand.assert_agrees("a", "b")


def test_of_more_tables_than_it_keeps_the_last_ones_stay(
    make: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "MOST_STAGES", 2)
    stand = make("postgres")
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    for turn in range(1, 4):
        changed(stand, turn)
        assert len(stand.target.query(STAGES)) == 2
    stand.assert_agrees("a", "b")


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_many_rows_that_go_are_looked_up_not_searched_for(make: Callable[..., Stand], deletes: str) -> None:
    """In SQLite, EXISTS would read every staged row for every row of the table."""
    stand = make("sqlite", deletes=deletes, apply_in_driver_rows=100_000)
    stand.source.execute(
        "create table pairs (a int, b text, v int, primary key (a, b))",
        "insert into pairs select i, 'x' || i % 7, i from generate_series(1, 40000) i",
    )
    stand.start()
    stand.sync()
    stand.source.execute("delete from pairs where a > 10", "update pairs set b = 'y' where a = 1")
    stand.sync()
    alive = "where not _penstock_deleted" if deletes == "soft" else ""
    assert stand.target.query(f"select count(*) from pairs {alive}") == [(10,)]
    if deletes == "hard":
        stand.assert_agrees("pairs")


def test_a_server_without_merge_is_refused_before_anything_is_touched(servers: Servers) -> None:
    server = servers.start(install=installed(14))
    config = PostgresConfig.model_validate({"name": "old", "type": "postgres", "dsn": server.dsn})
    with pytest.raises(PlanRefused, match="'old' is too old"):
        apply.PostgresApplier(config, "shop")
    assert PostgresHarness(server.dsn).query("select 1 from pg_namespace where nspname = '_penstock'") == []


@pytest.mark.parametrize("target", ["postgres", "duckdb"])
def test_many_rows_without_a_key_that_go_are_joined(make: Callable[..., Stand], target: str) -> None:
    """Rows as often as they are there, of every kind of value; compared each with each, they would take minutes."""
    stand = make(target, apply_in_driver_rows=100_000)
    stand.source.execute(
        "create table heap (a int, b text, c numeric, d timestamptz, e jsonb, f float8)",
        "alter table heap replica identity full",
        "insert into heap select i % 30000, nullif('x' || i % 7, 'x3'), (i % 30000) / 8.0,"
        " timestamptz '2020-01-01 00:00:00+00' + (i % 30000) * interval '1 s', null, -0.0"
        " from generate_series(1, 60000) i",
    )
    stand.start()
    stand.sync()
    stand.source.execute("delete from heap where ctid in (select min(ctid) from heap group by a, b having min(a) > 10)")
    stand.sync(40.0)
    stand.assert_agrees("heap")
