"""Locks that applications hold at the source: what waits for them, how long, and what goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psycopg
import pytest

from penstock.backends.base import Receipt, RunContext
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.lasting import LastingSession
from penstock.engine.task import Work
from penstock.errors import DataError
from penstock.project import Project
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.stand import ITEMS, Stand, stage_here
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

OURS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'penstock:%'"


def patient_for(stand: Stand, lock_timeout: str) -> None:
    given = stand.source.options()
    stand.source.options = lambda: given | {"lock_timeout": lock_timeout}  # type: ignore[method-assign]  # of this one


def test_a_reload_that_runs_into_a_lock_takes_nothing_with_it(make: Callable[..., Stand]) -> None:
    """The thread of the copies asks over the same session, while the transaction of the reload waits and fails."""
    inside, go_on, held = threading.Event(), threading.Event(), threading.Event()

    def stage(project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
        receipts = stage_here(project, pieces, run)
        if held.is_set():
            inside.set()
            assert go_on.wait(30)
        return receipts

    stand = make("sqlite", stage=stage, tables=["public.items"])
    patient_for(stand, "2s")
    stand.source.execute(*ITEMS, "create table other (id bigint primary key)")
    stand.start()
    stand.sync()
    held.set()
    stand.resync("items")
    assert inside.wait(20)
    stand.replication = stand.replication.model_copy(update={"tables": ("public.items", "public.other")})
    answers: list[str] = []
    with psycopg.connect(stand.source.dsn) as application:
        application.execute("lock table other in share update exclusive mode")
        asking = threading.Thread(target=lambda: answers.append(stand.ask("reload")))
        asking.start()
        await_true(lambda: stand.source.query(OURS), 10, lambda: (answers, stand.error))
        held.clear()
        go_on.set()
        asking.join(40)
    assert "lock" in answers[0]
    stand.source.execute("update items set name = 'changed' where id < 10")
    stand.sync()
    stand.assert_agrees("items")
    assert stand.ask("reload") == "1 table added, 0 removed"
    stand.source.execute("insert into other values (7)")
    stand.sync()
    stand.assert_agrees("items", "other")


def test_what_one_thread_asks_is_no_part_of_the_transaction_of_another(harness: Callable[[str], Harness]) -> None:
    """It would fail with it, or be rolled back with it: a table that a copy has published, for one."""
    database = harness("postgres")
    assert isinstance(database, PostgresHarness)
    database.execute("create table t (v int)")
    config = PostgresConfig.model_validate({"name": "from_", "type": "postgres", "dsn": database.dsn})
    session = LastingSession(config.conninfo(), "penstock:test")
    answers: list[object] = []
    begun, over = threading.Event(), threading.Event()

    def ask() -> None:
        begun.set()
        answers.append(session.query("select pg_current_xact_id_if_assigned()::text"))
        over.set()

    other = threading.Thread(target=ask)

    def fail() -> None:
        with session.atomic():
            session.execute("insert into t values (1)")
            other.start()
            assert begun.wait(10)
            assert not over.wait(0.5)  # it waits for its turn
            session.execute("select 1 / (select count(*) - 1 from t)")

    with pytest.raises(DataError):
        fail()
    other.join(10)
    assert answers == [[(None,)]]
    session.close()


@pytest.mark.parametrize("how", ["reload", "start"])
def test_a_table_that_is_altered_and_not_replicated_holds_up_nobody(make: Callable[..., Stand], how: str) -> None:
    stand = make("sqlite", tables=["public.*", "!public.audit*"])
    stand.source.execute(*ITEMS, "create table audit_x (id bigint primary key)")
    stand.start()
    stand.sync()
    if how == "start":
        stand.stop()
    with psycopg.connect(stand.source.dsn) as altering:
        altering.execute("alter table audit_x add column v int")
        altering.execute("create index by_v on audit_x (v)")
        if how == "reload":
            assert stand.ask("reload") == "0 tables added, 0 removed"
        else:
            stand.start()
        stand.source.execute("insert into items values (7777, 'x')")
        there = "select id from items where id = 7777"
        await_true(lambda: stand.target.query(there) == [(7777,)], 20, lambda: (stand.seen, stand.error))
        assert stand.source.query(OURS) == []
