"""The Postgres backend on a real server, without Spark: reads, splits, staging, commits.

Each test's name tells the rule of batch.md that it guards.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.backends.base import (
    Cursor,
    Execute,
    Load,
    LoadPlan,
    LoadResult,
    Native,
    ReadRequest,
    Receipt,
    RunContext,
    Source,
    StagedColumn,
    TableLoad,
    Verdict,
    Window,
)
from penstock.backends.postgres import PostgresBackend, PostgresConfig, split
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import (
    BeyondArrow,
    Busy,
    ConnectionFailed,
    DataError,
    LinkLost,
    PenstockError,
    PlanRefused,
    SourceError,
    SourceMoved,
    StagingLost,
)
from penstock.observe.failpoints import ENV, FailpointError
from penstock.schema import Column, ColumnDef, CreateTable, TableName
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.values import POSTGRES, POSTGRES_ONLY, POSTGRES_SETUP
from tests.faults.proxy import Cut, Proxy

pytestmark = pytest.mark.postgres
BACKEND = PostgresBackend()


def new_run() -> RunContext:
    return RunContext(uuid.uuid4().hex, "test", Path("unused"))


@dataclass
class Database:
    """One database of the test's own."""

    dsn: str

    @property
    def config(self) -> PostgresConfig:
        return PostgresConfig(name="db", dsn=self.dsn)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def leftovers(self) -> list[tuple[Any, ...]]:
        return self.query(
            "select relname::text from pg_class where relname ~ '^s_[0-9a-f]{32}' union all"
            " select run from _penstock.receipts union all select run from _penstock.leases"
        )


@pytest.fixture(scope="module")
def database(postgres_server: EmbeddedPostgres) -> Callable[[], Database]:
    def make() -> Database:
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return Database(postgres_server.dsn_of(name))

    return make


@pytest.fixture(scope="module")
def typed(database: Callable[[], Database]) -> tuple[Database, Database]:
    """Two databases with the same extensions and types, for tables of the tests' own."""
    pair = database(), database()
    for made in pair:
        made.execute(*POSTGRES_SETUP)
    return pair


@pytest.fixture
def db(database: Callable[[], Database]) -> Database:
    return database()


@pytest.fixture
def opened() -> Iterator[Callable[..., Source]]:
    """Opens sources, and closes them when the test ends."""
    sources: list[Source] = []

    def make(db: Database, query: str = "", table: str = "", **rest: Any) -> Source:
        request = ReadRequest(TableName.parse(table) if table else None, query or None, **rest)
        sources.append(BACKEND.source(db.config, request, new_run()))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def read_all(source: Source, want: int = 1, window: Window | None = None) -> pa.Table:
    schema = source.schema()
    batches = []
    for partition in source.partitions(list(schema), want, window).partitions:
        batches += list(pickle.loads(pickle.dumps(partition)).read())  # noqa: S301  our own object
    for batch in batches:
        assert batch.schema.equals(schema.arrow())
    return pa.Table.from_batches(batches, schema.arrow())


# ---------------------------------------------------------------- a load by hand


