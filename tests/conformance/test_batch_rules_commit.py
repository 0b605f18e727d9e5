"""Rules of docs/explanation/rules.md, 3 and 4: the commit; same value, same row. No JVM unless Spark is the point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.backends.base import TableLoad, UserSql
from penstock.backends.postgres import PostgresConfig
from penstock.backends.postgres.connect import DriverSession, open_session
from penstock.backends.sql import Counts, run_steps
from penstock.errors import ConfigError, DataError, PenstockError, PlanRefused, TargetError
from penstock.project import Project
from penstock.run import pipeline as runs
from penstock.schema import TableName
from tests.conformance.conftest import BACKENDS
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.faults.bare import stage_here

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]


@pytest.fixture(params=BACKENDS)
def quick(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into each backend."""
    return Flow(harness("postgres"), harness(request.param), tmp_path)


@pytest.fixture
def into_postgres(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Flow(harness("postgres"), harness("postgres"), tmp_path)


def dsn_of(harness: Harness) -> str:
    assert isinstance(harness, PostgresHarness)
    return harness.dsn


# ---------------------------------------------------------------- 3. commit


def test_3_commit_the_runs_row_is_in_the_loads_own_transaction(quick: Flow) -> None:
    quick.source.execute("create table items as select generate_series(1, 3) as id")
    record = quick.run()
    loads = f"select run, staged from _penstock.loads where run = '{record.run_id}'"
    assert quick.target.query(loads) == [(record.run_id, 3)]
    with pytest.raises(TargetError, match="no_such_table"):
        quick.run(transforms_post=["insert into no_such_table values (1)"])
    assert quick.target.query("select count(*) from _penstock.loads") == [(1,)]


def test_3_commit_one_row_per_run_and_a_second_of_the_same_run_is_refused(quick: Flow) -> None:
    quick.source.execute("create table items as select 1 as id")
    record = quick.run()
    with pytest.raises(Exception, match=r"(?i)constraint|duplicate|unique"):
        quick.target.execute(
            f"insert into _penstock.loads select '{record.run_id}', pipeline, target, mode, staged, watermark, format,"
            " committed_at from _penstock.loads"
        )


def test_3_lock_a_merge_keeps_other_writers_out_and_readers_in(into_postgres: Flow) -> None:
    """MERGE without a unique index races with other writers."""
    flow = into_postgres
    flow.source.execute("create table items as select 1 as id, 'a' as name")
    flow.target.execute("create table items (id int, name text)", "create table seen (mode text)")
    look = "insert into seen select mode from pg_locks where relation = 'items'::regclass and pid = pg_backend_pid()"
    flow.run(mode="merge", keys=["id"], transforms_post=[look])
    modes = {mode for (mode,) in flow.target.query("select mode from seen")}
    assert "ShareRowExclusiveLock" in modes
    assert "AccessExclusiveLock" not in modes


def test_3_lock_waiting_for_it_ends_and_says_so(into_postgres: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = into_postgres
    flow.source.execute("create table items as select 1 as id")
    flow.run(mode="merge", keys=["id"])
    pipeline = flow.pipeline(mode="merge", keys=["id"])
    waits = {"from_": flow.source.options(), "to": flow.target.options() | {"lock_timeout": "100ms"}}
    project = Project.from_objects(flow.root, connections=waits, pipelines=[pipeline])
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    with psycopg.connect(dsn_of(flow.target)) as writer:
        writer.execute("lock table items in row exclusive mode")
        with pytest.raises(PenstockError, match="a lock was not to be had in time") as caught:
            runs.run(project, pipeline, flow.store, stage=stage_here)
    assert caught.value.retryable
    assert flow.target.leftovers() == []


def test_3_user_sql_may_not_end_the_transaction(into_postgres: Flow) -> None:
    flow = into_postgres
    held = {"commit": "COMMIT", "select 1; rollback": "ROLLBACK", "begin": "BEGIN", "commit and chain": "COMMIT"}
    for sql, word in (held | {"/* go */ start transaction": "START TRANSACTION"}).items():
        with pytest.raises(ConfigError, match=rf"transforms_pre\[0\] holds {word}: it would end the load's own"):
            flow.project(flow.pipeline(transforms_pre=[sql]))
    # What no look at the text can find: the transaction's id tells.
    conninfo = PostgresConfig(name="db", dsn=dsn_of(flow.target)).conninfo()
    with open_session(conninfo, "test") as connection:
        session = DriverSession(connection, conninfo)
        session.execute("begin")
        load = TableLoad(TableName("public", "items"), (), (UserSql("commit; begin", "transforms_post[0]"),), "append")
        with pytest.raises(TargetError, match="ended the load's transaction"):
            run_steps(session, load, Counts(), savepoints=True)


def test_3_user_sql_a_procedure_that_commits_is_refused_by_the_server(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items as select 1 as id")
    flow.target.execute("create procedure ends() language plpgsql as $$ begin commit; end $$")
    with pytest.raises(TargetError, match="invalid transaction termination"):
        flow.run(transforms_post=["call ends()"])
    assert not flow.target.has_table("items")


def test_3_truncate_an_older_reader_never_sees_an_empty_table(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items as select generate_series(1, 3) as id")
    flow.run(mode="truncate")
    with psycopg.connect(dsn_of(flow.target)) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1").fetchone()  # its moment; the table itself is not touched yet
        flow.run(mode="truncate")
        assert reader.execute("select count(*) from items").fetchone() == (3,)


def test_3_truncate_with_truncate_is_by_choice(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items as select generate_series(1, 3) as id")
    flow.run(mode="truncate")
    files = "select pg_relation_filenode('items')"
    before = flow.target.query(files)
    flow.run(mode="truncate")
    assert flow.target.query(files) == before
    assert any(sql.startswith("truncate ") for sql in flow.plan(mode="truncate", truncate_with="truncate").sql)
    record = flow.run(mode="truncate", truncate_with="truncate")
    assert (record.inserted, record.deleted) == (3, 3)
    assert flow.target.query(files) != before
    assert flow.target.query("select count(*) from items") == [(3,)]


LEAVES_OUT = """
create function leave_out() returns trigger language plpgsql as $$ begin
  if tg_op = 'DELETE' then return case when old.id not in (2, 4) then old end; end if;
  return case when new.id not in (2, 4) then new end; end $$
"""
CHANGES = {
    "insert": "insert into items values (4, 1)",
    "update": "update items set v = 2 where id = 2",
    "delete": "delete from items where id = 2",
}


@pytest.mark.parametrize(
    ("mode", "change", "fires"),
    [
        ("append", "insert", "insert"),
        ("truncate", "insert", "insert"),
        ("truncate", "insert", "delete"),
        ("merge", "insert", "insert"),
        ("merge", "update", "update"),
        ("merge", "delete", "delete"),
        ("scd2", "insert", "insert"),
        ("scd2", "update", "update"),
        ("scd2", "delete", "update"),
    ],
)
def test_3_existing_a_trigger_that_leaves_out_rows_ends_the_load(
    into_postgres: Flow, mode: str, change: str, fires: str
) -> None:
    """The statement succeeds all the same, and the rows would be lost without a word."""
    flow = into_postgres
    flow.source.execute("create table items as select n as id, 1 as v from generate_series(1, 3) n")
    deletes = {"merge": "hard", "scd2": "close"}.get(mode, "none")
    options: dict[str, Any] = {"mode": mode, "keys": ["id"], "deletes": deletes}
    flow.run(**options)
    flow.target.execute(
        LEAVES_OUT, f"create trigger t before {fires} on items for each row execute function leave_out()"
    )
    flow.source.execute(CHANGES[change])
    before = flow.target.query("select * from items order by id")
    with pytest.raises(TargetError, match="did not take every row"):
        flow.run(**options)
    assert flow.target.query("select * from items order by id") == before
    flow.target.execute("alter table items disable trigger t")
    flow.run(**options)
    assert flow.target.query("select * from items order by id") != before


def test_3_existing_an_identity_that_no_merge_can_update_is_refused(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items (id int primary key, n int)", "insert into items values (1, 7)")
    flow.target.execute("create table items (id int primary key, n int generated always as identity)")
    with pytest.raises(PlanRefused, match="n is generated always as identity"):
        flow.run(mode="merge")
    flow.target.execute("alter table items alter column n set generated by default")
    flow.run(mode="merge")
    assert flow.target.query("select id, n from items") == [(1, 7)]


@pytest.mark.parametrize("mode", ["truncate", "merge"])
def test_3_existing_a_table_keeps_its_grants_views_and_identity(into_postgres: Flow, mode: str) -> None:
    flow = into_postgres
    flow.source.execute("create table items as select generate_series(1, 3) as id")
    flow.target.execute(
        "create table items (id int primary key)",
        "create view over_it as select count(*) as n from items",
        "grant select on items to pg_monitor",
    )
    facts = "select oid, relacl::text from pg_class where relname = 'items'"
    before = flow.target.query(facts)
    for _ in range(2):
        flow.run(mode=mode, keys=["id"])
    assert flow.target.query(facts) == before
    assert flow.target.query("select n from over_it") == [(3,)]


def test_3_existing_the_plan_lists_all_that_a_load_meets(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items (id int primary key, amount int, shop int)")
    flow.target.execute(
        "create table shops (id int primary key)",
        "create table items (id int generated always as identity primary key, amount int,"
        " twice int generated always as (amount * 2) stored, loaded_at timestamptz default now(),"
        " shop int references shops)",
        "create table lines (item int references items)",
        "create function f() returns trigger language plpgsql as $$ begin return new; end $$",
        "create trigger watch before insert on items for each row execute function f()",
        "alter table items enable row level security",
    )
    notes = "\n".join(flow.plan(mode="merge").notes)
    for word in ("identity", "twice", "loaded_at", "trigger watch", "items_shop_fkey", "lines_item_fkey", "security"):
        assert word in notes, word
    flow.target.execute("alter table items add column must text not null")
    planned = flow.plan(mode="merge")
    assert any("must" in refusal and "no default" in refusal for refusal in planned.refusals)
    with pytest.raises(PlanRefused, match="target column must takes no NULL, has no default and is not in the source"):
        flow.run(mode="merge")


def test_3_existing_identity_and_generated_columns_and_their_sequences(into_postgres: Flow) -> None:
    flow = into_postgres
    flow.source.execute("create table items (id int primary key, amount int, twice int)")
    flow.source.execute("insert into items select n, n, 0 from generate_series(1, 20) n")
    flow.target.execute(
        "create table items (id int generated always as identity primary key, amount int,"
        " twice int generated always as (amount * 2) stored)"
    )
    flow.run(mode="merge")
    assert flow.target.query("select max(id), sum(twice), count(*) from items") == [(20, 420, 20)]
    # The application's next insert would collide.
    assert any("reset_sequences" in note for note in flow.plan(mode="merge").notes)
    with pytest.raises(psycopg.errors.UniqueViolation):
        flow.target.execute("insert into items (amount) values (1)")
    flow.source.execute("update items set amount = 5 where id = 1")
    flow.run(mode="merge", reset_sequences=True)
    flow.target.execute("insert into items (amount) values (1)")
    assert flow.target.query("select max(id) from items") == [(21,)]


# ---------------------------------------------------------------- 4. same value, same row

SAME_BUT_FOR_THEIR_LOOK = {
    "citext": ("'Ada'::citext", "'ADA'::citext"),
    "interval": ("interval '1 day'", "interval '24 hours'"),
    "jsonb": ("'{\"a\": 1.0}'::jsonb", "'{\"a\": 1.00}'::jsonb"),
    "json": ("'{\"a\":1}'::json", "'{\"a\": 1}'::json"),
    "numeric": ("1.0::numeric", "1.00::numeric"),
    "float8": ("0::float8", "'-0'::float8"),
    "float4": ("0::float4", "'-0'::float4"),
    "char(3)": ("'a'::char(3)", "'b'::char(3)"),
    "null": ("null::text", "''::text"),
}


@pytest.mark.parametrize("case", sorted(SAME_BUT_FOR_THEIR_LOOK))
@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_4_unchanged_means_the_same_representation(quick: Flow, case: str, mode: str) -> None:
    before, after = SAME_BUT_FOR_THEIR_LOOK[case]
    for side in (quick.source, quick.target):
        if side.backend == "postgres":
            side.execute("create extension if not exists citext")
    options: dict[str, Any] = {"mode": mode, "keys": ["id"]}

    def run(value: str) -> tuple[int | None, int | None]:
        record = quick.run(query=f"select 1 as id, {value} as v", **options)
        return record.inserted, record.updated

    version = 1 if mode == "scd2" else 0
    assert run(before) == (1, 0)
    assert run(before) == (0, 0)
    if case.startswith("float") and not quick.target.negative_zero:
        with pytest.raises(DataError, match="negative zero"):
            run(after)
        return
    assert run(after) == (version, 1)
    assert run(after) == (0, 0)


WRONG_CASTS = {
    "rounds": ("1.239::numeric", "numeric(10,2)"),
    "cuts to a date": ("timestamp '2024-05-06 07:08:09'", "date"),
    "cuts a text": ("'abcdef'::text", "varchar(3)"),
    "overflows": ("5000000000::bigint", "integer"),
    "shifts by the session's zone": ("'2024-05-06 07:08:09+05'::text", "timestamp"),
    "loses digits": ("16777217::int", "real"),
    "is another day tomorrow": ("'tomorrow'::text", "date"),
    "is another moment at every run": ("'now'::text", "timestamptz"),
}


@pytest.mark.parametrize("case", sorted(WRONG_CASTS))
@pytest.mark.parametrize("path", ["native", "fused"])
def test_4_casts_are_checked_before_the_load(
    harness: Callable[[str], Harness], tmp_path: Path, case: str, path: str
) -> None:
    """`insert … select` itself rounds, cuts and shifts without a word."""
    value, type_sql = WRONG_CASTS[case]
    here = harness("postgres")
    flow = Flow(here, here, tmp_path)
    flow.target.execute("create table items (id int)")
    query = f"select * from (select n as id, {value} as v from generate_series(1, 5) n) as q"
    with pytest.raises(DataError, match="column v") as caught:
        flow.run(query=query, keys=["id"], mode="merge", path=path, columns={"v": type_sql}, target="to.public.casted")
    assert len(caught.value.keys) == 3
    assert not here.has_table("casted")


@pytest.mark.spark
def test_4_casts_are_checked_on_the_spark_path_too(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path, runs.stage_with_spark)
    with pytest.raises(DataError, match="column v") as caught:
        flow.run(
            query="select 1 as id, 1.239::numeric(10,3) as v",
            keys=["id"],
            mode="merge",
            path="spark",
            columns={"v": "numeric(10,2)"},
        )
    assert caught.value.keys == ("id=1",)
    assert not flow.target.has_table("items")


def test_4_native_only_on_the_same_database_otherwise_fused_with_the_reason(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    here, there = harness("postgres"), harness("postgres")
    here.execute("create table items (id int)")
    same = Flow(here, here, tmp_path).plan(target="to.public.copied")
    assert (same.path, same.path_reason) == ("native", "both ends are the same database")
    apart = Flow(here, there, tmp_path).plan()
    assert apart.path == "fused"
    assert "different databases" in apart.path_reason
    with pytest.raises(PlanRefused, match='path = "native" is refused: source and target are different databases'):
        Flow(here, there, tmp_path).plan(path="native")


def test_4_keys_duplicates_are_found_on_values_cast_to_the_targets_type(quick: Flow) -> None:
    query = "select * from (values ('1', 'a'), ('1.0', 'b')) as v(id, name)"
    with pytest.raises(DataError, match="duplicate keys") as caught:
        quick.run(query=query, mode="merge", keys=["id"], columns={"id": "integer"})
    assert caught.value.keys == ("id=1",)
    assert not quick.target.has_table("items")


@pytest.mark.parametrize("path", ["native", "fused"])
@pytest.mark.parametrize("mode", ["merge", "scd2"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_4_keys_duplicates_are_found_under_the_targets_collation(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str, mode: str, path: str
) -> None:
    here = harness(backend)
    flow = Flow(here, here, tmp_path)
    type_sql, cast = {"sqlite": "text collate nocase"}.get(backend, "varchar collate nocase.noaccent"), "varchar"
    if backend == "postgres":  # the suite's server has no ICU, hence no collation of that kind
        here.execute("create extension citext")
        type_sql = cast = "citext"
    more = ", valid_from timestamptz, valid_to timestamptz, is_current boolean, row_hash varchar"
    here.execute(f"create table items (id {type_sql}, name varchar{more if mode == 'scd2' else ''})")
    options: dict[str, Any] = {"mode": mode, "keys": ["id"], "path": path}

    def row(key: str) -> str:
        return f"select cast('{key}' as {cast}) as id, cast('x' as varchar) as name"

    with pytest.raises(DataError, match="duplicate keys"):
        flow.run(query=f"{row('A')} union all {row('a')}", **options)
    assert here.query("select count(*) from items") == [(0,)]
    flow.run(query=row("A"), **options)
    flow.run(query=row("a"), **options)
    assert here.query("select count(*) from items") == [(1,)]


def test_4_keys_null_and_duplicates_of_a_composite_key(quick: Flow) -> None:
    options: dict[str, Any] = {"mode": "merge", "keys": ["a", "b"]}
    with pytest.raises(DataError, match="NULL in a key"):
        quick.run(query="select * from (values (1, 1), (1, null)) as v(a, b)", **options)
    with pytest.raises(DataError, match="duplicate keys") as caught:
        quick.run(query="select * from (values (1, 1), (1, 2), (1, 1)) as v(a, b)", **options)
    assert caught.value.keys == ("a=1, b=1",)
    quick.run(query="select * from (values (1, 1), (1, 2), (2, 1)) as v(a, b)", **options)
    assert quick.target.query("select count(*) from items") == [(3,)]
