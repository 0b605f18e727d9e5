"""Tables that are there, and would do something of their own with what is replicated: triggers, constraints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PlanRefused
from penstock.replicate import circuit, flushing
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.desk import NAME, Desk
from tests.replication.stand import BAG, ITEMS, Stand
from tests.replication.test_every_table_fails import Clerk
from tests.replication.test_target_down import goes_on, told
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]
THERE = "create table items (id bigint primary key, name text)"
OTHERS = "create table others (id int primary key, v text)"
SHOUTS = (
    "create function shout() returns trigger language plpgsql as"
    " $$ begin new.name := upper(new.name); return new; end $$",
    "create trigger shouting before insert or update on items for each row execute function shout()",
)
NOTES = (
    "create table notes (id bigint)",
    "create function note() returns trigger language plpgsql as"
    " $$ begin insert into public.notes values (new.id); return null; end $$",
    "create trigger noting after insert or update on items for each row execute function note()",
)
COUNT = "select count(*) from notes"
SWAP = (
    "begin; update seats set taken_by = '' where id = 1; update seats set taken_by = 'a' where id = 2;"
    " update seats set taken_by = 'b' where id = 1; commit"
)
SEATS = ("create table seats (id int primary key, taken_by text)", "insert into seats values (1, 'a'), (2, 'b')")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)
    monkeypatch.setattr(flushing, "RETRY_SECONDS", (0.1, 0.5))
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (0.1, 0.5))


@pytest.fixture
def clerk(harness: Callable[[str], Harness]) -> Clerk:
    """May not set `session_replication_role`, and owns the tables."""
    owner = harness("postgres")
    assert isinstance(owner, PostgresHarness)
    return Clerk(owner)


def into(stand: Stand, target: Harness | None = None) -> Stand:
    """Items and others, of which the target has the items; and rows."""
    stand.target = target or stand.target
    stand.source.execute(*ITEMS, OTHERS, "insert into others values (1, 'a')")
    stand.target.execute(THERE)
    return stand


def changed(stand: Stand, number: int = 1) -> None:
    stand.source.execute(f"update items set name = 'late {number}' where id = {number}", "update others set v = v || v")


def warnings(stand: Stand) -> str:
    return "; ".join(f"{one['table']}: {one['what']} ({one['remedy']})" for one in told(stand)["warnings"])


def fails(stand: Stand, table: str) -> dict[str, str]:
    await_true(lambda: stand.seen and stand.state(table)["phase"] == "failed", 30, lambda: (stand.seen, stand.error))
    return stand.state(table)


# ---------------------------------------------------------------- triggers


@pytest.mark.parametrize("what", ["both", "changes"])
def test_triggers_of_the_target_do_not_fire(make: Make, what: str) -> None:
    stand = into(make("postgres", what=what, metadata_columns=False))
    stand.target.execute(*SHOUTS, *NOTES)
    if what == "changes":
        stand.target.execute("alter table items disable trigger user", "insert into items values (1, 'item 1')")
        stand.target.execute("alter table items enable trigger user")
    stand.start()
    stand.sync()
    changed(stand)
    stand.sync()
    # A session that comes after one that was lost is like it.
    ended = f"select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = '{name_of(stand)}'"
    assert stand.target.query(ended) == [(1,)]
    changed(stand, 2)
    stand.sync()
    assert stand.target.query("select name from items where id = 1") == [("late 1",)]
    if what == "both":
        stand.assert_agrees("items", "others")
    assert stand.target.query(COUNT) == [(0,)]
    assert "trigger noting of public.items does not fire" in warnings(stand)
    assert "enable always trigger noting" in warnings(stand)
    assert "shouting" not in warnings(stand)


def name_of(stand: Stand) -> str:
    return f"penstock:{stand.replication.name}:apply"


def test_a_trigger_that_may_change_rows_all_the_same_fails_its_table_alone(make: Make) -> None:
    stand = into(make("postgres"))
    stand.target.execute(*SHOUTS, *NOTES, "alter table items enable always trigger shouting")
    stand.target.execute("alter table items enable replica trigger noting")
    stand.start()
    state = fails(stand, "items")
    stand.sync()
    stand.assert_agrees("others")
    assert "trigger shouting of public.items fires before each row" in state["reason"]
    assert "alter table public.items disable trigger shouting" in state["remedy"]
    assert "trigger noting of public.items fires for what is replicated" in warnings(stand)
    assert stand.target.query("select count(*) from items") == [(0,)]
    stand.target.execute("alter table items disable trigger shouting")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")
    assert stand.target.query(COUNT) == [(500,)]  # told, and done
    # One that comes while it streams.
    stand.target.execute("alter table items enable always trigger shouting")
    fails(stand, "items")
    changed(stand)
    goes_on(stand)
    stand.target.execute("drop trigger shouting on items")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")


def test_who_may_not_silence_triggers_is_told_which_stand_in_the_way(make: Make, clerk: Clerk) -> None:
    stand = into(make("postgres"), clerk)
    clerk.execute(*SHOUTS, *NOTES)
    stand.start()
    state = fails(stand, "items")
    stand.sync()
    stand.assert_agrees("others")
    assert "trigger shouting of public.items fires before each row" in state["reason"]
    grant = f'grant set on parameter session_replication_role to "{clerk._role}"'
    assert grant in state["remedy"]
    assert "trigger noting of public.items fires for what is replicated" in warnings(stand)
    assert grant in warnings(stand)
    clerk._owner.execute(grant)
    stand.sync(settled=True)
    changed(stand)
    stand.sync()
    stand.assert_agrees("items", "others")
    assert clerk.query(COUNT) == [(0,)]


def test_a_rule_of_the_target_fails_its_table_alone(make: Make) -> None:
    stand = into(make("postgres"))
    stand.target.execute(
        "create rule drops as on insert to items do instead nothing", "alter table items enable always rule drops"
    )
    stand.start()
    assert "rule drops of public.items" in fails(stand, "items")["reason"]
    assert "alter table public.items disable rule drops" in stand.state("items")["remedy"]
    stand.target.execute("drop rule drops on items")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")


def test_nothing_begins_when_every_table_is_refused_or_one_shall_halt_it(make: Make) -> None:
    stand = into(make("postgres", tables=["public.items"]))
    stand.target.execute(*SHOUTS, "alter table items enable always trigger shouting")
    for options in ({"tables": ("public.items",)}, {"tables": ("public.*",), "on_table_error": "halt"}):
        stand.replication = stand.replication.model_copy(update=options)
        stand.start()
        await_true(lambda: stand.error is not None, 30)
        error, stand.error = stand.error, None
        stand.stop()
        assert isinstance(error, PlanRefused)
        assert "trigger shouting of public.items" in error.why
        assert "disable trigger shouting" in error.remedy
        assert stand.source.query("select 1 from pg_publication") == []


def test_a_table_that_is_added_is_looked_at_before_it_is_copied(make: Make) -> None:
    stand = into(make("postgres", tables=["public.others"]))
    stand.target.execute(*SHOUTS, "alter table items enable always trigger shouting")
    stand.start()
    stand.sync()
    stand.replication = stand.replication.model_copy(update={"tables": ("public.*",)})
    assert stand.ask("reload") == "1 table added, 0 removed"
    assert "trigger shouting" in fails(stand, "items")["reason"]

    def shown() -> dict[str, Any]:
        return next((table for table in told(stand)["tables"] if table["table"] == "public.items"), {})

    await_true(lambda: shown().get("phase") == "failed", 10, shown)
    assert shown()["copied"] == 0
    stand.target.execute("alter table items disable trigger shouting")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")


def test_a_trigger_of_sqlite_fails_its_table_alone_or_is_told(make: Make) -> None:
    stand = into(make("sqlite"))
    stand.target.execute(
        "create table notes (id bigint)",
        "create trigger noting after update on items begin insert or ignore into notes values (new.id); end",
        "create trigger leaving before insert on items when new.id > 400 begin select raise(ignore); end",
    )
    stand.start()
    state = fails(stand, "items")
    stand.sync()
    stand.assert_agrees("others")
    assert "trigger leaving of items may change rows or leave them out" in state["reason"]
    assert "drop it" in state["remedy"]
    assert "trigger noting of items fires for what is replicated" in warnings(stand)
    stand.target.execute(
        "drop trigger leaving",
        'create trigger shouting after insert on items begin update "items" set name = upper(name); end',
    )
    await_true(lambda: "trigger shouting" in stand.state("items")["reason"], 30, lambda: stand.seen)
    stand.target.execute("drop trigger shouting")
    stand.sync(settled=True)
    changed(stand)
    stand.sync()
    stand.assert_agrees("items", "others")
    assert stand.target.query(COUNT) == [(1,)]


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "not silent"])
def test_values_that_must_be_unique_change_hands(make: Make, clerk: Clerk, silent: bool) -> None:
    stand = make("postgres")
    stand.target = stand.target if silent else clerk
    stand.source.execute(*SEATS, OTHERS)
    stand.target.execute("create table seats (id int primary key, taken_by text unique)")
    stand.start()
    stand.sync()
    assert "unique constraint seats_taken_by_key of public.seats is checked row by row" in warnings(stand)
    stand.source.execute(SWAP, "insert into others values (1)")
    state = fails(stand, "seats")
    stand.sync()
    stand.assert_agrees("others")
    assert "seats_taken_by_key" in state["reason"]
    assert "deferrable" in state["remedy"]
    assert "another type" not in state["remedy"]
    stand.target.execute(
        "alter table seats drop constraint seats_taken_by_key, add unique (taken_by) deferrable initially immediate"
    )
    stand.sync(settled=True)
    stand.assert_agrees("seats", "others")
    await_true(lambda: "row by row" not in warnings(stand), 10, lambda: warnings(stand))
    assert ("is deferrable, which the server does not check" in warnings(stand)) is silent


@pytest.mark.parametrize("target", ["sqlite", "duckdb"])
def test_a_constraint_that_cannot_be_put_off_is_told(make: Make, target: str) -> None:
    stand = make(target)
    stand.source.execute(*SEATS, OTHERS)
    stand.target.execute("create table seats (id int primary key, taken_by text unique)")
    stand.start()
    stand.sync()
    assert "row by row" in warnings(stand)
    stand.source.execute(SWAP, "insert into others values (1)")
    if target == "sqlite":  # DuckDB's own way with a swap is another
        state = fails(stand, "seats")
        assert "of a constraint that the target alone has, drop it there" in state["remedy"]
    stand.sync()
    stand.assert_agrees("others")


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "not silent"])
def test_rows_come_in_an_order_that_foreign_keys_forbid(make: Make, clerk: Clerk, silent: bool) -> None:
    stand = make("postgres")
    stand.target = stand.target if silent else clerk
    parents = "create table b_parents (id int primary key)"
    stand.source.execute(parents, "create table a_children (id int primary key, parent int)")
    stand.source.execute("insert into b_parents values (1)", "insert into a_children values (1, 1)", OTHERS)
    stand.target.execute(
        parents,
        "create table a_children (id int primary key, parent int references b_parents deferrable initially immediate)",
    )
    stand.start()
    stand.sync(settled=True)  # a copy of the one may have to wait for that of the other
    stand.source.execute("begin; insert into b_parents values (2); insert into a_children values (2, 2); commit")
    stand.sync()
    stand.source.execute("begin; delete from a_children where id = 1; delete from b_parents where id = 1; commit")
    stand.sync()
    stand.assert_agrees("b_parents", "a_children")
    assert stand.state("a_children")["phase"] == "streaming"
    # A row without its parent, which the source does not mind: where it is checked, that table has failed alone.
    stand.source.execute("begin; insert into a_children values (3, 3); insert into others values (3); commit")
    stand.sync()
    stand.assert_agrees("others", "b_parents")
    assert stand.state("b_parents")["phase"] == "streaming"
    if silent:
        stand.assert_agrees("a_children")
        return
    state = fails(stand, "a_children")
    assert "foreign key" in state["reason"]
    assert "a_children_parent_fkey" in state["reason"]
    stand.source.execute("insert into b_parents values (3)")
    stand.sync(settled=True)
    stand.assert_agrees("b_parents", "a_children")


def test_a_foreign_key_that_changes_rows_fails_its_table_alone(make: Make, clerk: Clerk) -> None:
    stand = into(make("postgres"), clerk)
    clerk.execute("create table notes (id bigint primary key references items on delete cascade)")
    stand.start()
    state = fails(stand, "items")
    stand.sync()
    stand.assert_agrees("others")
    assert "foreign key notes_id_fkey deletes or changes rows of public.notes" in state["reason"]
    assert "grant set on parameter" in state["remedy"]
    clerk.execute("alter table notes drop constraint notes_id_fkey")
    clerk.execute("alter table notes add foreign key (id) references items")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")
    assert "notes_id_fkey of public.notes to public.items is checked row by row" in warnings(stand)


def test_a_row_that_goes_and_is_not_there_is_told_with_what_a_replication_can_do(make: Make) -> None:
    stand = make("postgres")
    stand.source.execute(*BAG, OTHERS, "insert into bag values ('a'), ('b')")
    stand.start()
    stand.sync()
    stand.target.execute("delete from bag where v = 'a'")
    stand.source.execute("delete from bag", "insert into others values (1)")
    state = fails(stand, "bag")
    assert "not there as often, or a trigger keeps them" in state["reason"]
    assert f"penstock replications resync {stand.replication.name} public.bag" in state["remedy"]
    stand.resync("bag")
    stand.sync(settled=True)
    stand.assert_agrees("bag", "others")


# ---------------------------------------------------------------- said before a start, and shown


def test_prepare_tells_what_the_tables_of_the_target_would_do(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    source, target = harness("postgres"), harness("postgres")
    assert isinstance(source, PostgresHarness)
    assert isinstance(target, PostgresHarness)
    source.execute(*SEATS)
    target.execute(
        "create table seats (id int primary key, taken_by text unique, name text)",
        *(statement.replace("items", "seats") for statement in SHOUTS),
        "alter table seats enable always trigger shouting",
    )
    desk = Desk(source, target, tmp_path)
    try:
        told = desk.run("replications", "prepare", NAME)
        assert told.code == 1
        assert "trigger shouting of public.seats fires before each row" in one_line(told.err)
        assert "disable trigger shouting" in one_line(told.err)
        assert "seats_taken_by_key of public.seats is checked row by row" in one_line(told.err)
        assert source.query("select 1 from pg_publication") == []
        assert target.query("select to_regnamespace('_penstock')") == [(None,)]
        target.execute("alter table seats disable trigger shouting")
        told = desk.run("replications", "prepare", NAME)
        assert told.code == 0
        assert "shouting" not in told.err
        assert "row by row" in told.err
        desk.start()
        desk.await_streaming("seats")
        assert "seats_taken_by_key of public.seats is checked row by row" in one_line(
            desk.run("replications", "show", NAME).out
        )
        desk.stop()
        # One that does not answer is in the way of nothing at the source.
        target.dsn = target.dsn.rpartition("/")[0] + "/nowhere"
        desk.configure()
        told = desk.run("replications", "prepare", NAME)
        assert told.code == 0
        assert "the target could not be looked at" in told.err
    finally:
        desk.stop()
        desk.clear()


def one_line(text: str) -> str:
    return " ".join(text.split())