@dataclass
class Bench:
    """Copies a table from one database into another as the load planner and the engine would."""

    source: Source
    target: PostgresTarget
    table: TableName
    run: RunContext
    key: tuple[str, ...] = ("id",)
    exists: bool = False
    adopt: bool = False

    def columns(self, texts: tuple[str, ...] = ()) -> list[StagedColumn]:
        wanted = [c.as_text() if c.name in texts else c for c in self.source.schema()]
        existing = self.target.inspect(self.table)
        return [
            StagedColumn(c.name, c, self.target.native(c, existing.column(c.name) if existing else None, None))
            for c in wanted
        ]

    def plan(self, columns: list[StagedColumn]) -> LoadPlan:
        quote = self.target.dialect.quote
        made = CreateTable(
            self.target.qualify(self.table), tuple(ColumnDef(s.column.name, s.native.sql) for s in columns)
        )
        ddl = [] if self.exists else [*(d for s in columns for d in s.native.ddl), made]
        staged = ", ".join(
            f"{s.native.decode.replace('{}', quote(s.column.name))} as {quote(s.column.name)}" for s in columns
        )
        names = ", ".join(quote(s.column.name) for s in columns)
        steps = [
            *(Execute(line) for item in ddl for line in self.target.render(item)),
            Execute(f"create temporary view _penstock_staged as select {staged} from _penstock_raw"),
            Execute(
                f"insert into {self.target.dialect.relation(made.table)} ({names}) select {names}"
                " from _penstock_staged",
                counts="inserted",
            ),
        ]
        adopt = (made,) if self.adopt else ()
        loading = TableLoad(made.table, tuple(columns), () if adopt else tuple(steps), adopt=adopt, lock=self.exists)
        continues = self.target.watermark(self.run.pipeline, made.table)
        return LoadPlan(self.run, (loading,), '{"at": 1}', continues, self.key)

    def begin(self, columns: list[StagedColumn] | None = None) -> tuple[Load, list[StagedColumn]]:
        staged = columns or self.columns()
        return self.target.begin(self.plan(staged)), staged

    def stage(self, loading: Load, columns: list[StagedColumn], want: int = 1) -> list[Receipt]:
        pieces = self.source.partitions([s.column for s in columns], want).partitions
        sink = pickle.loads(pickle.dumps(loading.sink(0)))  # noqa: S301  our own object
        return [sink.write(number, piece.read()) for number, piece in enumerate(pieces)]

    def load(self, columns: list[StagedColumn] | None = None, want: int = 1) -> LoadResult:
        loading, staged = self.begin(columns)
        try:
            return loading.commit(self.stage(loading, staged, want))
        except BaseException:
            loading.abort()
            raise
        finally:
            loading.close()


@pytest.fixture
def bench(opened: Callable[..., Source]) -> Iterator[Callable[..., Bench]]:
    targets: list[PostgresTarget] = []

    def make(source: Database, target: Database, table: str = "t", **rest: Any) -> Bench:
        run = new_run()
        targets.append(PostgresTarget(target.config, run))
        name = TableName("public", table)
        reading = opened(source, table=str(name), keys=("id",))
        return Bench(reading, targets[-1], name, run, **rest)

    yield make
    for made in targets:
        made.close()


def numbered(db: Database, rows: int, table: str = "t") -> None:
    db.execute(
        f"create table {table} (id int primary key, v text)",
        f"insert into {table} select n, repeat('x', 100) || n from generate_series(1, {rows}) n",
    )


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("type_sql", [*POSTGRES, *POSTGRES_ONLY])
def test_exactness_every_type_arrives_with_the_servers_own_text(
    type_sql: str, typed: tuple[Database, Database], bench: Callable[..., Bench]
) -> None:
    one, two = typed
    name = f"t{uuid.uuid4().hex[:12]}"
    values = (*POSTGRES.get(type_sql, ()), *POSTGRES_ONLY.get(type_sql, ()), "null")
    rows = ", ".join(f"({number}, ({value})::{type_sql})" for number, value in enumerate(values))
    one.execute(f"create table {name} (id int primary key, v {type_sql})", f"insert into {name} values {rows}")
    work = bench(one, two, name)
    columns = work.columns()
    assert all(s.native.verdict is Verdict.EXACT for s in columns)
    try:
        result = work.load(columns)
    except BeyondArrow as error:
        told = (error.columns, bool(error.keys), columns[1].native.fallback)
        result = work.load(work.columns(texts=("v",)))
    else:
        told = (("v",), True, True)
    assert told == (("v",), True, True)
    assert result.inserted == len(values)
    answer = f"select id, v::text, row(v)::text, format_type(atttypid, atttypmod) from {name}, pg_attribute"
    where = f" where attrelid = '{name}'::regclass and attname = 'v' order by id"
    # A domain arrives as its base type; all other types as themselves.
    cut = 3 if type_sql in ("positive", "code") else 4
    left, right = one.query(answer + where), two.query(answer + where)
    assert [row[:cut] for row in left] == [row[:cut] for row in right]
    assert two.leftovers() == []


