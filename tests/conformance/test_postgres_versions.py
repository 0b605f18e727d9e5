"""Every supported Postgres version gives what the newest one gives. No JVM.

The older servers hold both ends, or face the newest one where types and values cross.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.backends.base import Source
from penstock.backends.postgres import split
from penstock.backends.postgres.connect import SETTINGS, open_session, reading_session
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import DataError, SourceError, SourceMoved
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.conformance.postgres_bench import Database, new_run, numbered, read_all
from tests.conformance.postgres_versions import OldServer, emptied, old
from tests.conformance.test_postgres_values import CASTS
from tests.conformance.values import POSTGRES, POSTGRES_ONLY, POSTGRES_SETUP, table_sql, text_query
from tests.faults.test_all_or_nothing import ROWS, Bare

__all__ = ["emptied", "old"]

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

Types = dict[str, tuple[str, ...]]

# ---------------------------------------------------------------- types and values


@dataclass(frozen=True)
class Newer:
    """What older servers lack."""

    since: int
    type_: str
    value: str | None  # None: the whole type
    why: str


NEWER = (
    Newer(15, "numeric(5,-2)", None, "a numeric's scale is 0 or more"),
    Newer(15, "numeric(3,5)", None, "a numeric's scale is at most its precision"),
    Newer(17, "interval", "'infinity'", "an interval is finite"),
)


def known(types: Types, version: int) -> Types:
    """What a server of this version can hold."""
    lacks = {(newer.type_, newer.value) for newer in NEWER if version < newer.since}
    return {
        name: tuple(value for value in values if (name, value) not in lacks)
        for name, values in types.items()
        if (name, None) not in lacks
    }


# Domains arrive as their base types.
SPELLED = """
select case typtype when 'd' then format_type(typbasetype, typtypmod) else format_type(atttypid, atttypmod) end
from pg_attribute join pg_type on pg_type.oid = atttypid
where attrelid = 'items'::regclass and attnum > 0 order by attnum
"""


def moved(source: Harness, target: Harness, root: Path, types: Types, table: str, mode: str) -> None:
    """Every cell is the same text on both sides."""
    source.execute(*table_sql(types, table))
    flow = Flow(source, target, root)
    flow.run(table=f"public.{table}", target=f"to.public.{table}", mode=mode)
    shown = text_query(types, table, "text")
    for row, other in zip(source.query(shown), target.query(shown), strict=True):
        told = zip(["id", *types], row, other, strict=True)
        assert [f"{name}: {want!r} became {got!r}" for name, want, got in told if want != got] == []


@pytest.mark.parametrize("direction", ["from", "into"])
def test_every_type_and_its_extremes(
    old: OldServer, harness: Callable[[str], Harness], tmp_path: Path, direction: str
) -> None:
    newest = harness("postgres")
    source, target = (old.one, newest) if direction == "from" else (newest, old.one)
    for one in (source, target):
        one.execute(*POSTGRES_SETUP)
    # A type that the target lacks is kept there as its text; a value can only be left out.
    lacked = {newer.type_ for newer in NEWER if newer.value is None and old.version < newer.since}
    every = known(POSTGRES, old.version) if direction == "from" else POSTGRES
    moved(source, target, tmp_path, every, "items", "merge")
    moved(source, target, tmp_path, known(POSTGRES_ONLY, old.version), "rest", "append")
    left, right = source.query(SPELLED), target.query(SPELLED)
    assert right == [("text" if name in lacked else name,) for (name,) in left]


@pytest.mark.parametrize("newer", [n for n in NEWER if n.value is not None], ids=lambda n: f"{n.type_}-{n.value}")
def test_a_value_that_the_server_lacks_stops_with_its_key(
    old: OldServer, harness: Callable[[str], Harness], tmp_path: Path, newer: Newer
) -> None:
    flow = Flow(harness("postgres"), old.one, tmp_path)
    flow.source.execute(
        f"create table items (id int primary key, v {newer.type_})",
        f"insert into items values (1, null), (7, {newer.value})",
    )
    if old.version < newer.since:
        with pytest.raises(DataError, match="column v") as caught:
            flow.run(mode="merge")
        assert caught.value.keys == ("id=7",)
        assert not flow.target.has_table("items")
        flow.run(mode="merge", columns={"v": "text"})
    else:
        flow.run(mode="merge")
    shown = "select id, v::text from items order by id"
    assert flow.target.query(shown) == flow.source.query(shown)


# ---------------------------------------------------------------- modes


@dataclass(frozen=True)
class Story:
    """Two runs of one pipeline, with changes at the source between them."""

    options: dict[str, Any]
    shown: str = "id, name, price"

    def told(self, source: Harness, target: Harness, root: Path) -> list[Any]:
        """What each run counts, and what the target holds after it."""
        source.execute(
            "create table items (id bigint primary key, name varchar, price decimal(10,2),"
            " at timestamptz not null default clock_timestamp() - interval '1 second')",
            "insert into items values (1, 'a', 1.50), (2, 'b', null), (3, '', -0.01), (4, null, 4)",
        )
        flow = Flow(source, target, root)
        seen: list[Any] = []
        for changes in ((), CHANGES):
            source.execute(*changes)
            record = flow.run(target="to.public.copies", **self.options)
            seen.append((record.path, record.rows, record.inserted, record.updated, record.deleted))
            seen += target.query(f"select {self.shown} from copies order by 1, 2, 3")
        assert target.leftovers() == []
        return seen


CHANGES = (
    "update items set name = 'B' where id = 2",
    "delete from items where id = 3",
    "insert into items values (9)",
)
SOFT = "id, name, price, _penstock_deleted, _penstock_deleted_at is null"
SCD2 = "id, name, is_current, valid_to is null, row_hash"

STORIES = {
    "append": Story({"mode": "append", "incremental": "at", "lag": "1s"}),
    "truncate": Story({"mode": "truncate"}),
    "merge-soft": Story({"mode": "merge", "deletes": "soft"}, SOFT),
    "merge-hard-native": Story({"mode": "merge", "deletes": "hard", "path": "native"}),
    "scd2-event-time": Story({"mode": "scd2", "event_time": "at", "order_by": "name"}, SCD2),
    "scd2-close": Story({"mode": "scd2", "deletes": "close", "track": ["name", "price"]}, SCD2),
}


@pytest.fixture(scope="session")
def by_newest() -> dict[str, list[Any]]:
    """What the newest server has told, by story."""
    return {}


@pytest.mark.parametrize("name", STORIES)
def test_modes_end_as_on_the_newest_server(
    old: OldServer, harness: Callable[[str], Harness], by_newest: dict[str, list[Any]], tmp_path: Path, name: str
) -> None:
    story, native = STORIES[name], STORIES[name].options.get("path") == "native"
    if name not in by_newest:
        newest = harness("postgres")
        by_newest[name] = story.told(newest, newest if native else harness("postgres"), tmp_path)
    assert story.told(old.one, old.one if native else old.other, tmp_path) == by_newest[name]


def test_partitions_are_attached_whatever_the_table_has(old: OldServer, tmp_path: Path) -> None:
    old.one.execute(
        "create table items (id int, region text, made timestamptz)",
        "insert into items values (101, 'a', '2026-01-31 23:59+00'), (102, 'b', '2026-02-01 00:00+00')",
        "insert into items values (103, 'c', null), (104, 'd', '2025-01-01 00:00+00')",
    )
    old.other.execute(
        "create table items (id int generated always as identity, region text check (region <> ''), made timestamptz,"
        " size int generated always as (length(region)) stored) partition by range (made)",
        "create index on items (id)",
        "create table year partition of items for values from ('2025-01-01 00:00+00') to ('2026-01-01 00:00+00')",
        "create table rest partition of items default",
    )
    flow = Flow(old.one, old.other, tmp_path)
    for times in (1, 2):
        flow.run(partition_by=["month(made)"])
        found = "select tableoid::regclass::text, count(*), sum(size)::int from items group by 1"
        held = [(name[:2], rows, size) for name, rows, size in old.other.query(found)]
        assert sorted(held) == sorted((name, times, times) for name in ("p_", "p_", "re", "ye"))


# ---------------------------------------------------------------- reading


@dataclass
class Writer:
    """Changes a table for as long as it is read."""

    dsn: str
    stop: threading.Event = field(default_factory=threading.Event)

    def work(self) -> int:
        turns = 0
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.stop.is_set():
                turns += 1
                connection.execute("update t set v = v || '.' where id %% 7 = %s", (turns % 7,))
                connection.execute("delete from t where id = %s", (turns,))
                connection.execute("insert into t values (%s, 'new')", (100_000 + turns,))
        return turns


def test_splitting_reads_each_row_of_one_moment_once(
    old: OldServer, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "MIN_RANGE_BYTES", 64 * 1024)
    db = Database(old.one.dsn)
    numbered(db, 7_000)
    writer = Writer(db.dsn)
    with ThreadPoolExecutor() as pool:
        working = pool.submit(writer.work)
        try:
            source = opened(db, table="public.t")
            counted = source._holder.ask("select count(*), sum(id) from t")[0]  # type: ignore[attr-defined]  # the backend's own part
            ids = read_all(source, want=4)["id"].to_pylist()
        finally:
            writer.stop.set()
        assert working.result() > 0
    assert len(source.partitions(list(source.schema()), 4).partitions) >= 2
    assert (len(ids), sum(ids)) == counted
    assert len(set(ids)) == len(ids)
    # A query over the table is cut into the same ranges.
    assert len(opened(db, "select id, v from t where id > 0").partitions([], 4).partitions) >= 2


@pytest.mark.parametrize("change", ["vacuum full t", "alter table t drop v, add v text"])
def test_a_table_rewritten_after_planning_is_moved_not_read(
    old: OldServer, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(split, "MIN_RANGE_BYTES", 64 * 1024)
    db = Database(old.one.dsn)
    numbered(db, 2_000)
    source = opened(db, table="public.t")
    first, second, *_ = source.partitions(list(source.schema()), 4).partitions
    assert 0 < sum(batch.num_rows for batch in first.read()) < 2_000
    db.execute(change)
    with pytest.raises(SourceMoved):
        list(second.read())


def test_source_sessions_are_read_only_and_know_their_settings(old: OldServer, opened: Callable[..., Source]) -> None:
    db = Database(old.one.dsn)
    numbered(db, 10)
    db.execute("create function wipe() returns int language plpgsql as $$ begin delete from t; return 1; end $$")
    for query in ("delete from t returning *", "select wipe() as n"):
        with pytest.raises(SourceError):
            read_all(opened(db, query))
    assert db.query("select count(*) from t") == [(10,)]
    conninfo = db.config.conninfo()
    with open_session(conninfo, "test") as driver:
        made = {name: driver.execute(f"show {name}".encode()).fetchone() for name, _ in SETTINGS}
    with reading_session(conninfo, "test") as worker, worker.cursor() as cursor:
        for name, _ in SETTINGS:
            cursor.execute(f"select pg_catalog.current_setting('{name}')")
            assert cursor.fetchone() == made[name], name


# ---------------------------------------------------------------- casts

# Types whose readers tell of a bad value in their own ways.
MORE_CASTS = [
    ("text", "jsonb", ["'{}'"], ["'{'"]),
    ("text", "jsonpath", ["'$.a'"], ["'$.'"]),
    ("text", "tsquery", ["'fat & cat'"], ["'fat cat'"]),
    ("text", "tsvector", ["'fat cat'"], ["repeat('x', 3000)"]),
    ("text", "regclass", ["'pg_class'"], ["'no_such_table'"]),
    ("text", "public.mood", ["'sad'"], ["'none'"]),
    ("text", "integer[]", ["'{{1},{2}}'"], ["'{{1},{1,2}}'"]),
    ("text", "timestamp", ["'2024-01-01 10:00'"], ["'2024-01-01 10:00+05'", "'now'", "'Today'"]),
]


def test_casts_tell_what_fits_from_what_does_not(old: OldServer, opened: Callable[..., Source], tmp_path: Path) -> None:
    db = Database(old.one.dsn)
    db.execute(*POSTGRES_SETUP)
    Flow(old.one, old.one, tmp_path).run(query="select '7'::text as v", columns={"v": "integer"})
    every = [*CASTS, *MORE_CASTS]
    columns = opened(db, "select " + ", ".join(f"null::{own} as c{n}" for n, (own, *_) in enumerate(every))).schema()
    target = PostgresTarget(db.config, new_run())
    with psycopg.connect(db.dsn) as session:
        for column, (own, want, fits, unfit) in zip(columns, every, strict=True):
            valid = target.native(column, None, want).valid.replace("{}", "v")
            rows = ", ".join(f"(({value})::{own})" for value in (*fits, *unfit))
            found = session.execute(f"select {valid} from (values {rows}) as t(v)".encode()).fetchall()
            assert [row[0] for row in found] == [True] * len(fits) + [False] * len(unfit), (own, want)
    target.close()


@pytest.mark.parametrize("path", ["native", "fused"])
def test_casts_refuse_what_does_not_fit_with_its_key(old: OldServer, tmp_path: Path, path: str) -> None:
    flow = Flow(old.one, old.one, tmp_path)
    old.one.execute(
        "create table items (id int primary key, v text)",
        "insert into items values (1, null), (4, '2024-01-01'), (7, 'now')",
    )
    with pytest.raises(DataError, match="column v") as caught:
        flow.run(mode="merge", path=path, columns={"v": "timestamptz"}, target="to.public.casted")
    assert caught.value.keys == ("id=7",)
    assert not old.one.has_table("casted")


# ---------------------------------------------------------------- keys under a collation


@pytest.mark.parametrize("path", ["native", "fused"])
def test_keys_fall_together_under_a_nondeterministic_collation(old: OldServer, tmp_path: Path, path: str) -> None:
    here = old.one
    here.execute(
        "create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "create table items (id text collate folded primary key, name text, day date)",
        "insert into items values ('A', 'x', '2024-01-01'), ('b', 'x', '2024-01-01')",
    )
    flow = Flow(here, here, tmp_path)
    options: dict[str, Any] = {"mode": "merge", "deletes": "hard", "keys": ["id"], "path": path}

    def query(*ids: str) -> str:
        rows = ", ".join(f"('{id_}', 'x', '2024-01-01' collate folded)" for id_ in ids)
        return f"select * from (values {rows}) as v(id, name, day)"

    options["columns"] = {"day": "date"}
    with pytest.raises(DataError, match="duplicate keys"):
        flow.run(query=query("A", "b", "a"), **options)
    again = flow.run(query=query("a", "b"), **options)
    assert (again.inserted, again.updated, again.deleted) == (0, 1, 0)
    assert here.query("select id, day::text from items order by id") == [("a", "2024-01-01"), ("b", "2024-01-01")]


# ---------------------------------------------------------------- more than one user


def test_a_second_user_may_load_with_grants_alone(old: OldServer, tmp_path: Path) -> None:
    here = PostgresHarness(old.one.dsn)
    here.execute("create table items (id int primary key)", "insert into items values (1)")
    flow = Flow(here, here, tmp_path)
    flow.run(target="to.public.first", path="fused")
    here.execute(
        "do $$ begin create role clerk login password 'clerk'; exception when duplicate_object then null; end $$",
        "grant create on database postgres to clerk",
        "grant create, usage on schema public, _penstock to clerk",
        "grant all on all tables in schema public, _penstock to clerk",
    )
    here.dsn = f"postgresql://clerk:clerk@127.0.0.1:{old.server.port}/postgres"
    assert flow.run(target="to.public.second", path="fused").inserted == 1


# ---------------------------------------------------------------- killed


@pytest.mark.faults
def test_sigkill_around_the_commit(old: OldServer, tmp_path: Path) -> None:
    """One load dies before its COMMIT, the other after; the next run ends both alike."""
    ends = {"commit.loaded": (old.one, old.other, 0), "commit.done": (old.other, old.one, ROWS)}
    dying = {}
    for point, (source, target, _) in ends.items():
        root = tmp_path / point
        root.mkdir()
        dying[point] = Bare(source, target, root).start(f"{point}=kill", target="to.public.copies")
    for point, (source, target, there) in ends.items():
        _, err = dying[point].communicate(timeout=90)
        assert dying[point].returncode == -signal.SIGKILL, err
        assert target.has_table("copies") is (there > 0)
        assert target.leftovers() != []
        done = Flow(source, target, tmp_path).run(
            name="p", target="to.public.copies", mode="append", incremental="id", lag="0"
        )
        assert done.inserted == ROWS - there
        assert target.query("select count(*), count(distinct id) from copies") == [(ROWS, ROWS)]
        assert target.leftovers() == []
