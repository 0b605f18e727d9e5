"""Which columns and names a replication gives its tables, how much a flush brings, and when it halts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import DataError
from penstock.project.replications import TableOptions
from penstock.replicate import flushing
from tests.replication.conftest import TARGETS
from tests.replication.stand import ITEMS, Stand
from tests.replication.test_target_down import goes_on, told
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("target", ["postgres", "duckdb"])  # SQLite has one schema
def test_all_tables_go_into_the_schema_that_is_asked_for(make: Make, target: str) -> None:
    stand = make(target, target_schema="elsewhere")
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.source.execute("delete from items where id > 2", "insert into others values (7)")
    stand.sync()
    assert stand.target.query("select id, name from elsewhere.items order by id") == [(1, "item 1"), (2, "item 2")]
    assert stand.target.query("select id from elsewhere.others") == [(7,)]
    assert not stand.target.has_table("items")


@pytest.mark.parametrize("target", TARGETS)
def test_tables_of_one_name_go_where_the_template_says(make: Make, target: str) -> None:
    stand = make(target, tables=["public.items", "app.items"], target_name="{schema}__{table}")
    stand.source.execute(*ITEMS, "create schema app", "create table app.items (id int primary key, name text)")
    stand.start()
    stand.sync()
    stand.source.execute("delete from items where id > 2", "insert into app.items values (7, 'of the app')")
    stand.sync()
    stand.assert_agrees("items")
    assert stand.target.query("select id, name from public__items order by id") == [(1, "item 1"), (2, "item 2")]
    assert stand.target.query("select id, name from app__items") == [(7, "of the app")]
    assert not stand.target.has_table("items")


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_columns_that_are_included_and_the_key_leave_the_source(make: Make, target: str) -> None:
    stand = make(target, options={"public.items": TableOptions(include=("name",))}, metadata_columns=False)
    stand.source.execute(*ITEMS, "alter table items add column secret text default 'hidden'")
    stand.start()
    stand.sync()
    stand.source.execute(
        "alter table items add column more int default 7",
        "update items set name = 'changed', secret = 'still' where id = 1",
        "delete from items where id > 3",
        "insert into items values (9, 'new', 'too')",
    )
    stand.sync()
    assert stand.target.columns("items") == ["id", "name"]
    here = stand.source.query("select id, name from items order by id")
    assert stand.target.rows("items") == here
    assert stand.source.query("select attnames::text from pg_publication_tables") == [("{id,name}",)]


# ---------------------------------------------------------------- flush_rows


@pytest.mark.parametrize(("flush_rows", "flushes"), [(20, [20, 20, 20]), (5, [10] * 6)])
def test_a_backlog_is_brought_in_flushes_of_so_many_rows(make: Make, flush_rows: int, flushes: list[int]) -> None:
    """A flush is one transaction of the target, which its rows tell. None brings a part of one of the source."""
    stand = make("postgres", flush_rows=flush_rows)
    stand.source.execute("create table items (id int primary key)")
    stand.start()
    stand.sync()
    assert stand.ask("pause") == "paused"
    for number in range(6):
        stand.source.execute(f"insert into items select {number}0 + i from generate_series(0, 9) i")
        goes_on(stand)  # in a segment of its own
    assert stand.target.query("select count(*) from items") == [(0,)]
    assert stand.ask("resume") == "resumed"
    stand.sync()
    rows = stand.target.query("select count(*) from items group by xmin::text order by min(id)")
    assert [count for (count,) in rows] == flushes
    stand.assert_agrees("items")


# ---------------------------------------------------------------- on_table_error


def test_halted_by_one_table_no_other_goes_on_without_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "RETRY_SECONDS", (600.0, 600.0))
    stand = make("sqlite", on_table_error="halt")
    stand.source.execute(*ITEMS, "create table odd (id int primary key, a float8)", "insert into odd values (1, 1)")
    stand.start()
    stand.sync()
    # SQLite holds no NaN.
    stand.source.execute("begin; delete from items where id > 400; update odd set a = 'NaN'; commit")
    await_true(lambda: stand.error is not None, 30, lambda: told(stand))
    error, stand.error = stand.error, None
    assert isinstance(error, DataError)
    stand.stop()
    assert told(stand)["state"] == "failed"
    assert stand.state("odd")["phase"] == "streaming"
    assert stand.target.query("select count(*) from items") == [(500,)]
    # Asked to isolate, it goes on with the other from there; and with this one, once its value fits.
    stand.replication = stand.replication.model_copy(update={"on_table_error": "isolate"})
    stand.start()
    stand.sync()
    assert stand.state("odd")["phase"] == "failed"
    stand.assert_agrees("items")
    stand.source.execute("update odd set a = 3")
    stand.resync("odd")
    stand.sync(settled=True)
    stand.assert_agrees("items", "odd")
