"""What a run must not do to rows of others, or to rows that another run has brought meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import ConfigError, PenstockError, PlanRefused, PlanStale
from penstock.run.pipeline import context_of, run
from penstock.run.prepare import Prepared, prepare
from penstock.run.records import RunOptions
from penstock.state import RunRecord
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.faults.bare import stage_here

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]


def move(flow: Flow, options: RunOptions | None = None, **rest: Any) -> RunRecord:
    pipeline = flow.pipeline(**rest)
    return run(flow.project(pipeline), pipeline, flow.store, options, stage=stage_here)[-1]


def count(flow: Flow) -> tuple[int, int]:
    [(rows, distinct)] = flow.target.query(f"select count(*), count(distinct id) from {flow.target.schema}.items")
    return rows, distinct


def planned(flow: Flow, **rest: Any) -> Prepared:
    pipeline = flow.pipeline(**rest)
    project = flow.project(pipeline)
    return prepare(project, pipeline, pipeline.table, context_of(project, pipeline), RunOptions())


def carry_out(flow: Flow, prepared: Prepared) -> None:
    load = prepared.target.begin(prepared.planned.load)
    try:
        receipts = stage_here(flow.project(prepared.pipeline), prepared, load.sink(0), lambda rows, size: None)
        load.commit(receipts)
    finally:
        load.abort()
        load.close()


@pytest.fixture
def events(flow: Flow) -> Flow:
    flow.source.execute("create table items (id bigint primary key, region text)")
    flow.source.execute("insert into items select n, 'eu' from generate_series(1, 10) as n")
    return flow


def test_watermark_of_a_run_that_committed_between_plan_and_lock_is_noticed(events: Flow) -> None:
    """Both planned the same window before either had the lock: an append would have it twice."""
    options = {"incremental": "id", "lag": "0"}
    move(events, **options)
    events.source.execute("insert into items select n, 'eu' from generate_series(11, 20) as n")
    with closing(planned(events, **options)) as slow:
        move(events, **options)
        with pytest.raises(PlanStale) as caught:
            carry_out(events, slow)
    assert caught.value.retryable
    assert count(events) == (20, 20)


def test_watermark_does_not_depend_on_the_clock_that_made_the_run_ids(events: Flow) -> None:
    options = {"incremental": "id", "lag": "0"}
    move(events, **options)
    later = "f" * 32  # as if a machine whose clock is ahead had run it
    events.target.execute(f"update _penstock.loads set run = '{later}'")
    for start in (11, 21):
        events.source.execute(f"insert into items select n, 'eu' from generate_series({start}, {start + 9}) as n")
        move(events, **options)
    assert count(events) == (30, 30)


def test_watermark_is_not_used_for_a_target_that_was_dropped(events: Flow) -> None:
    options = {"incremental": "id", "lag": "0"}
    move(events, **options)
    events.target.execute(f"drop table {events.target.schema}.items")
    events.source.execute("insert into items values (11, 'eu')")
    move(events, **options)
    assert count(events) == (11, 11)


def test_full_refresh_of_an_append_spares_the_rows_of_other_pipelines(events: Flow) -> None:
    move(events)
    move(events, name="us", query="select 100 + id as id, 'us' as region from items")
    with pytest.raises(PlanRefused, match="is loaded by pipeline us too"):
        move(events, RunOptions(full_refresh=True))
    assert count(events) == (20, 20)


def test_owners_are_all_pipelines_not_only_the_last(events: Flow) -> None:
    move(events, name="us", mode="merge", query="select 100 + id as id, 'us' as region from items", keys=["id"])
    move(events, mode="merge")
    with pytest.raises(PlanRefused, match="is loaded by pipeline us too"):
        move(events, mode="merge", deletes="hard", max_delete_ratio=1)
    assert count(events) == (20, 20)


@pytest.mark.parametrize("options", [{"mode": "truncate"}, {"mode": "merge", "deletes": "hard"}, {"incremental": "id"}])
def test_limit_never_passes_for_the_whole_source(events: Flow, options: dict[str, str]) -> None:
    if "incremental" in options:
        options = options | {"lag": "0"}
    move(events, **options)
    with pytest.raises(ConfigError, match="--limit is refused"):
        move(events, RunOptions(limit=2), **options)
    assert count(events) == (10, 10)


def test_limit_with_a_full_refresh_is_refused(events: Flow) -> None:
    with pytest.raises(ConfigError, match="--limit is refused"):
        move(events, RunOptions(limit=2, full_refresh=True))


def test_truncate_with_a_scope_spares_what_is_outside(events: Flow) -> None:
    move(events, name="us", query="select 100 + id as id, 'us' as region from items")
    options = {"mode": "truncate", "delete_scope": "t.region = 'eu'"}
    move(events, **options)
    move(events, **options)
    assert count(events) == (20, 20)


def test_two_source_tables_do_not_share_a_target(events: Flow) -> None:
    events.source.execute("create schema other", "create table other.items (id bigint primary key, region text)")
    with pytest.raises(PlanRefused, match="both be loaded into"):
        move(events, tables=["*.items"], target=f"to.{events.target.schema}.{{table}}_c", mode="truncate")


def test_order_by_lets_no_null_win(events: Flow) -> None:
    query = "select * from (values (1, 'old', 1), (1, 'never', null), (1, 'new', 2)) as v(id, region, seen)"
    move(events, mode="merge", keys=["id"], query=query, order_by="seen desc")
    assert events.target.query(f"select region from {events.target.schema}.items") == [("new",)]


@pytest.mark.parametrize(
    ("order", "wins"),
    [
        ("seen desc, nr desc", "seven"),
        ("seen desc nulls last, nr desc", "seven"),  # what one term says is nothing to the others
        ("seen desc, nr desc nulls first", "none"),
        ("seen nulls first, nr", "seven"),
        ("coalesce(region, 'nulls first') = 'x', seen desc, nr", "seven"),
    ],
)
def test_order_by_null_comes_first_only_where_its_term_says_so(events: Flow, order: str, wins: str) -> None:
    query = "select * from (values (1, 'seven', 2, 7), (1, 'none', 2, null)) as v(id, region, seen, nr)"
    move(events, mode="merge", keys=["id"], query=query, order_by=order)
    assert events.target.query(f"select region from {events.target.schema}.items") == [(wins,)]


def test_scd2_ignore_goes_by_the_sources_names_and_unknown_ones_are_refused(events: Flow) -> None:
    options = {"mode": "scd2", "ignore": ["region"], "columns": {"region": {"rename": "area"}}}
    move(events, **options)
    events.source.execute("update items set region = 'asia'")
    assert move(events, **options).inserted == 0
    with pytest.raises(PlanRefused, match="track names nothing_like_it"):
        move(events, mode="scd2", track=["nothing_like_it"])


# ---------------------------------------------------------------- Postgres' own


@pytest.fixture
def database(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """Source and target are one Postgres database."""
    both = harness("postgres")
    both.execute("create table items (id bigint primary key, v text)")
    return Flow(both, both, tmp_path)


def test_native_path_does_not_let_a_query_write(database: Flow) -> None:
    """`select * from take()`, a function that deletes, once emptied its queue and loaded nothing."""
    database.source.execute(
        "insert into items values (1, 'a'), (2, 'b')",
        "create function take() returns setof items language sql as 'delete from items returning *'",
    )
    with pytest.raises(PenstockError, match="read only"):
        move(database, query="select * from take()", target="to.public.taken")
    assert database.source.query("select count(*) from items") == [(2,)]
    record = move(database, target="to.public.taken", mode="merge")
    assert (record.path, record.inserted) == ("native", 2)


def test_native_and_fused_paths_give_the_same_text(database: Flow) -> None:
    database.source.execute("create table odd (id int primary key, c char(5), m money, d interval)")
    database.source.execute("insert into odd values (1, 'ab', 1234.5, '1 day')")
    columns = {"c": "text", "m": "text", "d": "text"}
    for path in ("native", "fused"):
        move(database, table="public.odd", target=f"to.public.{path}", path=path, columns=columns)
    rows = [database.target.query(f"select c, m, d from {path}") for path in ("native", "fused")]
    assert rows[0] == rows[1] == [("ab   ", "1234.50", "1 day")]


def test_row_security_never_hides_rows_in_silence(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    source, target = harness("postgres"), harness("duckdb")
    assert isinstance(source, PostgresHarness)
    source.execute(
        "create table items (id bigint primary key, owner text)",
        "insert into items select n, case when n <= 6 then 'reader' else 'other' end from generate_series(1, 10) as n",
        "do $$ begin create role reader login password 'reader'; exception when duplicate_object then null; end $$",
        "grant select on items to reader",
        "alter table items enable row level security",
        "create policy own on items using (owner = current_user)",
    )
    parts = psycopg.conninfo.conninfo_to_dict(source.dsn)
    reader = PostgresHarness(psycopg.conninfo.make_conninfo(**(parts | {"user": "reader", "password": "reader"})))
    flow = Flow(reader, target, tmp_path)
    with pytest.raises(PenstockError, match=r"(?i)row-level security|row security"):
        move(flow)
    assert not target.has_table("items")


def test_rewrite_rules_of_a_target_are_refused(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.source.execute("create table items (id bigint primary key)", "insert into items values (1), (2)")
    flow.target.execute(
        "create table items (id bigint)", "create rule less as on insert to items where new.id > 1 do instead nothing"
    )
    with pytest.raises(PlanRefused, match="rewrite rules"):
        move(flow)


def test_reset_sequences_covers_serial_columns_and_never_goes_back(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.source.execute("create table items (id int primary key)", "insert into items values (1), (2), (3)")
    flow.target.execute("create table items (id serial primary key)")
    move(flow, mode="merge", reset_sequences=True)
    flow.target.execute("insert into items default values")
    assert flow.target.query("select max(id) from items") == [(4,)]
    flow.target.execute("select setval('items_id_seq', 100)")
    move(flow, mode="merge", reset_sequences=True)
    assert flow.target.query("select nextval('items_id_seq')") == [(101,)]


def test_a_triggers_own_words_are_not_repeated(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.source.execute(
        "create table items (id int primary key, v text)", "insert into items values (1, 'secret-cell')"
    )
    flow.target.execute(
        "create table items (id int primary key, v text)",
        "create function no() returns trigger language plpgsql as $$ begin raise 'no %', new.v; end $$",
        "create trigger no before insert on items for each row execute function no()",
    )
    with pytest.raises(PenstockError) as caught:
        move(flow, mode="merge")
    assert "secret-cell" not in str(caught.value.to_record())


def test_a_new_table_gets_the_default_privileges_of_its_schema(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.source.execute("create table items (id int primary key)", "insert into items values (1), (2)")
    flow.target.execute(
        "do $$ begin create role looker; exception when duplicate_object then null; end $$",
        "alter default privileges in schema public grant select on tables to looker",
    )
    assert move(flow, mode="merge").inserted == 2
    assert flow.target.query("select has_table_privilege('looker', 'public.items', 'select')") == [(True,)]
    assert flow.target.leftovers() == []
    with pytest.raises(psycopg.errors.UniqueViolation):
        flow.target.execute("insert into items values (1)")
