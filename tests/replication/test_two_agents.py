"""Two agents of one replication, or what is left of one: the later goes on, the other commits no more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import duckdb
import psutil
import pytest

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