def test_exactness_infinities_are_the_canonical_ones(db: Database, opened: Callable[..., Source]) -> None:
    values = ("infinity", "-infinity", "2000-01-01")
    rows = ", ".join(f"('{v}'::date, '{v}'::timestamp, '{v}'::timestamptz, array['{v}'::date])" for v in values)
    table = read_all(opened(db, f"select * from (values {rows}) as v(d, t, z, a)"))
    assert table["d"].cast(pa.int32()).to_pylist() == [DATE_INFINITY, -DATE_INFINITY, 10957]
    for name in "tz":
        numbers = table[name].cast(pa.int64()).to_pylist()
        assert numbers == [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, 946_684_800_000_000]
    assert table["a"].combine_chunks().flatten().cast(pa.int32()).to_pylist()[:2] == [DATE_INFINITY, -DATE_INFINITY]


@pytest.mark.parametrize("value", ["'{{1,2},{3,4}}'", "'[0:1]={1,2}'"])
def test_exactness_an_array_of_another_shape_never_passes_as_a_list(
    value: str, db: Database, opened: Callable[..., Source]
) -> None:
    db.execute("create table t (id int primary key, a int[])", f"insert into t values (1, '{{1}}'), (42, {value})")
    source = opened(db, table="public.t", keys=("id",))
    with pytest.raises(BeyondArrow) as caught:
        read_all(source)
    assert caught.value.columns == ("a",)
    assert caught.value.keys == ("id=42",)
    text = [c.as_text() for c in source.schema()]
    batches = [b for p in source.partitions(text, 1).partitions for b in p.read()]
    assert batches[0].column("a").to_pylist()[1] == value.strip("'")


def test_exactness_nan_in_a_decimal_is_told_with_its_key(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t (id int primary key, n numeric(10,2))", "insert into t values (7, 1.5), (8, 'NaN')")
    with pytest.raises(BeyondArrow) as caught:
        read_all(opened(db, table="public.t", keys=("id",)))
    assert (caught.value.columns, caught.value.keys) == (("n",), ("id=8",))


def test_an_enum_that_the_target_lacks_is_made_there(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute("create schema s", "create type s.mood as enum ('a', 'b''c')", "create table t (id int, v s.mood)")
    one.execute("insert into t values (1, 'b''c')")
    bench(one, two).load()
    assert two.query("select v::text, enum_range(null::s.mood)::text from t") == [("b'c", "{a,b'c}")]


def test_an_adopted_staging_table_is_logged_and_becomes_the_target(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    result = bench(one, two, adopt=True).load()
    assert result.rows == 1000
    assert two.query("select count(*), min(relpersistence::text) from t, pg_class where oid = 't'::regclass") == [
        (1000, "p")
    ]
    assert two.leftovers() == []


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
            counted = source._holder.ask("select count(*), sum(id) from t")[0]  # type: ignore[attr-defined]
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


# ---------------------------------------------------------------- source sessions


@pytest.mark.parametrize(
    "query",
    [
        "delete from t returning *",
        "with gone as (delete from t returning *) select * from gone",
        "select wipe() as n",
    ],
)
def test_source_sessions_are_read_only(query: str, db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 10)
    db.execute("create function wipe() returns int language plpgsql as $$ begin delete from t; return 1; end $$")
    with pytest.raises(SourceError):
        read_all(opened(db, query))
    assert db.query("select count(*) from t") == [(10,)]


def test_bad_sql_is_shown_with_the_position_marked(db: Database, opened: Callable[..., Source]) -> None:
    with pytest.raises(SourceError) as caught:
        opened(db, "select 1 as a,\n       missing_column\nfrom pg_class")
    assert "line 2:" in caught.value.why
    line, caret = caught.value.why.splitlines()[-2:]
    assert line[caret.index("^") :].startswith("missing_column")


def test_names_twice_in_one_query_are_refused(db: Database, opened: Callable[..., Source]) -> None:
    with pytest.raises(PlanRefused, match="more than one column called 'a'"):
        opened(db, "select 1 as a, 2 as a")


def test_identifiers_are_quoted_everywhere(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    one.execute('create table "sel""ect T" (id int, "we ""ird" text, "Über" int[])')
    one.execute("insert into \"sel\"\"ect T\" values (1, 'a', '{1}')")
    assert bench(one, two, 'sel"ect T').load().inserted == 1
    assert two.query('select "we ""ird", "Über" from "sel""ect T"') == [("a", [1])]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"port": 1}, LinkLost),
        ({"password": "wrong-password"}, ConnectionFailed),
        ({"dbname": "nowhere"}, ConnectionFailed),
        ({"user": "nobody_here"}, ConnectionFailed),
        ({"host": "no.such.host.invalid"}, ConnectionFailed),
    ],
)
def test_a_connection_that_cannot_be_opened_says_why_without_the_password(
    change: dict[str, Any], error: type[PenstockError], postgres_server: EmbeddedPostgres
) -> None:
    config = PostgresConfig(name="shop", dsn=postgres_server.dsn, **change)
    with pytest.raises(error) as caught:
        BACKEND.test(config)
    told = f"{caught.value} {caught.value.remedy} {caught.value.to_record()}"
    assert caught.value.remedy
    assert postgres_server.password not in told
    assert "wrong-password" not in told


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


