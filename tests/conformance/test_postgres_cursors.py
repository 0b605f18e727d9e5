"""Where an incremental window on Postgres may end: never before a row that can still come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from penstock.backends.base import Cursor, Source, Window
from penstock.errors import DataError, PlanRefused
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.conformance.postgres_bench import Database, read_all

pytestmark = pytest.mark.postgres


@pytest.fixture
def events(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    flow.source.execute("create table items (id int primary key, at timestamptz default now())")
    return flow


def test_cursors_a_prepared_transaction_needs_a_lag(events: Flow) -> None:
    """pg_prepared_xacts tells when it was prepared, not when it began."""
    assert isinstance(events.source, PostgresHarness)
    options = {"mode": "merge", "incremental": "at"}
    with psycopg.connect(events.source.dsn, autocommit=True) as late:
        late.execute("begin")
        late.execute("insert into items values (1)")
        events.source.execute("insert into items values (2)")
        late.execute("prepare transaction 'late'")
    try:
        with pytest.raises(PlanRefused, match="prepared transactions") as caught:
            events.run(**options)
        assert "lag" in caught.value.remedy
        events.run(**options, lag="1h")
        assert any("prepared" in note for note in events.plan(**options, lag="1h").notes)
    finally:
        events.source.execute("commit prepared 'late'")
    events.run(**options)
    assert events.target.query("select id from items order by id") == [(1,), (2,)]


def test_cursors_a_prepared_transaction_of_another_database_does_not_matter(
    events: Flow, harness: Callable[[str], Harness]
) -> None:
    other = harness("postgres")
    assert isinstance(other, PostgresHarness)
    with psycopg.connect(other.dsn, autocommit=True) as late:
        late.execute("begin")
        late.execute("create table t (a int)")
        late.execute("prepare transaction 'elsewhere'")
    try:
        events.run(mode="merge", incremental="at")
    finally:
        other.execute("rollback prepared 'elsewhere'")


@pytest.mark.parametrize(
    ("type_", "upper"),
    [
        ("timestamp(0)", "2024-01-01 00:00:10"),
        ("timestamptz(0)", "2024-01-01 00:00:10+00"),
        ("timestamp(3)", "2024-01-01 00:00:10.6"),
        ("timestamp(5)", "2024-01-01 00:00:10.6007"),
        ("timestamp", "2024-01-01 00:00:10.6007"),
        ("timestamptz", "2024-01-01 00:00:10.6007+00"),
    ],
)
def test_cursors_no_bound_is_ahead_of_the_clock(
    db: Database, opened: Callable[..., Source], type_: str, upper: str
) -> None:
    """Rounded up to the column's digits, it would leave out rows of the second that is not over."""
    db.execute(f"create table t (id int primary key, at {type_})")
    source = opened(db, table="public.t")
    holder = source._holder  # type: ignore[attr-defined]  # the clock is the test's own
    holder.clock = replace(holder.clock, settled="2024-01-01 00:00:10.6007+00")
    assert source.upper(Cursor("at", None, "UTC")) == upper


# ---------------------------------------------------------------- standbys


@contextmanager
def standby(*, crashed: bool) -> Iterator[Database]:
    """A server that waits for a primary's log; of its own it has replayed what a crash left, if there was one."""
    with EmbeddedPostgres(synchronous_commit="on") as server:
        db = Database(server.dsn)
        db.execute("create table t (id int primary key, at timestamptz default now())", "insert into t values (1)")
        server.stop(immediate=crashed)
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        yield db


def test_cursors_a_standby_needs_a_lag(opened: Callable[..., Source]) -> None:
    """A transaction that is open on the primary has left no trace here."""
    with standby(crashed=True) as db:
        source = opened(db, table="public.t")
        with pytest.raises(PlanRefused, match="standby"):
            source.upper(Cursor("at", None, None))
        upper = source.upper(Cursor("at", "5m", None))
        replayed = "pg_last_xact_replay_timestamp()"
        assert db.query(f"select '{upper}'::timestamptz = {replayed} - interval '5 minutes'") == [(True,)]
        assert any("standby" in note and "lag" in note for note in source.notes())
        assert source.upper(Cursor("id", "0", None)) == "2"


def test_cursors_a_standby_that_has_replayed_nothing_has_no_clock(opened: Callable[..., Source]) -> None:
    with standby(crashed=False) as db:
        assert db.query("select pg_last_xact_replay_timestamp()") == [(None,)]
        with pytest.raises(PlanRefused, match="replayed no transaction"):
            opened(db, table="public.t").upper(Cursor("at", "5m", None))


# ---------------------------------------------------------------- rows without a cursor


def looks_for_nulls(source: Source, window: Window) -> bool:
    """Whether a read of the window looks through the table for rows without a cursor."""
    seen: list[str] = []
    holder = source._holder  # type: ignore[attr-defined]  # the backend's own part
    ask = holder.ask
    holder.ask = lambda sql, *rest: (seen.append(sql), ask(sql, *rest))[1]
    read_all(source, 1, window)
    holder.ask = ask
    return any("is null" in sql for sql in seen)


def test_cursors_a_column_that_takes_no_null_is_not_counted(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t (id int not null, at int)", "insert into t values (1, 1)")
    source = opened(db, table="public.t")
    assert not looks_for_nulls(source, Window("id", None, "9"))
    assert looks_for_nulls(source, Window("at", None, "9"))


def test_cursors_a_child_without_its_parents_promise_is_counted(db: Database, opened: Callable[..., Source]) -> None:
    db.execute(
        "create table parent (id int)",
        "create table child () inherits (parent)",
        "insert into child values (null)",
        "alter table only parent add constraint n not null id no inherit",
    )
    source = opened(db, table="public.parent")
    with pytest.raises(DataError, match="1 row"):
        read_all(source, 1, Window("id", None, "9"))


def test_cursors_a_promise_that_was_never_checked_is_counted(db: Database, opened: Callable[..., Source]) -> None:
    db.execute(
        "create table t (id int)", "insert into t values (null)", "alter table t add constraint n not null id not valid"
    )
    with pytest.raises(DataError, match="1 row"):
        read_all(opened(db, table="public.t"), 1, Window("id", None, "9"))
