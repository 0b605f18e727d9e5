"""When all tables fail, it is the target: it is waited for, and all of it heals by itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

import pytest

from penstock.errors import DataError, PenstockError, TargetError
from penstock.replicate import circuit, flushing
from penstock.replicate.agent import Agent
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.stand import ITEMS, Stand, stage_here
from tests.replication.test_target_down import goes_on, told
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

Make = Callable[..., Stand]
WORDS = ("create table words (id bigint primary key, word text)",)


class Clerk(PostgresHarness):
    """A target whose user has no rights but those that were given."""

    def __init__(self, owner: PostgresHarness) -> None:
        role = f"clerk_{uuid.uuid4().hex[:8]}"  # a role is of the whole server, which other tests use too
        [(database,)] = owner.query("select current_database()")
        owner.execute(f"create role {role}", f'grant create on database "{database}" to {role}')
        super().__init__(f"{owner.dsn}?options=-crole%3D{role}")
        self._owner = owner
        self._role = role
        self.may_create()

    def may_create(self) -> None:
        self._owner.execute(f"grant usage, create on schema public to {self._role}")

    def may_not_create(self) -> None:
        self._owner.execute(f"revoke create on schema public from public, {self._role}")

    def may_write(self, schema: str = "public") -> None:
        self._owner.execute(f"grant insert, update, delete on all tables in schema {schema} to {self._role}")

    def may_not_write(self, schema: str = "public") -> None:
        self._owner.execute(f"revoke insert, update, delete on all tables in schema {schema} from {self._role}")


@pytest.fixture
def clerk(harness: Callable[[str], Harness], monkeypatch: pytest.MonkeyPatch) -> Clerk:
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (0.1, 0.5))
    # A table's own time never comes: who tries it again is the target's circuit.
    monkeypatch.setattr(flushing, "RETRY_SECONDS", (600.0, 600.0))
    target = harness("postgres")
    assert isinstance(target, PostgresHarness)
    return Clerk(target)


def into(clerk: Clerk, stand: Stand) -> Stand:
    stand.target = clerk
    return stand


def refused(stand: Stand, times: int = 1) -> bool:
    return bool(told(stand)["circuits"]["target"]["attempts"] >= times)


def healed(stand: Stand, *tables: str) -> None:
    stand.sync(settled=True)
    stand.assert_agrees(*tables)
    await_true(lambda: told(stand)["state"] == "running", 10, lambda: told(stand))
    assert told(stand)["circuits"]["target"]["state"] == "closed"
    assert told(stand)["error"] == ""


@pytest.mark.parametrize("tables", ["items", "items words"])
def test_a_target_that_takes_rows_of_no_table_is_waited_for(tables: str, clerk: Clerk, make: Make) -> None:
    stand = into(clerk, make("postgres", tables=[f"public.{name}" for name in tables.split()]))
    stand.source.execute(*ITEMS, *WORDS)
    stand.start()
    stand.sync()
    clerk.may_not_write()
    for number in range(3):
        stand.source.execute(
            f"update items set name = 'unseen {number}' where id % 3 = {number}",
            f"insert into words values ({number}, 'unseen')",
        )
    await_true(lambda: refused(stand, 3), 30, lambda: told(stand))
    assert told(stand)["state"] == "waiting for target"
    assert "every table has failed" in told(stand)["error"]
    assert "permission denied for table" in told(stand)["error"]
    goes_on(stand)
    stand.source.execute("delete from items where id > 400", "update words set word = 'late'")
    clerk.may_write()
    healed(stand, *tables.split())
    assert {table["attempts"] for table in told(stand)["tables"]} == {0}


def test_a_restart_keeps_to_the_time_of_the_next_try(clerk: Clerk, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = into(clerk, make("postgres"))
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (10.0, 10.0))
    clerk.may_not_write()
    stand.source.execute("delete from items where id > 400")
    await_true(lambda: refused(stand), 30, lambda: told(stand))
    before = told(stand)["circuits"]["target"]
    stand.stop()
    assert told(stand)["state"] == "stopped"
    clerk.may_write()
    stand.start()
    await_true(lambda: told(stand)["state"] == "waiting for target", 30, lambda: told(stand))
    goes_on(stand)
    assert told(stand)["circuits"]["target"] == before
    healed(stand, "items")
    assert datetime.now().astimezone() >= datetime.fromisoformat(before["retry_at"])


def test_a_target_that_takes_nothing_of_ours_either_is_waited_for(clerk: Clerk, make: Make) -> None:
    """Not even that a table has failed can be written there; nor can an agent that starts claim it."""
    stand = into(clerk, make("postgres"))
    stand.source.execute(*ITEMS, *WORDS)
    stand.start()
    stand.sync()
    clerk.may_not_write("_penstock")
    stand.source.execute("delete from items where id > 400")
    await_true(lambda: refused(stand, 2), 30, lambda: told(stand))
    stand.stop()
    stand.start()
    await_true(lambda: refused(stand, 4), 30, lambda: told(stand))
    assert told(stand)["state"] == "waiting for target"
    clerk.may_write("_penstock")
    healed(stand, "items", "words")


def test_tables_whose_copies_are_all_refused_are_copied_once_they_may(clerk: Clerk, make: Make) -> None:
    stand = into(clerk, make("postgres"))
    stand.source.execute(*ITEMS, *WORDS)
    clerk.may_not_create()
    stand.start()
    await_true(lambda: stand.seen is not None and refused(stand, 3), 30, lambda: (stand.seen, stand.error))
    assert told(stand)["state"] == "waiting for target"
    clerk.may_create()
    healed(stand, "items", "words")


def test_one_table_with_a_value_that_does_not_fit_is_copied_again_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = make("sqlite")
    stand.source.execute("create table odd (id int primary key, a double precision)", "insert into odd values (1, 1)")
    stand.start()
    stand.sync()
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (600.0, 600.0))
    stand.source.execute("update odd set a = 'NaN'")
    await_true(lambda: refused(stand), 30, lambda: told(stand))
    assert told(stand)["state"] == "waiting for target"
    stand.source.execute("update odd set a = 3")
    stand.resync("odd")
    healed(stand, "odd")


# ---------------------------------------------------------------- nobody waits


def ended(stand: Stand) -> BaseException | None:
    await_true(lambda: stand.error is not None, 30, lambda: told(stand))
    error, stand.error = stand.error, None
    assert told(stand)["state"] == "failed"
    return error


def test_one_that_runs_until_it_has_caught_up_ends_with_the_error(clerk: Clerk, make: Make) -> None:
    stand = into(clerk, make("postgres"))
    stand.source.execute(*ITEMS, *WORDS)
    stand.start()
    stand.sync()
    clerk.may_not_write()
    stand.source.execute("delete from items", "insert into words values (1, 'unseen')")
    await_true(lambda: refused(stand), 30, lambda: told(stand))
    stand.stop()
    for _ in range(2):  # tables that have failed before are tried
        with pytest.raises(TargetError, match="permission denied"):
            Agent(stand.project(), stand.replication, stage=stage_here).run(until_caught_up=True)
    clerk.may_write()
    Agent(stand.project(), stand.replication, stage=stage_here).run(until_caught_up=True)
    stand.assert_agrees("items", "words")


def test_one_that_only_copies_ends_with_the_error(clerk: Clerk, make: Make) -> None:
    stand = into(clerk, make("postgres", what="copy"))
    stand.source.execute(*ITEMS, *WORDS)
    clerk.may_not_create()
    stand.start()
    assert isinstance(ended(stand), PenstockError)


def test_one_that_is_to_halt_ends_with_the_error(clerk: Clerk, make: Make) -> None:
    stand = into(clerk, make("postgres", on_table_error="halt"))
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    clerk.may_not_write()
    stand.source.execute("delete from items")
    assert isinstance(ended(stand), TargetError)


def test_of_a_value_it_is_the_error_of_the_value(make: Make) -> None:
    stand = make("sqlite")
    stand.source.execute(
        "create table odd (id int primary key, a double precision)", "insert into odd values (1, 'NaN')"
    )
    with pytest.raises(DataError):
        Agent(stand.project(), stand.replication, stage=stage_here).run(until_caught_up=True)
