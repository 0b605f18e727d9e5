"""How Postgres is read: one moment, splitting, incremental windows.

Each test's name tells the rule that it guards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock.backends.base import Cursor, Source, Window
from penstock.backends.postgres import split
from penstock.errors import DataError, PlanRefused, SourceMoved
from tests.conformance.postgres_bench import Database, numbered, read_all

pytestmark = pytest.mark.postgres

# ---------------------------------------------------------------- one moment


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_RANGE_BYTES", 64 * 1024)


@pytest.mark.usefixtures("small_ranges")
def test_one_moment_under_a_moving_workload(db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 14_000)
    stop = threading.Event()

    def move() -> None:
        with psycopg.connect(db.dsn, autocommit=True) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute("update t set v = v || '.' where id %% 7 = %s", (number % 7,))
                connection.execute("delete from t where id = %s", (number,))
                connection.execute("insert into t values (%s, 'new')", (100_000 + number,))

    with ThreadPoolExecutor() as pool:
        writer = pool.submit(move)
        try:
            source = opened(db, table="public.t")
            counted = source._holder.ask("select count(*), sum(id) from t")[0]  # type: ignore[attr-defined]  # the backend's own part
            table = read_all(source, want=8)
            assert len(source.partitions(list(source.schema()), 8).partitions) > 4
        finally:
            stop.set()
        writer.result()
    ids = table["id"].to_pylist()
    assert (len(ids), sum(ids)) == counted
    assert len(set(ids)) == len(ids)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    "change",
    [
        "vacuum full t",
        "truncate t",
        "alter table t alter v type varchar(400) using v || 'x'",
        "alter table t drop v, add v text",
        "alter table t rename v to w",
        "drop table t",
        "alter table t rename to u; create table t (id int primary key, v text)",
    ],
)
def test_one_moment_a_rewritten_table_is_moved_not_read(
    change: str, db: Database, opened: Callable[..., Source]
) -> None:
    numbered(db, 14_000)
    source = opened(db, table="public.t")
    pieces = source.partitions(list(source.schema()), 4).partitions
    first = sum(batch.num_rows for batch in pieces[0].read())
    assert 0 < first < 14_000
    db.execute(*change.split("; "))
    with pytest.raises(SourceMoved) as caught:
        list(pieces[1].read())
    assert caught.value.retryable


def test_one_moment_a_query_over_a_truncated_table_is_moved_not_empty(
    db: Database, opened: Callable[..., Source]
) -> None:
    numbered(db, 10)
    source = opened(db, "select count(*) as n from t")
    [piece] = source.partitions(list(source.schema()), 4).partitions
    db.execute("truncate t")
    with pytest.raises(SourceMoved):
        list(piece.read())


def test_one_moment_a_detached_partition_is_still_read(db: Database, opened: Callable[..., Source]) -> None:
    partitioned(db)
    by_table, by_query = opened(db, table="public.p"), opened(db, "select sum(id) as n from p")
    pieces = by_table.partitions(list(by_table.schema()), 4).partitions
    [whole] = by_query.partitions(list(by_query.schema()), 4).partitions
    db.execute("alter table p detach partition p2")
    assert sum(batch.num_rows for piece in pieces for batch in piece.read()) == 300
    with pytest.raises(SourceMoved):
        list(whole.read())


def test_one_moment_a_closed_source_leaves_workers_nothing_to_read(db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 10)
    source = opened(db, table="public.t")
    [piece] = source.partitions(list(source.schema()), 1).partitions
    source.close()
    source.close()
    with pytest.raises(SourceMoved):
        list(piece.read())


def test_the_driver_holds_no_lock_on_what_it_reads(db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 10)
    for source in (opened(db, table="public.t"), opened(db, "select * from t where id > 3", partition_on="id")):
        source.partitions(list(source.schema()), 4)
    assert db.query("select count(*) from pg_locks where relation = 't'::regclass") == [(0,)]


# ---------------------------------------------------------------- splitting


def partitioned(db: Database) -> None:
    db.execute(
        "create table p (id int, v text) partition by range (id)",
        "create table p1 partition of p for values from (1) to (101)",
        "create table p2 partition of p for values from (101) to (201)",
        "create table p3 partition of p for values from (201) to (301)",
        "insert into p select n, repeat('x', 2000) from generate_series(1, 300) n",
    )


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("want", [1, 3, 8])
def test_splitting_expands_partitions_and_children(want: int, db: Database, opened: Callable[..., Source]) -> None:
    partitioned(db)
    db.execute("create table parent (id int)", "create table child (extra int) inherits (parent)")
    db.execute("insert into parent values (1)", "insert into child values (2, 0), (3, 0)")
    assert sorted(read_all(opened(db, table="public.p"), want)["id"].to_pylist()) == list(range(1, 301))
    assert sorted(read_all(opened(db, table="public.parent"), want)["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select count(*) as n from t", 1),
        ("select * from t limit 100", 100),
        ("select distinct id % 7 as k from t", 7),
        ("select id, row_number() over (order by id) as n from t", 14_000),
        ("select a.id from t a join t b using (id)", 14_000),
        ("select id from t union all select id from t", 28_000),
        ("select id from t where id in (select id from t)", 14_000),
        ("select generate_series(1, 3) as n", 3),
        ("select id from v", 14_000),
    ],
)
def test_splitting_a_query_that_means_something_else_by_ranges_is_refused(
    query: str, rows: int, db: Database, opened: Callable[..., Source]
) -> None:
    numbered(db, 14_000)
    db.execute("create view v as select * from t")
    source = opened(db, query)
    found = source.partitions(list(source.schema()), 8)
    assert len(found.partitions) == 1
    assert found.reason
    assert read_all(source, 8).num_rows == rows


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select * from t", 14_000),
        ("select id, upper(v) as v from public.t as x where id % 2 = 0 or false -- even\n;", 7_000),
        ("select \"t\".id from t where v <> 'where'", 14_000),
    ],
)
def test_splitting_a_plain_query_by_ctid(query: str, rows: int, db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 14_000)
    db.execute("vacuum analyze t")
    source = opened(db, query)
    assert len(source.partitions(list(source.schema()), 4).partitions) == 4
    ids = read_all(source, 4)["id"].to_pylist()
    assert (len(ids), len(set(ids))) == (rows, rows)


@pytest.mark.parametrize(
    "values",
    [
        "select n::float8 from generate_series(1, 1000) n",
        "select case when n % 10 = 0 then n else 1 end::float8 from generate_series(1, 1000) n",
        "select unnest(array['NaN', 'Infinity', '-Infinity', null, '0', '-0', '1.5']::float8[])"
        " from generate_series(1, 50)",
        "select null::float8 from generate_series(1, 10)",
        "select 1::float8 where false",
    ],
)
def test_splitting_by_a_column_covers_every_row_once(values: str, db: Database, opened: Callable[..., Source]) -> None:
    db.execute(f"create table t as select k, row_number() over () as id from ({values}) as v(k)")
    source = opened(db, table="public.t", partition_on="k")
    found = source.partitions(list(source.schema()), 6)
    ids = read_all(source, 6)["id"].to_pylist()
    assert sorted(ids) == list(range(1, db.query("select count(*) from t")[0][0] + 1))
    if len(found.partitions) > 1:
        assert f"runs the query {len(found.partitions)} times" in found.reason


def test_splitting_a_limit_is_one_partition(db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 1000)
    source = opened(db, table="public.t", limit=10)
    assert len(source.partitions(list(source.schema()), 8).partitions) == 1
    assert read_all(source, 8).num_rows == 10


# ---------------------------------------------------------------- incremental


def test_incremental_the_upper_bound_waits_for_open_transactions(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t (id int, at timestamptz, naive timestamp, day date)")
    with psycopg.connect(db.dsn) as writer:
        writer.execute("insert into t values (1, now(), now(), now())")
        [(begun,)] = writer.execute("select now()::text").fetchall()
        source = opened(db, table="public.t")
        upper = source.upper(Cursor("at", None, None))
        assert db.query(f"select '{upper}'::timestamptz <= '{begun}'::timestamptz") == [(True,)]
    later = opened(db, table="public.t").upper(Cursor("at", None, None))
    assert db.query(f"select '{later}'::timestamptz > '{begun}'::timestamptz") == [(True,)]
    lagged = opened(db, table="public.t").upper(Cursor("at", "1h", None))
    assert db.query(f"select now() - '{lagged}'::timestamptz >= interval '1 hour'") == [(True,)]


def test_incremental_a_naive_cursor_needs_a_zone_and_a_date_ends_before_today(
    db: Database, opened: Callable[..., Source]
) -> None:
    db.execute("create table t (naive timestamp, day date, f float8, s text)")
    source = opened(db, table="public.t")
    for column in ("naive", "day"):
        with pytest.raises(PlanRefused, match="no time zone"):
            source.upper(Cursor(column, None, None))
    tokyo = source.upper(Cursor("naive", None, "Asia/Tokyo"))
    assert db.query(f"select '{tokyo}'::timestamp > (now() at time zone 'UTC') + interval '8 hours'") == [(True,)]
    day = source.upper(Cursor("day", None, "UTC"))
    assert db.query(f"select '{day}'::date = (now() at time zone 'UTC')::date") == [(True,)]
    for column in ("f", "s"):
        with pytest.raises(PlanRefused, match="cannot be a cursor"):
            source.upper(Cursor(column, None, None))


def test_incremental_windows_are_half_open_and_nulls_are_counted(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t (id int primary key, k int)", "insert into t select n, n from generate_series(1, 10) n")
    source = opened(db, table="public.t", keys=("id",))
    assert source.upper(Cursor("k", "0", None)) == "11"
    assert source.upper(Cursor("k", "3", None)) == "8"
    assert read_all(source, 4, Window("k", "3", "8"))["k"].to_pylist() == [3, 4, 5, 6, 7]
    db.execute("insert into t values (99, null)")
    with_null = opened(db, table="public.t", keys=("id",))
    with pytest.raises(DataError) as caught:
        read_all(with_null, 4, Window("k", "3", "8"))
    assert caught.value.keys == ("id=99",)
    assert read_all(with_null, 4, Window("k", "3", "8", "include")).num_rows == 6
    assert read_all(with_null, 4, Window("k", "3", "8", "skip")).num_rows == 5
