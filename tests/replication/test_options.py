"""Options of a replication, each on real servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.backends.base import Receipt, RunContext
from penstock.engine.task import Work
from penstock.errors import ConfigError, PlanRefused
from penstock.project import Project
from penstock.project.replications import TableOptions
from penstock.replicate.removal import remove
from tests.conformance.harness import PostgresHarness
from tests.replication.conftest import TARGETS
from tests.replication.servers import Servers
from tests.replication.stand import Stand, stage_here
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

ITEMS = (
    "create table items (id bigint primary key, name text)",
    "insert into items select i, 'item ' || i from generate_series(1, 500) i",
)
Make = Callable[..., Stand]


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)


def ended(stand: Stand) -> None:
    """It has ended by itself, without an error."""
    assert stand._thread is not None
    stand._thread.join(60)
    assert not stand._thread.is_alive()
    stand.stop()


def refusal(stand: Stand) -> PlanRefused:
    """It ends before anything is touched."""
    stand.start()
    await_true(lambda: stand.error is not None, 30)
    error, stand.error = stand.error, None
    assert isinstance(error, PlanRefused), error
    stand.stop()
    return error


def slots(stand: Stand) -> list[str]:
    rows = stand.source.query("select slot_name::text from pg_replication_slots where database = current_database()")
    return [name for (name,) in rows]


# ---------------------------------------------------------------- what


@pytest.mark.parametrize("target", TARGETS)
def test_a_copy_alone_ends_and_leaves_nothing_at_the_source(make: Make, target: str) -> None:
    stand = make(target, what="copy")
    stand.source.execute(*ITEMS)
    stand.start()
    ended(stand)
    stand.assert_agrees("items")
    assert slots(stand) == []
    assert stand.source.query("select 1 from pg_publication") == []
    assert stand.seen is not None
    assert stand.seen["state"] == "copied"
    # The next start is another copy.
    stand.source.execute("delete from items where id < 100", "update items set name = 'later' where id > 300")
    stand.start()
    ended(stand)
    stand.assert_agrees("items")
    assert slots(stand) == []


@pytest.mark.parametrize("target", TARGETS)
def test_changes_alone_begin_with_an_empty_table(make: Make, target: str) -> None:
    stand = make(target, what="changes")
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    assert stand.replicated("items") == []
    stand.source.execute("insert into items values (1000, 'new')", "update items set name = 'seen' where id = 7")
    stand.sync()
    assert stand.replicated("items") == ["(1000,new)", "(7,seen)"]


@pytest.mark.parametrize("target", TARGETS)
def test_changes_alone_go_on_with_what_the_target_has(make: Make, target: str) -> None:
    stand = make(target, what="changes", metadata_columns=False)
    stand.source.execute(*ITEMS)
    stand.target.execute(
        "create table items (id bigint primary key, name text)", "insert into items values (1, 'loaded'), (2, 'too')"
    )
    stand.start()
    stand.sync()
    stand.source.execute("update items set name = 'changed' where id = 2", "delete from items where id = 3")
    stand.sync()
    assert stand.replicated("items") == ["(1,loaded)", "(2,changed)"]


def test_changes_alone_refuse_a_table_that_lacks_columns(make: Make) -> None:
    stand = make("duckdb", what="changes")
    stand.source.execute(*ITEMS)
    stand.target.execute("create table items (id bigint primary key, name text)")
    error = refusal(stand)
    assert "_penstock_version" in error.what
    assert "metadata_columns" in error.remedy


# ---------------------------------------------------------------- truncate_with


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["delete", "truncate"])
def test_a_truncate_is_done_as_it_is_asked_for(make: Make, target: str, how: str) -> None:
    stand = make(target, truncate_with=how)
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    file = "select pg_relation_filenode('items')"
    before = stand.target.query(file) if target == "postgres" else []
    stand.source.execute("truncate items", "insert into items values (1, 'after')")
    stand.sync()
    stand.assert_agrees("items")
    if target == "postgres":
        # Only TRUNCATE gives the table another file.
        assert (stand.target.query(file) != before) is (how == "truncate")


# ---------------------------------------------------------------- tables that go, and come


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("on_drop", ["keep", "drop"])
def test_a_table_that_the_source_drops(make: Make, target: str, on_drop: str) -> None:
    stand = make(target, on_drop=on_drop)
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.source.execute("update items set name = 'last' where id = 1", "drop table items")
    await_true(lambda: stand.seen is not None and "public.items" not in stand.seen["tables"], 60, lambda: stand.seen)
    assert stand.target.has_table("items") is (on_drop == "keep")
    if on_drop == "keep":
        assert stand.target.query("select name from items where id = 1") == [("last",)]
    stand.source.execute("insert into others values (1)")
    stand.sync()
    stand.assert_agrees("others")


def test_a_table_that_is_dropped_while_nobody_looks(make: Make) -> None:
    stand = make("sqlite", on_drop="drop")
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.stop()
    stand.source.execute("drop table items")
    stand.start()
    stand.sync()
    assert not stand.target.has_table("items")
    assert stand.target.has_table("others")


def test_a_table_that_a_view_of_the_target_needs_is_dropped_once_it_may(make: Make) -> None:
    stand = make("postgres", on_drop="drop")
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.target.execute("create view shown as select * from items")
    stand.source.execute("drop table items")
    await_true(lambda: stand.state("items")["phase"] == "failed", 60, lambda: (stand.seen, stand.error))
    stand.source.execute("insert into others values (1)")
    stand.sync()
    stand.assert_agrees("others")
    stand.target.execute("drop view shown")
    await_true(lambda: stand.seen is not None and "public.items" not in stand.seen["tables"], 60, lambda: stand.seen)
    assert not stand.target.has_table("items")


def test_a_table_that_is_not_asked_for_any_more_stays(make: Make) -> None:
    stand = make("sqlite", on_drop="drop")
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.stop()
    stand.replication = stand.replication.model_copy(update={"tables": ("public.*", "!public.items")})
    stand.start()
    stand.sync()
    assert stand.target.has_table("items")


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_that_is_made_anew_is_copied_again(make: Make, target: str) -> None:
    stand = make(target)
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.source.execute(
        "drop table items",
        "create table items (id bigint primary key, weight float8)",
        "insert into items values (1, 0.5), (9999, 1)",
    )
    if target == "duckdb":
        # A file that one process writes to cannot be looked into by the way: found at the start instead.
        stand.stop()
        stand.start()
    else:
        await_true(lambda: "weight" in stand.target.columns("items"), 60, lambda: stand.seen)
    stand.source.execute("update items set weight = 2 where id = 1")
    stand.sync()
    stand.assert_agrees("items")


def test_a_table_that_gets_another_name_fails_with_the_remedy(make: Make) -> None:
    stand = make("sqlite", on_drop="drop")
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.source.execute("alter table items rename to things")
    await_true(lambda: stand.state("items")["phase"] == "failed", 60, lambda: stand.seen)
    assert "public.things" in stand.state("items")["reason"]
    assert "reload" in stand.state("items")["remedy"]
    assert stand.target.has_table("items")


def test_a_table_that_was_made_while_it_was_stopped_is_published(make: Make) -> None:
    stand = make("sqlite")
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.stop()
    stand.source.execute("create table later (id int primary key)", "insert into later values (1)")
    stand.start()
    stand.sync()
    stand.source.execute("insert into later values (2)")
    stand.sync()
    stand.assert_agrees("later", "items")


def test_a_table_that_was_taken_out_of_the_publication_for_a_while_is_copied_again(make: Make) -> None:
    stand = make("sqlite")
    stand.source.execute(*ITEMS, "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.stop()
    name = stand.replication.publication_name
    stand.source.execute(
        f"alter publication {name} drop table items",
        "update items set name = 'unsent'",
        f"alter publication {name} add table items",
    )
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "others")


# ---------------------------------------------------------------- snapshot_max_age


@pytest.mark.parametrize("target", TARGETS)
def test_a_long_copy_goes_on_under_new_snapshots(make: Make, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows move between ranges that are read at different moments; the log makes all of them exact."""
    monkeypatch.setattr("penstock.backends.postgres.change_source.RANGE_BYTES", 8192)
    waves: list[int] = []

    def stage(project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
        made = stage_here(project, pieces, run)
        number = len(waves)
        waves.append(len(pieces))
        stand.source.execute(
            f"update items set name = 'moved in {number}' where id % 50 = {number}",
            f"delete from items where id % 97 = {number}",
        )
        return made

    stand = make(target, stage=stage, snapshot_max_age="1ms", parallel=1)
    stand.source.execute(
        "create table items (id bigint primary key, name text)",
        "insert into items select i, repeat('x', 200) from generate_series(1, 1500) i",
    )
    stand.start()
    stand.sync()
    stand.sync()  # of what was changed after the first of them began
    stand.assert_agrees("items")
    # Each wave was read under a snapshot of its own, and every row says which it is of.
    [(moments,)] = stand.target.query("select count(distinct _penstock_version) from items")
    assert len(waves) > 5
    assert moments > 5


# ---------------------------------------------------------------- a publication of the user's own


def test_a_publication_of_the_users_own_is_left_as_it_is(make: Make) -> None:
    stand = make("sqlite", publication="theirs")
    stand.source.execute(
        *ITEMS,
        "create publication theirs for table items (id, name) where (id > 100) with (publish_via_partition_root)",
    )
    entries = "select p.oid, p.xmin::text, r.oid, r.xmin::text from pg_publication p, pg_publication_rel r"
    before = stand.source.query(entries)
    stand.start()
    stand.sync()
    assert len(stand.replicated("items")) == 400
    stand.source.execute(
        "update items set id = 5000 where id = 1",  # into what it sends
        "update items set id = 2 - 1 where id = 200",  # and out of it
        "update items set name = 'unsent' where id = 3",
    )
    stand.sync()
    rows = stand.source.query("select id from items where id > 100 order by id")
    assert stand.target.query("select id from items order by id") == rows
    assert stand.source.query(entries) == before
    assert stand.source.query("select pubname::text from pg_publication") == [("theirs",)]


def test_a_publication_of_the_users_own_is_checked(make: Make) -> None:
    stand = make("sqlite", publication="theirs")
    stand.source.execute(*ITEMS, "create table words (word text)")
    error = refusal(stand)
    assert "no publication theirs" in error.why
    stand.source.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create publication theirs for table words, parted with (publish = 'insert, update')",
    )
    error = refusal(stand)
    for part in ("does not have public.items", "every kind of change", "partitions' names", "no replica identity"):
        assert part in error.why
    assert 'add table only "public"."items"' in error.remedy
    assert slots(stand) == []


