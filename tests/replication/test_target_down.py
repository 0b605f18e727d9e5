"""A target that is down: while its replication streams, and when its agent starts. Capture goes on all the while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from penstock.errors import LinkLost
from penstock.replicate import circuit
from penstock.state import open_store
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import Harness
from tests.faults.test_replication_kills import TABLES, Workload
from tests.replication.links import Linked, Links
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

TEN_MINUTES = 600.0
REPLICATED = ("accounts", "transfers", "bag", "toasted")


@pytest.fixture
def links(postgres_server: EmbeddedPostgres) -> Iterator[Links]:
    with Links(postgres_server.port) as made:
        yield made


@pytest.fixture
def stand(make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links) -> Stand:
    made = make("postgres")
    made.target = Linked(harness("postgres").dsn, links)  # type: ignore[attr-defined]  # of Postgres
    made.source.execute(*TABLES)
    return made


def confirmed(stand: Stand) -> int:
    slot = stand.replication.slot_name
    [(place,)] = stand.source.query(
        f"select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots where slot_name = '{slot}'"
    )
    return int(place)


def told(stand: Stand) -> dict[str, Any]:
    """As another process sees it."""
    with open_store(stand.root / f"{stand.replication.name}.db") as store:
        known = store.agent(stand.replication.name)
    assert known is not None
    return {"state": known.state, **known.status}


def goes_on(stand: Stand) -> None:
    """What is committed now is captured and confirmed, whatever the target does."""
    [(mark,)] = stand.source.query("select (pg_logical_emit_message(true, 'test', '') - '0/0')::int8")
    await_true(lambda: confirmed(stand) >= mark, 30, lambda: told(stand))


@pytest.mark.timeout(900)
def test_while_it_is_down_changes_are_captured_and_then_it_catches_up(
    stand: Stand, links: Links, request: pytest.FixtureRequest
) -> None:
    stand.start()
    stand.sync()
    links.trouble("cut")
    until = time.monotonic() + (TEN_MINUTES if request.config.getoption("full") else 0)
    work = Workload(stand.source.dsn)
    work.start()
    try:
        await_true(lambda: told(stand)["circuits"]["target"]["attempts"] > 1, 30, lambda: told(stand))
        assert told(stand)["state"] == "waiting for target"
        goes_on(stand)
        await_true(lambda: time.monotonic() > until, TEN_MINUTES + 10)
        goes_on(stand)
    finally:
        work.stop()
    links.heal()
    stand.sync(seconds=120)
    stand.assert_agrees(*REPLICATED)
    await_true(lambda: told(stand)["circuits"]["target"]["state"] == "closed")
    assert told(stand)["state"] == "running"
    assert told(stand)["error"] == ""


def test_down_when_the_agent_starts_it_is_waited_for_and_changes_are_captured(stand: Stand, links: Links) -> None:
    stand.start()
    stand.sync()
    stand.stop()
    links.trouble("cut")
    stand.start()
    stand.source.execute("insert into transfers (src, dst, amount) values (1, 2, 3)")
    await_true(lambda: told(stand)["state"] == "waiting for target", 30, lambda: (told(stand), stand.error))
    goes_on(stand)
    assert {table["phase"] for table in told(stand)["tables"]} == {"streaming"}  # as they were
    links.heal()
    stand.sync()
    stand.assert_agrees(*REPLICATED)


def test_stopped_while_it_waits_it_ends_at_once(stand: Stand, links: Links) -> None:
    stand.start()
    stand.sync()
    stand.stop()
    links.trouble("cut")
    stand.start()
    await_true(lambda: told(stand)["state"] == "waiting for target", 30, lambda: (told(stand), stand.error))
    stand.stop()
    assert told(stand)["state"] == "stopped"


def test_never_reached_before_it_is_an_error_at_once(stand: Stand, links: Links) -> None:
    links.trouble("cut")
    stand.start()
    await_true(lambda: stand.error is not None)
    error, stand.error = stand.error, None
    assert isinstance(error, LinkLost)


def test_an_agent_that_starts_while_the_circuit_is_open_waits_for_the_rest(
    stand: Stand, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.start()
    stand.sync()
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (6.0, 6.0))
    links.trouble("cut")
    stand.source.execute("insert into transfers (src, dst, amount) values (1, 2, 3)")
    await_true(lambda: told(stand)["circuits"]["target"]["attempts"] == 1, 30, lambda: told(stand))
    at = datetime.fromisoformat(told(stand)["circuits"]["target"]["retry_at"])
    stand.stop()
    links.trouble("cut")  # counts from here
    stand.start()
    await_true(lambda: told(stand)["state"] == "waiting for target", 30, lambda: told(stand))
    assert datetime.fromisoformat(told(stand)["circuits"]["target"]["retry_at"]) == at
    assert told(stand)["circuits"]["target"]["attempts"] == 1
    assert links.tried == 0
    await_true(lambda: told(stand)["circuits"]["target"]["attempts"] == 2, 30, lambda: told(stand))
    assert datetime.now(at.tzinfo) >= at
    links.heal()
    stand.sync()
    stand.assert_agrees("transfers")


def test_a_source_that_is_down_when_the_agent_starts_is_waited_for(
    make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links
) -> None:
    stand = make("duckdb", source=Linked(harness("postgres").dsn, links))  # type: ignore[attr-defined]  # of Postgres
    stand.source.execute("create table t (id int primary key)", "insert into t values (1)")
    stand.start()
    stand.sync()
    stand.stop()
    links.trouble("cut")
    stand.start()
    await_true(lambda: told(stand)["state"] == "waiting for source", 30, lambda: (told(stand), stand.error))
    assert told(stand)["circuits"]["source"]["attempts"] > 0
    stand.source.execute("insert into t values (2)")
    links.heal()
    stand.sync()
    stand.assert_agrees("t")
