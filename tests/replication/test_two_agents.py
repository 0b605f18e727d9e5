"""Two agents of one replication, or what is left of one: the later goes on, the other commits no more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import duckdb
import psutil
import psycopg
import pytest

from penstock.backends.postgres import change_source
from penstock.backends.postgres.leases import lock_key
from tests.replication.conftest import TARGETS
from tests.replication.stand import BAG, ITEMS, Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

TABLES = (*ITEMS, *BAG)
Make = Callable[..., Stand]


def streaming(stand: Stand) -> Stand:
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    return stand


def changed(stand: Stand, mark: str) -> None:
    stand.source.execute(
        f"update items set name = '{mark} ' || id where id % 2 = 0",
        f"insert into bag select '{mark}' from generate_series(1, 20)",
        "delete from bag where ctid = (select ctid from bag limit 1)",
    )


def agent(stand: Stand) -> psutil.Process:
    assert stand.process is not None
    return psutil.Process(stand.process.pid)


def suspend(stand: Stand) -> None:
    """Stop it between two flushes: one that holds the target's file, or its row, keeps everybody out."""
    process = agent(stand)

    def rests() -> bool:
        process.suspend()
        if is_free(stand):
            return True
        process.resume()
        return False

    await_true(rests)


def is_free(stand: Stand) -> bool:
    options = stand.target.options()
    if options["type"] == "postgres":
        name = f"penstock:{stand.replication.name}:apply"
        busy = f"select 1 from pg_stat_activity where application_name = '{name}' and state <> 'idle'"
        return stand.target.query(busy) == []
    try:
        if options["type"] == "duckdb":
            duckdb.connect(options["path"]).close()
        else:
            with closing(sqlite3.connect(options["path"], timeout=0)) as session:
                session.execute("begin immediate")
    except (duckdb.IOException, sqlite3.OperationalError):
        return False
    return True


def another(stand: Stand) -> Stand:
    """Of the same replication, in a process of its own."""
    made = Stand(stand.source, stand.target, stand.check, stand.root, apart=True)
    made.replication = stand.replication
    return made


def ended_by_the_other(stand: Stand) -> None:
    assert stand.process is not None
    stand.process.wait(30)
    assert stand.error is not None
    assert "another agent" in str(stand.error)
    stand.process = stand.error = None


def test_a_capture_that_outlives_its_agent_is_replaced(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """It is stuck, holds the slot, and writes late: the one that has replaced it must not be fenced by it."""
    stand = streaming(make("sqlite", apart=True))
    [capture] = agent(stand).children()
    capture.suspend()
    changed(stand, "unheard")
    stand.kill()
    stand.start()
    stand.sync()
    capture.resume()
    capture.wait(30)
    changed(stand, "after")
    stand.sync()
    stand.assert_agrees("items", "bag")
    stand.stop()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("target", TARGETS)
def test_an_agent_that_was_stopped_for_a_while_commits_no_more(target: str, make: Make) -> None:
    first = streaming(make(target, apart=True))
    suspend(first)
    second = another(first)
    try:
        second.start()
        changed(second, "second")
        second.sync()
        agent(first).resume()
        changed(second, "both")
        ended_by_the_other(first)
        second.sync()
        second.assert_agrees("items", "bag")
    finally:
        second.stop()


@pytest.mark.parametrize("target", TARGETS)
def test_of_two_that_start_at_once_one_goes_on(target: str, make: Make) -> None:
    first = make(target, apart=True)
    first.source.execute(*TABLES)
    second = another(first)
    both = (first, second)
    for one in both:
        one.start()
    try:
        await_true(lambda: any(one.error is not None for one in both), 60)
        [loser] = [one for one in both if one.error is not None]
        ended_by_the_other(loser)
        [winner] = [one for one in both if one is not loser]
        changed(winner, "one")
        winner.sync()
        winner.assert_agrees("items", "bag")
    finally:
        second.stop()


def of_the_same(stand: Stand) -> Stand:
    """Another agent of the same replication, in this process too."""
    made = Stand(stand.source, stand.target, stand.check, stand.root)
    made.replication = stand.replication
    return made


def one_goes_on(first: Stand, second: Stand) -> Stand:
    """Which one; the other has ended, because it was replaced."""
    both = (first, second)
    await_true(lambda: any(one.error is not None for one in both), 60, lambda: [one.seen for one in both])
    loser = next(one for one in both if one.error is not None)
    assert "another agent" in str(loser.error)
    loser.error = None
    loser.stop()
    [winner] = [one for one in both if one is not loser]
    changed(winner, "one")
    winner.sync()
    winner.assert_agrees("items", "bag")
    return winner


def test_of_two_that_start_in_the_same_moment_one_goes_on(make: Make) -> None:
    """At the first start, and later."""
    first = make("postgres")
    first.source.execute(*TABLES)
    second = of_the_same(first)
    try:
        for _ in range(2):
            for one in (first, second):
                one.start()
            one_goes_on(first, second).stop()
    finally:
        second.stop()


def test_who_begins_while_another_waits_for_its_slot_comes_after_it(make: Make) -> None:
    """It is not told that the slot is being made, and ended by that; for the other is replaced by it, and ends."""
    first = make("sqlite")
    first.source.execute(*TABLES)
    second = of_the_same(first)
    slots = f"select 1 from pg_replication_slots where slot_name = '{first.replication.slot_name}'"
    try:
        with psycopg.connect(first.source.dsn) as writer:
            writer.execute("insert into bag values ('late')")
            first.start()
            await_true(lambda: first.source.query(slots), 30, lambda: first.error)
            second.start()
            waits = (
                "select 1 from pg_stat_activity where query like '%pg_try_advisory_lock%' and pid <> pg_backend_pid()"
            )
            await_true(lambda: second.error is not None or first.source.query(waits))
        assert one_goes_on(first, second) is second
    finally:
        second.stop()


def test_one_that_hangs_while_it_begins_is_not_waited_for_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_source, "BEGIN_SECONDS", 0.5)
    stand = make("sqlite")
    stand.source.execute(*TABLES)
    slot = stand.replication.slot_name
    with psycopg.connect(stand.source.dsn, autocommit=True, application_name=f"penstock:{slot}") as hangs:
        hangs.execute("select pg_advisory_lock(%s)", (lock_key(f"begin {slot}"),))
        stand.start()
        stand.sync()
        stand.assert_agrees("items", "bag")
        with pytest.raises(psycopg.OperationalError):
            hangs.execute("select 1")