# ---------------------------------------------------------------- what stands in the way


def test_all_that_stands_in_the_way_is_told_at_once(make: Make, servers: Servers, tmp_path: Path) -> None:
    server = servers.start(wal_level="replica", max_replication_slots="1", max_wal_senders="1")
    owner = PostgresHarness(server.dsn)
    owner.execute(
        *ITEMS,
        "create schema hidden",
        "create table hidden.secrets (id int primary key)",
        "create role clerk login password 'a-secret'",
        "grant usage on schema hidden to clerk",
    )
    clerk = PostgresHarness(f"postgresql://clerk:a-secret@127.0.0.1:{server.port}/postgres")
    stand = make("sqlite", clerk, tables=["public.items", "hidden.*"])
    error = refusal(stand)
    for part in (
        "wal_level is replica",
        "clerk may not replicate",
        "WAL senders",
        "table hidden.secrets cannot be read",
        "table public.items cannot be read",
        "may not make the publication",
    ):
        assert part in error.why, error.why
    for part in ("set wal_level = logical", 'alter role "clerk" with replication', "max_wal_senders", "grant select"):
        assert part in error.remedy, error.remedy


def test_rows_that_a_policy_hides_are_told_before_anything_starts(make: Make, servers: Servers) -> None:
    server = servers.start()
    owner = PostgresHarness(server.dsn)
    owner.execute(
        *ITEMS,
        "create table parts (id int primary key) partition by range (id)",
        "create table leaf partition of parts default",
        "create table others (id int primary key)",
        "create role clerk login replication password 'a-secret'",
        "grant select on all tables in schema public to clerk",
        *(f"alter table {table} enable row level security" for table in ("items", "leaf", "others")),
        "grant create on database postgres to clerk",
    )
    clerk = PostgresHarness(f"postgresql://clerk:a-secret@127.0.0.1:{server.port}/postgres")
    stand = make("sqlite", clerk, tables=["public.items", "public.parts"])
    error = refusal(stand)
    assert "row security hides rows of public.items, public.parts from the user clerk" in error.why
    assert 'alter role "clerk" with bypassrls' in error.remedy
    assert owner.query("select 1 from pg_publication") == []
    assert owner.query("select 1 from pg_replication_slots") == []
    # The rest is as `prepare` asks for it; then of a table that is added by a reload, the same is told at once.
    owner.execute(
        *(f"alter table {table} disable row level security" for table in ("items", "leaf")),
        *(f"alter table {table} owner to clerk" for table in ("items", "parts", "leaf", "others")),
        "alter table others force row level security",
    )
    stand.start()
    owner_stand_synced(stand, owner)
    stand.replication = stand.replication.model_copy(update={"tables": ("public.*",)})
    answer = stand.ask("reload")
    assert "row security hides rows of public.others" in answer
    owner.execute('alter role "clerk" with bypassrls')
    assert stand.ask("reload").startswith("1 table added")


