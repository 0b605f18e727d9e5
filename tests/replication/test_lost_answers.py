"""Answers that never come: of a COMMIT that was done, of a server that is silent, of one that only works long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from penstock.backends.base import Execute, TableLoad
from penstock.backends.change_source import LogNames
from penstock.backends.change_target import TableFlush
from penstock.backends.postgres.apply import PostgresApplier
from penstock.backends.postgres.change_source import PostgresChangeSource
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import open_session, reading_session
from penstock.backends.postgres.lasting import LastingSession
from penstock.backends.postgres.silence import Silent
from penstock.backends.postgres.stream import ReplicationLink
from penstock.errors import LinkLost, PlanStale
from penstock.replicate.ledger import Ledger
from penstock.schema import TableName
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.conftest import drop_slot
from tests.replication.links import Linked, Links
from tests.replication.stand import Stand
from tests.unit.changelog_rows import position
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

COMMIT = b"COMMIT\x00"


@pytest.fixture
def links(postgres_server: EmbeddedPostgres) -> Iterator[Links]:
    with Links(postgres_server.port) as made:
        yield made


@pytest.fixture
def database(harness: Callable[[str], Harness]) -> PostgresHarness:
    made = harness("postgres")
    assert isinstance(made, PostgresHarness)
    return made


def config(database: PostgresHarness, links: Links, link_timeout: str = "1s") -> PostgresConfig:
    return PostgresConfig.model_validate({"name": "to", **Linked(database.dsn, links, link_timeout).options()})


def adding(value: int) -> list[TableFlush]:
    """A flush of a table that takes everything twice."""
    table = TableName("public", "bag")
    return [TableFlush(table, TableLoad(table, (), (Execute(f"insert into public.bag values ({value})"),)))]


def test_a_commit_that_was_done_is_not_done_again(database: PostgresHarness, links: Links) -> None:
    database.execute("create table bag (v int)")
    applier = PostgresApplier(config(database, links), "shop")
    ledger = Ledger(applier)
    ledger.commit(after=position(10))
    links.swallow_answer(lambda said: COMMIT in said)
    with pytest.raises(LinkLost):
        ledger.commit(adding(1), after=position(20))
    assert links.swallowed.is_set()
    assert ledger.position == position(10)  # as far as is known
    with pytest.raises(PlanStale, match="the last transaction is in the target"):
        ledger.commit(adding(1), after=position(20))
    assert ledger.position == position(20)
    ledger.commit(adding(2), after=position(30))
    applier.close()
    assert database.query("select v from bag order by v") == [(1,), (2,)]


def test_a_commit_that_never_arrived_is_done_once(database: PostgresHarness, links: Links) -> None:
    """It lies in the link all the while, and goes on when that does: by then its session must be gone."""
    database.execute("create table bag (v int)")
    applier = PostgresApplier(config(database, links), "shop")
    ledger = Ledger(applier)
    ledger.commit(after=position(10))
    links.hold_question(lambda said: COMMIT in said)
    with pytest.raises(LinkLost):
        ledger.commit(adding(1), after=position(20))
    ledger.commit(adding(1), after=position(20))
    links.let_go()
    ledger.commit(adding(2), after=position(30))
    applier.close()
    assert database.query("select v from bag order by v") == [(1,), (2,)]


def test_under_work_lost_commits_are_neither_lost_nor_done_again(
    make: Callable[..., Stand], database: PostgresHarness, links: Links
) -> None:
    stand = make("postgres")
    stand.target = Linked(database.dsn, links)
    stand.source.execute("create table bag (v int)", "alter table bag replica identity full")
    stand.start()
    stand.sync()
    for value in range(2):
        links.swallow_answer(lambda said: COMMIT in said)
        stand.source.execute(f"insert into bag values ({value})", f"insert into bag values ({value})")
        await_true(links.swallowed.is_set)
        stand.source.execute(f"delete from bag where ctid in (select ctid from bag where v = {value} limit 1)")
        stand.sync()
    stand.assert_agrees("bag")
    assert stand.replicated("bag") == ["(0)", "(1)"]


def test_a_lost_commit_that_has_altered_a_table_is_not_made_again(
    make: Callable[..., Stand], database: PostgresHarness, links: Links
) -> None:
    stand = make("postgres")
    stand.target = Linked(database.dsn, links)
    stand.source.execute("create table items (id int primary key, v text)", "insert into items values (1, 'a')")
    stand.start()
    stand.sync()
    links.swallow_answer(lambda said: COMMIT in said)
    stand.source.execute("alter table items add column w int default 7", "insert into items values (2, 'b', 8)")
    await_true(links.swallowed.is_set)
    stand.source.execute("update items set w = w + 1", "insert into items values (3, 'c', 9)")
    stand.sync()
    assert (stand.state("items")["phase"], stand.state("items")["reason"]) == ("streaming", "")
    stand.assert_agrees("items")


def test_a_silent_server_is_given_up_and_a_busy_one_is_not(database: PostgresHarness, links: Links) -> None:
    session = open_session(config(database, links).conninfo(), "penstock:test")
    began = time.monotonic()
    assert session.execute("select 1 from pg_sleep(2.5)").fetchall() == [(1,)]
    assert time.monotonic() - began > 2
    links.trouble("stalled")
    with pytest.raises(Silent, match="nothing was heard"):
        session.execute("select 1")
    assert session.closed


def test_a_worker_that_reads_slowly_or_asks_for_much_is_not_cut_off(database: PostgresHarness, links: Links) -> None:
    with reading_session(config(database, links).conninfo(), "penstock:test") as session, session.cursor() as cursor:
        cursor.execute("select 1 from pg_sleep(2.5)")
        assert cursor.fetchone() == (1,)
        # More than the sockets hold: the server waits for us meanwhile, and that is no silence of its own.
        cursor.execute("select repeat('x', 1000) from generate_series(1, 50000)")
        first = cursor.fetchone()
        waits = (
            "select 1 from pg_stat_activity where application_name = 'penstock:test' and wait_event = 'ClientWrite'"
            " and clock_timestamp() - query_start > interval '2.5 s'"
        )
        await_true(lambda: database.query(waits))
        assert first == ("x" * 1000,)
        assert len(cursor.fetchall()) == 49_999


def test_one_that_waits_for_a_lock_is_busy(database: PostgresHarness, links: Links) -> None:
    database.execute("create table bag (v int)")
    session = open_session(config(database, links).conninfo(), "penstock:test")
    with psycopg.connect(database.dsn) as other:
        other.execute("lock table bag")
        session.execute("set lock_timeout to '2500ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.execute("select * from bag")
    session.close()


def test_the_session_of_a_lost_link_is_ended_before_the_next_is_used(database: PostgresHarness, links: Links) -> None:
    database.execute("create table bag (v int)", "insert into bag values (1)")
    session = LastingSession(config(database, links).conninfo(), "penstock:test")

    def cut_off() -> None:
        with session.atomic():
            session.execute("update bag set v = 2")
            links.trouble("deaf")
            session.execute("select 1")

    with pytest.raises(LinkLost):
        cut_off()
    links.heal()
    # The row is locked by the backend that knows nothing of it.
    session.execute("set lock_timeout to '1s'")
    assert session.execute("update bag set v = 3") == 1
    session.close()
    assert database.query("select v from bag") == [(3,)]


def test_a_session_that_was_ended_while_it_was_idle_costs_no_statement(database: PostgresHarness, links: Links) -> None:
    session = LastingSession(config(database, links).conninfo(), "penstock:test")
    [(first,)] = session.query("select pg_backend_pid()")
    links.trouble("cut")
    links.heal()
    [(second,)] = session.query("select pg_backend_pid()")
    assert first != second
    with session.atomic():
        assert session.query("select pg_backend_pid()") == [(second,)]
    session.close()


def test_a_slot_that_a_lost_capture_holds_is_taken_from_it(database: PostgresHarness, links: Links) -> None:
    names = LogNames("penstock_held", "penstock_held", own=False)
    database.execute("create publication penstock_held")
    patient = config(database, links, "60s")
    source = PostgresChangeSource(patient, names, [])
    source.begin().close()
    lost = ReplicationLink(patient.conninfo(), "penstock:penstock_held:capture")
    try:
        lost.start("penstock_held", 0, ["penstock_held"], 2)
        source._end_reader("penstock:penstock_held:capture")
        assert database.query("select active from pg_replication_slots where slot_name = 'penstock_held'") == [(False,)]
    finally:
        lost.close()
        source.close()
        drop_slot(database, "penstock_held")
