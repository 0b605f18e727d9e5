"""A slot waits for everybody who writes: not for ever, and it says for whom."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock.backends.change_source import LogNames, TableRequest
from penstock.backends.postgres import replication
from penstock.backends.postgres.change_source import PostgresChangeSource
from penstock.backends.postgres.config import PostgresConfig
from penstock.cli.views.replications import retries
from penstock.errors import Kind, LinkLost
from penstock.replicate import circuit
from penstock.schema import TableName
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.stand import ITEMS, Stand
from tests.replication.test_target_down import told
from tests.waiting import await_true

pytestmark = pytest.mark.postgres


def test_whoever_a_slot_waits_for_is_named(harness: Callable[[str], Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    source, elsewhere = harness("postgres"), harness("postgres")
    assert isinstance(source, PostgresHarness)
    assert isinstance(elsewhere, PostgresHarness)
    elsewhere.execute("create table t (v int)")
    monkeypatch.setattr(replication, "SLOT_SECONDS", 1.0)
    slot = f"penstock_{uuid.uuid4().hex[:12]}"
    made = PostgresChangeSource(
        PostgresConfig.model_validate({"name": "from_", "type": "postgres", "dsn": source.dsn}),
        LogNames(slot, slot, own=False),
        [],
    )
    gid = f"stuck-{slot}"
    with (
        psycopg.connect(elsewhere.dsn, autocommit=True) as prepared,
        psycopg.connect(elsewhere.dsn, application_name="nightly load") as writer,
    ):
        prepared.execute("begin")
        prepared.execute("insert into t values (1)")
        prepared.execute(f"prepare transaction '{gid}'".encode())
        try:
            writer.execute("insert into t values (2)")
            with pytest.raises(LinkLost, match="no slot could be made within 1 s") as caught:
                made.begin()
            assert f"pid {writer.info.backend_pid} (database" in caught.value.why
            assert "application nightly load" in caught.value.why
            assert f"prepared transaction '{gid}'" in caught.value.why
            assert not source.query(f"select 1 from pg_replication_slots where slot_name = '{slot}'")
        finally:
            prepared.execute(f"rollback prepared '{gid}'".encode())
    made.begin().close()  # they have ended
    made.remove()
    made.close()


def test_who_publishes_does_not_stand_in_line_for_ever(harness: Callable[[str], Harness]) -> None:
    """Behind an application's ALTER: whoever wants the table next would wait behind us."""
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    source.execute("create table t (id int primary key)")
    slot = f"penstock_{uuid.uuid4().hex[:12]}"
    config = {"name": "from_", "type": "postgres", "dsn": source.dsn, "lock_timeout": "300ms"}
    requests = [TableRequest(TableName("public", "t"))]
    made = PostgresChangeSource(PostgresConfig.model_validate(config), LogNames(slot, slot), requests)
    with psycopg.connect(source.dsn) as altering:
        altering.execute("alter table t add column v int")
        with pytest.raises(LinkLost, match="a lock was not to be had in time") as caught:
            made.begin()
        assert caught.value.kind is Kind.TRANSIENT
        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name like '%" + slot
        assert source.query(waiting + "%'") == []
    assert source.query(f"select 1 from pg_replication_slots where slot_name = '{slot}'") == []
    made.begin().close()
    made.remove()
    made.close()


def test_how_often_copies_were_tried_and_when_they_are_next_survives_a_restart(
    make: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy waits for whoever writes; what streams does not."""
    monkeypatch.setattr(replication, "SLOT_SECONDS", 0.5)
    monkeypatch.setattr(circuit, "AGAIN_SECONDS", (600.0, 600.0))
    stand = make("sqlite")
    stand.source.execute(*ITEMS, "create table words (id bigint primary key)")
    stand.start()
    stand.sync()

    def copies() -> dict[str, Any]:
        found: dict[str, Any] = told(stand)["circuits"]["copies"]
        return found

    with psycopg.connect(stand.source.dsn) as writer:
        writer.execute("delete from items where id > 400")
        stand.resync("items")
        await_true(lambda: copies()["attempts"] == 1, 30, lambda: told(stand))
        before = copies()
        assert "no slot could be made within" in told(stand)["error"]
        assert told(stand)["state"] == "running"
        [line] = retries(told(stand))
        assert line.startswith("copies failed once, circuit open, tried again")
        stand.source.execute("insert into words values (1)")
        await_true(lambda: stand.target.query("select id from words") == [(1,)], 5, lambda: told(stand))
        stand.stop()
        stand.start()
        await_true(lambda: stand.seen is not None, 30, lambda: stand.error)
        assert copies() == before
    stand.resync("items")  # somebody who asks does not wait for the rest of the time
    stand.sync()
    stand.assert_agrees("items", "words")
    await_true(lambda: copies()["state"] == "closed", 10, lambda: told(stand))
    assert told(stand)["error"] == ""