def test_no_free_slot_is_found_before_anything_starts(make: Make, servers: Servers) -> None:
    server = servers.start(max_replication_slots="1")
    owner = PostgresHarness(server.dsn)
    owner.execute(*ITEMS, "select pg_create_logical_replication_slot('taken', 'pgoutput')")
    stand = make("sqlite", owner)
    error = refusal(stand)
    assert "all 1 replication slots are taken" in error.why
    assert "max_replication_slots" in error.remedy
    assert owner.query("select 1 from pg_publication") == []


def test_tables_that_replications_fill_fit_no_pattern(make: Make) -> None:
    stand = make("postgres", tables=["*.*"], target_schema="mirror", metadata_columns=False)
    stand.source.execute(*ITEMS)
    stand.target = stand.source
    mirrored = "select count(*), max(name) from mirror.items"
    stand.start()
    stand.sync()
    for change in ("delete from items where id > 2", "insert into items values (7, 'x')"):
        stand.stop()
        stand.source.execute(change)
        stand.start()
        stand.sync()
        assert stand.ask("reload") == "0 tables added, 0 removed"
    assert stand.source.query(mirrored) == [(3, "x")]
    # Nor those of another one, or of this one once it was removed.
    other = make("sqlite", stand.source, tables=["*.items"])
    other.start()
    other.sync()
    assert other.seen is not None
    assert list(other.seen["tables"]) == ["public.items"]
    other.stop()
    stand.stop()
    remove(stand.project(), stand.replication, source=True, target=True)
    stand.source.execute("create table others (id int primary key)")
    stand.start()
    stand.sync()
    assert stand.seen is not None
    assert list(stand.seen["tables"]) == ["public.items", "public.others"]
    # What is named letter by letter is meant.
    stand.stop()
    other.replication = other.replication.model_copy(update={"tables": ("mirror.items", "mirror.*")})
    other.start()
    other.sync()
    assert list(other.seen["tables"]) == ["mirror.items"]
    stand.start()
    stand.sync()
    other.sync()
    assert other.target.query("select count(*), max(name) from items") == [(3, "x")]


