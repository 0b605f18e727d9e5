"""What the source keeps of its log for a slot is told while there is time to do something, not once it is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.pq import ExecStatus, PGconn

from penstock.replicate.patience import FULL
from penstock.state import open_store
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.desk import NAME, Desk
from tests.replication.servers import Servers
from tests.replication.stand import ITEMS, Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

Make = Callable[..., Stand]


def held(stand: Stand) -> dict[str, Any]:
    """As `penstock replications show` has it."""
    with open_store(stand.store) as store:
        known = store.agent(stand.replication.name)
    found: dict[str, Any] = (known.status["held"] if known is not None else None) or {}
    return found


@pytest.fixture
def stopped(make: Make, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stand]:
    """A replication whose capture waits for room in its buffer, and so holds the log of its server."""
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)

    def made(**settings: str) -> Stand:
        server = servers.start(**settings)
        buffer = {"segment_ms": 5, "max_bytes": "200kB"}
        stand = make("sqlite", PostgresHarness(server.dsn), buffer=buffer)
        stand.source.execute(*ITEMS)
        stand.start()
        stand.sync()
        await_true(lambda: held(stand).get("state") == "reserved", 30, lambda: held(stand))
        assert held(stand)["warning"] == ""
        stand.ask("pause")
        for number in range(2, 10):
            stand.source.execute(
                f"insert into items select i, md5(i::text) || md5((-i)::text)"
                f" from generate_series({number}000, {number}999) i"
            )
        await_true(lambda: stand.seen is not None and stand.seen["waiting"].startswith(FULL), 30, lambda: stand.seen)
        return stand

    return made


def write_until(stand: Stand, done: Callable[[dict[str, Any]], bool]) -> None:
    """Segments of the server's log, one after the other, each looked at before the next is begun."""
    for _ in range(16):
        [(status, kept)] = stand.source.query(
            "select wal_status, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 from pg_replication_slots"
        )
        assert status != "lost"
        await_true(lambda kept=kept: held(stand)["bytes"] >= kept, 30, lambda: held(stand))
        if done(held(stand)):
            return
        stand.source.execute("update items set name = name || '.' where id < 10", "select pg_switch_wal()")
    raise AssertionError(held(stand))


def test_that_a_slot_will_be_lost_is_told_before(
    stopped: Callable[..., Stand], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    stand = stopped(max_slot_wal_keep_size="128MB", max_wal_size="1GB")
    write_until(stand, lambda known: known["warning"] != "")
    near = held(stand)
    assert near["state"] == "reserved"
    assert 0 < near["left_bytes"] <= 32 * 1024 * 1024
    assert near["bytes"] > 64 * 1024 * 1024
    assert all(word in near["warning"] for word in ("max_slot_wal_keep_size (128MB)", stand.replication.slot_name))
    assert "raise max_slot_wal_keep_size" in near["remedy"]
    write_until(stand, lambda known: known["state"] == "unreserved")
    assert "the next checkpoint may throw away" in held(stand)["warning"]
    warned = [record.getMessage() for record in caplog.records if "max_slot_wal_keep_size" in record.getMessage()]
    assert len(warned) == 2  # not at every look
    # It is not lost yet: once the capture goes on, nothing is missing.
    stand.ask("resume")
    stand.sync()
    stand.assert_agrees("items")

    def let_go() -> bool:
        # What the server writes every quarter of a minute: it keeps its log from there on.
        stand.source.execute("select pg_log_standby_snapshot()", "delete from items where id = 1")
        return held(stand)["warning"] == ""

    await_true(let_go, 30, lambda: held(stand))
    assert held(stand)["state"] == "reserved"


@pytest.mark.parametrize(("limit", "told"), [("1GB", "thrown away at"), ("-1", "may fill the disk of the source")])
def test_that_more_is_held_than_the_server_is_made_for_is_told(
    limit: str, told: str, stopped: Callable[..., Stand]
) -> None:
    stand = stopped(max_slot_wal_keep_size=limit, max_wal_size="32MB", min_wal_size="32MB")
    write_until(stand, lambda known: known["state"] == "extended")
    assert told in held(stand)["warning"]
    assert "max_wal_size (32MB)" in held(stand)["warning"]
    assert (held(stand)["left_bytes"] is None) == (limit == "-1")


def test_prepare_advises_to_carry_the_slot_over_to_a_standby(
    harness: Callable[[str], Harness], servers: Servers, tmp_path: Path
) -> None:
    server = servers.start()
    source = PostgresHarness(server.dsn)
    source.execute(*ITEMS)
    desk = Desk(source, harness("sqlite"), tmp_path)
    advised = f"the slot {desk.slot} is not carried over to the standbys"
    assert advised not in " ".join(desk.run("replications", "prepare", NAME).err.split())
    conninfo = f"host=127.0.0.1 port={server.port} user={server.user} dbname=postgres"
    source.query("select pg_create_physical_replication_slot('standby_1')")
    standby = servers.standby(
        server,
        primary_slot_name="standby_1",
        sync_replication_slots="on",
        primary_conninfo=f"{conninfo} password={server.password}",
    )
    answer = desk.run("replications", "prepare", NAME)
    said = " ".join(answer.err.split())
    assert answer.code == 0
    assert advised in said
    desk.start()
    desk.await_streaming("items")
    desk.stop()
    # What it advises, word for word.
    [statement] = [part for part in said.split(": ") if part.startswith("ALTER_REPLICATION_SLOT")][:1]
    with_link(server.dsn, statement.partition(";")[0])
    assert advised not in " ".join(desk.run("replications", "prepare", NAME).err.split())
    desk.start()
    source.execute("delete from items where id > 10")
    desk.await_target("select count(*) from items", [(10,)])
    there = PostgresHarness(standby.dsn)

    def carried_over() -> bool:
        source.execute("update items set name = name || '.' where id = 1", "checkpoint")
        return there.query("select 1 from pg_replication_slots where synced and not temporary") == [(1,)]

    await_true(carried_over, 60, lambda: there.query("select * from pg_replication_slots"))
    desk.stop()


def with_link(dsn: str, command: str) -> None:
    """In a session that takes commands of replication."""
    link = PGconn.connect(f"{dsn}{'&' if '?' in dsn else '?'}replication=database".encode())
    try:
        assert link.exec_(command.encode()).status == ExecStatus.COMMAND_OK, link.get_error_message()
    finally:
        link.finish()