# ---------------------------------------------------------------- tasks


def test_tasks_two_racing_attempts_stage_once(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    work = bench(one, two)
    loading, columns = work.begin()
    [piece] = work.source.partitions([s.column for s in columns], 1).partitions
    barrier = threading.Barrier(2)

    def attempt() -> Receipt:
        sink = pickle.loads(pickle.dumps(loading.sink(0)))  # noqa: S301  our own object
        batches = list(piece.read())
        barrier.wait()
        return sink.write(0, iter(batches))

    with ThreadPoolExecutor() as pool:
        receipts = [f.result() for f in [pool.submit(attempt), pool.submit(attempt)]]
    assert receipts[0] == receipts[1]
    assert loading.sink(0).write(0, piece.read()).rows == 1000
    assert loading.commit(receipts[:1]).inserted == 1000
    loading.close()


def test_tasks_a_failed_attempt_leaves_nothing(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    work = bench(one, two)
    loading, columns = work.begin()
    [piece] = work.source.partitions([s.column for s in columns], 1).partitions

    def broken() -> Iterator[pa.RecordBatch]:
        yield from piece.read()
        raise SourceMoved("gone", keys=("id=1",))

    with pytest.raises(SourceMoved) as caught:
        loading.sink(0).write(0, broken())
    assert caught.value.keys == ("id=1",)
    assert loading.commit(work.stage(loading, columns)).inserted == 1000
    loading.close()


def test_tasks_a_value_that_does_not_fit_is_told_with_column_and_key(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute(
        "create table t (id int primary key, v text)", "insert into t select n, 'ok' from generate_series(1, 5000) n"
    )
    one.execute("update t set v = 'much too long' where id = 4321")
    work = bench(one, two)
    columns = [
        s if s.source == "id" else replace(s, native=Native("character varying(5)", Verdict.CHECKED))
        for s in work.columns()
    ]
    with pytest.raises(DataError) as caught:
        work.load(columns)
    assert "'v'" in caught.value.what
    assert caught.value.keys == ("id=4321",)
    assert "much too long" not in str(caught.value.to_record())
    assert two.query("select to_regclass('public.t')") == [(None,)]
    assert two.leftovers() == []


# ---------------------------------------------------------------- lock, lease, sweep


def test_lock_a_second_run_says_who_holds_the_target(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    first, second = bench(one, two), bench(one, two)
    loading, columns = first.begin()
    receipts = first.stage(loading, columns)
    with pytest.raises(Busy) as caught:
        second.begin()
    assert first.run.run_id in caught.value.why
    assert "pid" in caught.value.why
    assert loading.commit(receipts).inserted == 10
    loading.close()


def test_sweep_removes_dead_runs_and_never_a_live_one(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    numbered(one, 10, "u")
    numbered(one, 10, "w")
    live, dead, next_ = bench(one, two, "t"), bench(one, two, "u"), bench(one, two, "w")
    living, columns = live.begin()
    receipts = live.stage(living, columns)
    dying, its = dead.begin()
    dead.stage(dying, its)
    dying.close()  # as a killed driver leaves it: staging, receipts and lease stay
    assert {row[0] for row in two.leftovers()} >= {dead.run.run_id, live.run.run_id}
    next_.load()
    left = {row[0] for row in two.leftovers()}
    assert not any(dead.run.run_id in name for name in left)
    assert any(live.run.run_id in name for name in left)
    assert living.commit(receipts).inserted == 10
    living.close()
    assert two.leftovers() == []


def test_abort_leaves_nothing_and_is_safe_twice(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 10)
    work = bench(one, two)
    loading, columns = work.begin()
    work.stage(loading, columns)
    loading.abort()
    loading.abort()
    loading.close()
    loading.close()
    assert two.leftovers() == []


# ---------------------------------------------------------------- commit


@pytest.mark.parametrize("point", ["commit.begin", "commit.loaded"])
def test_commit_stopped_before_it_leaves_the_target_as_it_was(
    point: str, database: Callable[[], Database], bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    work = bench(one, two)
    with monkeypatch.context() as patch:
        patch.setenv(ENV, f"{point}=raise")
        with pytest.raises(FailpointError):
            work.load()
    assert two.query("select to_regclass('public.t'), count(*) from _penstock.loads") == [(None, 0)]
    assert two.leftovers() == []
    assert work.load().inserted == 10


@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_a_lost_answer_is_looked_for_in_the_target(
    when: Any, database: Callable[[], Database], bench: Callable[..., Bench], postgres_server: EmbeddedPostgres
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    cut = Cut(b"commit\0", b"_penstock.loads", when)
    with Proxy(postgres_server.port, cut) as proxy:
        through = Database(two.dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        work = bench(one, through)
        if when == "before":
            with pytest.raises(LinkLost) as caught:
                work.load()
            assert caught.value.kept == "nothing was committed"
        else:
            assert work.load().inserted == 10
        assert cut.done.is_set()
    rows = 0 if when == "before" else 1
    assert two.query("select count(*) from _penstock.loads") == [(rows,)]
    if rows:
        assert two.query("select count(*) from t") == [(10,)]
    assert two.leftovers() == []


def test_commit_counts_staging_against_the_receipts_after_a_crash(
    tmp_path: Path, database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one = database()
    numbered(one, 10)
    with EmbeddedPostgres(synchronous_commit="on") as server:
        two = Database(server.dsn)
        work = bench(one, two)
        loading, columns = work.begin()
        receipts = work.stage(loading, columns)
        server.restart(immediate=True)  # a crash empties UNLOGGED tables
        with pytest.raises(StagingLost) as caught:
            loading.commit(receipts)
        assert "0 rows in staging, 10 on the receipts" in caught.value.why
        loading.abort()
        loading.close()
        assert two.leftovers() == []


def test_commit_a_native_query_reads_one_moment_in_the_database(
    db: Database, opened: Callable[..., Source], bench: Callable[..., Bench]
) -> None:
    numbered(db, 10)
    source = opened(db, "select id, v from t where id <= 5")
    run = new_run()
    target = PostgresTarget(db.config, run)
    columns = list(source.schema())
    native = [StagedColumn(c.name, c, target.native(c, None, None)) for c in columns]
    work = Bench(source, target, TableName("public", "copy"), run)
    query = source.select_sql([(c, c.name) for c in columns])
    loading = target.begin(replace(work.plan(native), native_query=query))
    assert loading.commit([]).inserted == 5
    loading.close()
    target.close()
    assert db.query("select count(*) from copy") == [(5,)]
    assert db.leftovers() == []


# ---------------------------------------------------------------- targets


def test_an_existing_table_is_reported_with_all_that_a_load_must_know(db: Database) -> None:
    db.execute(
        "create table parent (id int primary key)",
        "create domain positive as int check (value > 0)",
        "create table t (id int generated always as identity primary key, d positive default 1,"
        " twice int generated always as (d * 2) stored, p int references parent, n numeric(10,2) not null)",
        "create function f() returns trigger language plpgsql as $$ begin return new; end $$",
        "create trigger tr before insert on t for each row execute function f()",
        "alter table t enable row level security",
        "create view v as select 1 as a",
    )
    target = PostgresTarget(db.config, new_run())
    found = target.inspect(TableName(None, "t"))
    assert found is not None
    assert [(c.name, c.type_sql) for c in found.columns] == [
        ("id", "integer"),
        ("d", "integer"),
        ("twice", "integer"),
        ("p", "integer"),
        ("n", "numeric(10,2)"),
    ]
    by_name = {c.name: c for c in found.columns}
    assert by_name["id"].identity
    assert by_name["d"].has_default
    assert by_name["twice"].generated
    assert not by_name["n"].nullable
    assert found.primary_key == ("id",)
    assert {note.split()[0] for note in found.notes} == {"trigger", "foreign", "row"}
    view = target.inspect(TableName("public", "v"))
    assert view is not None
    assert view.refusals == ("it is a view",)
    assert target.inspect(TableName("public", "none")) is None
    target.close()


CASTS: list[tuple[str, str, list[str], list[str]]] = [
    # from, to, what fits, what does not
    ("text", "integer", ["'7'", "'-12'", "null"], ["'x'", "'1.5'", "'99999999999'"]),
    ("text", "numeric(5,2)", ["'1.50'", "'999.99'"], ["'1.505'", "'1000'", "''"]),
    ("text", "date", ["'2024-02-29'"], ["'2024-02-30'", "'2024-01-01 10:00'"]),
    ("text", "timestamptz", ["'2024-01-01T00:00:00Z'"], ["'2024-01-01 00:00:00.1234567'", "'never'"]),
    ("text", "varchar(3)", ["'abc'", "''"], ["'abcd'", "'abc '"]),
    ("text", "uuid", ["'00000000-0000-0000-0000-000000000001'"], ["'0'"]),
    ("text", "double precision", ["'0.1'", "'1e300'"], ["'1e400'", "'0.1000000000000000055511151231257827'"]),
    ("bigint", "integer", ["1", "-2147483648"], ["2147483648"]),
    ("bigint", "double precision", ["9007199254740992"], ["9007199254740993"]),
    ("numeric(20,4)", "numeric(10,2)", ["1.2300"], ["1.2390", "123456789.0000"]),
    ("numeric(20,4)", "bigint", ["7.0000"], ["7.5000"]),
    ("double precision", "integer", ["7", "-0.0"], ["7.5", "'NaN'", "1e300", "'Infinity'"]),
    ("double precision", "real", ["0.5", "'NaN'", "'Infinity'"], ["0.1", "1e300", "1e-300"]),
    ("double precision", "numeric(10,2)", ["0.5"], ["0.123", "'Infinity'"]),
    ("timestamp", "date", ["'2024-01-01'", "'infinity'"], ["'2024-01-01 00:00:00.000001'"]),
    ("timestamptz", "timestamp(0)", ["'2024-01-01 10:00:00+00'"], ["'2024-01-01 10:00:00.5+00'"]),
    ("date", "timestamp", ["'2024-01-01'", "'-infinity'"], ["'300000-01-01'"]),
]


@pytest.mark.parametrize(("own", "want", "fits", "unfit"), CASTS, ids=[f"{c[0]}-{c[1]}" for c in CASTS])
def test_casts_are_checked_forth_and_back_without_raising(
    own: str, want: str, fits: list[str], unfit: list[str], db: Database, opened: Callable[..., Source]
) -> None:
    [column] = opened(db, f"select null::{own} as v").schema()
    target = PostgresTarget(db.config, new_run())
    native = target.native(Column("v", column.type, column.logical, column.native), None, want)
    target.close()
    assert native.verdict is Verdict.CHECKED
    valid = native.valid.replace("{}", '"v"')
    rows = ", ".join(f"(({value})::{own})" for value in (*fits, *unfit))
    found = db.query(f"select {valid} from (values {rows}) as t(v)")
    assert [row[0] for row in found] == [True] * len(fits) + [False] * len(unfit)
    decoded = ", ".join(f"(({value})::{own})" for value in fits)
    db.query(f"select ({native.decode.replace('{}', 'v')})::text from (values {decoded}) as t(v)")


def test_tables_lists_what_is_readable_and_never_our_own(db: Database) -> None:
    numbered(db, 10)
    db.execute("create schema _penstock", "create table _penstock.loads (a int)", "create view v as select 1 as a")
    listed = {(str(info.name), info.kind, info.primary_key) for info in BACKEND.tables(db.config)}
    assert listed == {("public.t", "table", ("id",)), ("public.v", "view", ())}


def test_native_path_only_for_the_same_database_user_and_settings(
    database: Callable[[], Database],
) -> None:
    one, two = database(), database()
    assert BACKEND.same_database(one.config, one.config)[0]
    assert BACKEND.same_database(one.config, two.config) == (False, "source and target are different databases")
    other = PostgresConfig(name="db", dsn=one.dsn, options={"options": "-csearch_path=pg_catalog"})
    assert BACKEND.same_database(one.config, other) == (False, "source and target differ in their search_path")