def test_a_table_is_never_replicated_into_itself(make: Make) -> None:
    stand = make("postgres")
    stand.source.execute(*ITEMS)
    stand.target = stand.source
    error = refusal(stand)
    assert "public.items would go into public.items, which is the table itself" in error.why
    # Another user of the same database, and another table that is replicated as well.
    stand.source.execute("create table others (id int primary key)")
    options = {"public.items": TableOptions(target="public.others"), "public.others": TableOptions(target="far.away")}
    stand.replication = stand.replication.model_copy(update={"options": options})
    assert "replicated as well" in refusal(stand).why
    assert stand.source.query("select to_regclass('_penstock.replications')") == [(None,)]


def test_what_prepare_prints_is_enough_for_a_user_without_privileges(
    make: Make, servers: Servers, tmp_path: Path
) -> None:
    server = servers.start()
    owner = PostgresHarness(server.dsn)
    owner.execute(
        "create schema app",
        "create table app.items (id bigint primary key, name text)",
        "create table app.words (word text)",
        "insert into app.items select i, 'item ' || i from generate_series(1, 100) i",
        "create role clerk login password 'a-secret'",
        "grant usage on schema app to clerk",  # or nobody could tell the name
    )
    clerk = PostgresHarness(f"postgresql://clerk:a-secret@127.0.0.1:{server.port}/postgres")
    stand = make("sqlite", clerk, tables=["app.items", "app.words"])
    (tmp_path / "penstock.toml").write_text(
        f"""
[connections.from_]
type = "postgres"
dsn = "{clerk.dsn}"
[connections.to]
type = "sqlite"
path = "{tmp_path / "to.sqlite"}"
[replications.{stand.replication.name}]
source = "from_"
target = "to"
tables = ["app.items", "app.words"]
"""
    )
    name = stand.replication.name
    printed = subprocess.run(
        [*f"{sys.executable} -m penstock.cli.main --project {tmp_path} replications prepare --print".split(), name],
        capture_output=True,
        text=True,
        check=False,
    )
    statements = [line for line in printed.stdout.splitlines() if line.endswith(";")]
    assert any(line.startswith('alter role "clerk" with replication') for line in statements), printed.stderr
    owner.execute(*statements)
    # The least: it may read these tables and the log, and nothing else.
    assert owner.query("select rolsuper, rolcreatedb, rolcreaterole from pg_roles where rolname = 'clerk'") == [
        (False, False, False)
    ]
    stand.start()
    owner_stand_synced(stand, owner)
    owner.execute("update app.items set name = 'changed' where id < 10", "insert into app.words values ('a')")
    owner_stand_synced(stand, owner)
    assert stand.target.query("select count(*) from items where name = 'changed'") == [(9,)]
    assert stand.target.query("select word from words") == [("a",)]


def owner_stand_synced(stand: Stand, owner: PostgresHarness) -> None:
    """As `sync`, by somebody who may write into the log."""
    clerk, stand.source = stand.source, owner
    try:
        stand.sync()
    finally:
        stand.source = clerk


def test_options_for_a_table_that_is_none_of_the_replications_are_refused(make: Make) -> None:
    stand = make("sqlite", options={"public.itmes": {"exclude": ["name"]}})
    stand.source.execute(*ITEMS)
    stand.start()
    await_true(lambda: stand.error is not None, 30)
    error, stand.error = stand.error, None
    stand.stop()
    assert isinstance(error, ConfigError)
    assert "public.itmes" in error.what
    assert "public.items" in error.why
    assert stand.source.query("select 1 from pg_publication") == []
