"""A log that cannot be read on is told apart, never taken for a quiet source; and healed where that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.replicate.health import Obstructed
from penstock.replicate.resync import mark_for_copy
from penstock.replicate.tables import ends_of
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import PostgresHarness
from tests.replication.conftest import drop_slot
from tests.replication.servers import Servers, promote, replayed
from tests.replication.stand import ITEMS, Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]


def streaming(stand: Stand) -> Stand:
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    return stand


def assert_ends_as(stand: Stand, state: str, why: str) -> None:
    """It ends with this state, a reason and a remedy, and was never called running after it was found."""
    await_true(lambda: stand.error is not None, 60, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, Obstructed), error
    assert error.state == state
    assert why in error.why
    assert error.remedy
    assert stand.seen is not None
    assert stand.seen["state"] == state
    assert why in stand.seen["error"]
    assert stand.seen["remedy"]
    stand.stop()


def with_a_lost_slot(make: Make, servers: Servers, target: str, **options: str) -> Stand:
    """Its server has thrown the log away while nobody read it."""
    server = servers.start(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB")
    stand = streaming(make(target, PostgresHarness(server.dsn), **options))
    stand.stop()
    for _ in range(4):
        stand.source.execute("update items set name = name || '.'", "select pg_switch_wal()")
    stand.source.execute("delete from items where id % 3 = 0", "checkpoint")
    [(status,)] = stand.source.query("select wal_status from pg_replication_slots")
    assert status == "lost"
    return stand


def test_a_slot_that_the_server_gave_up(make: Make, servers: Servers) -> None:
    stand = with_a_lost_slot(make, servers, "sqlite")
    before = stand.replicated("items")
    stand.start()
    assert_ends_as(stand, "slot lost", "thrown away the log")
    assert stand.replicated("items") == before


@pytest.mark.parametrize("target", ["postgres", "duckdb", "sqlite"])
def test_a_slot_that_the_server_gave_up_is_made_anew(make: Make, servers: Servers, target: str) -> None:
    stand = with_a_lost_slot(make, servers, target, on_slot_loss="recopy")
    stand.start()
    stand.sync()
    stand.assert_agrees("items")
    stand.source.execute("update items set name = 'after' where id < 10", "delete from items where id > 490")
    stand.sync()
    stand.assert_agrees("items")
    stand.stop()
    stand.source.execute("insert into items values (1000, 'while it was away')")
    stand.start()
    stand.sync()
    stand.assert_agrees("items")


def test_a_slot_that_is_dropped_while_it_runs(make: Make) -> None:
    stand = streaming(make("duckdb"))
    drop_slot(stand.source, stand.replication.slot_name)
    assert_ends_as(stand, "slot lost", "has no slot")


@pytest.mark.parametrize("target", ["postgres", "duckdb", "sqlite"])
def test_a_slot_that_is_dropped_while_it_runs_is_made_anew(make: Make, target: str) -> None:
    stand = streaming(make(target, on_slot_loss="recopy"))
    drop_slot(stand.source, stand.replication.slot_name)
    # Rows that no log has told of any more: only a copy brings them, and takes the others away.
    stand.source.execute("delete from items where id <= 100", "update items set name = 'x' where id > 400")
    await_true(lambda: stand.source.query("select 1 from pg_replication_slots where not temporary") != [], 60)
    stand.sync()
    stand.assert_agrees("items")


def test_a_slot_that_somebody_else_has_read(make: Make) -> None:
    stand = streaming(make("sqlite"))
    stand.stop()
    slot = stand.replication.slot_name
    stand.source.execute(
        "update items set name = 'lost'",
        f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
    )
    stand.start()
    assert_ends_as(stand, "gap", "what lies between is nowhere")


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_publication_that_was_dropped(make: Make, running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)
    stand = streaming(make("sqlite"))
    if not running:
        stand.stop()
    stand.source.execute(f"drop publication {stand.replication.publication_name}", "update items set name = 'unsent'")
    if not running:
        stand.start()
    assert_ends_as(stand, "publication lost", "was dropped")


def test_a_target_that_is_older_than_the_buffer(make: Make) -> None:
    stand = streaming(make("sqlite"))
    stand.stop()
    older = stand.target.path.read_bytes()  # type: ignore[attr-defined]  # of SQLite
    for number in range(3):
        stand.start()
        stand.source.execute(f"update items set name = 'round {number}'")
        stand.sync()
        stand.stop()
    folder = stand.root / ".penstock" / "buffer" / stand.replication.name
    for segment in sorted(folder.glob("*.segment"))[:-1]:
        segment.unlink()
    stand.target.path.write_bytes(older)  # type: ignore[attr-defined]  # as above
    stand.start()
    assert_ends_as(stand, "gap", "older than all that the buffer keeps")


# ---------------------------------------------------------------- another life of the server


def moved(stand: Stand, server: EmbeddedPostgres) -> None:
    """The connection leads there now."""
    stand.source.dsn = server.dsn


def test_a_promoted_standby_without_the_slot(make: Make, servers: Servers) -> None:
    primary = servers.start()
    standby = servers.standby(primary)
    stand = streaming(make("sqlite", PostgresHarness(primary.dsn)))
    stand.stop()
    replayed(standby, primary)
    primary.stop()
    promote(standby)
    moved(stand, standby)
    stand.start()
    assert_ends_as(stand, "slot lost", "has no slot")


def test_a_promoted_standby_that_lacks_what_was_captured(make: Make, servers: Servers) -> None:
    primary = servers.start()
    standby = servers.standby(primary)
    stand = streaming(make("sqlite", PostgresHarness(primary.dsn)))
    replayed(standby, primary)
    standby.stop()
    stand.source.execute("update items set name = 'only on the old primary'")
    stand.sync()
    stand.stop()
    primary.stop()
    standby.start()
    promote(standby)
    moved(stand, standby)
    stand.start()
    assert_ends_as(stand, "diverged", "the new primary does not have all of it")
    # Copied again, the target is what the new primary is.
    stand.replication = stand.replication.model_copy(update={"on_slot_loss": "recopy"})
    stand.start()
    stand.sync()
    stand.assert_agrees("items")
    stand.source.execute("update items set name = 'on the new one' where id < 5")
    stand.sync()
    stand.assert_agrees("items")


def test_another_server_is_never_copied_by_itself(make: Make, servers: Servers) -> None:
    stand = streaming(make("sqlite", on_slot_loss="recopy"))
    stand.stop()
    drop_slot(stand.source, stand.replication.slot_name)
    other = servers.start()
    moved(stand, other)
    stand.source.execute(*ITEMS)
    stand.start()
    assert_ends_as(stand, "diverged", "another server")


def test_a_gap_is_healed_by_a_resync_of_what_does_not_run(make: Make) -> None:
    stand = streaming(make("duckdb"))
    stand.stop()
    drop_slot(stand.source, stand.replication.slot_name)
    stand.source.execute("delete from items where id <= 100")
    stand.start()
    assert_ends_as(stand, "slot lost", "has no slot")
    assert mark_for_copy(stand.project(), stand.replication) == 1
    stand.start()
    stand.sync()
    stand.assert_agrees("items")


# ---------------------------------------------------------------- an idle database of a busy server


def test_the_slot_of_an_idle_database_moves_on(make: Make, harness: Callable[[str], PostgresHarness]) -> None:
    """Others write; this database does not; and the server need not keep what they wrote for us."""
    stand = streaming(make("sqlite"))
    busy = harness("postgres")
    busy.execute("create table noise (t text)")
    busy.execute("insert into noise select repeat('x', 1000) from generate_series(1, 20000)")
    [(end,)] = busy.query("select pg_current_wal_insert_lsn()::text")
    slot = stand.replication.slot_name
    behind = f"select confirmed_flush_lsn < '{end}' from pg_replication_slots where slot_name = '{slot}'"
    assert stand.source.query(behind) == [(True,)]
    await_true(lambda: stand.source.query(behind) == [(False,)], 90)
    # And what was confirmed is kept: the next start finds no gap.
    stand.stop()
    stand.start()
    stand.source.execute("update items set name = 'awake'")
    stand.sync()
    stand.assert_agrees("items")


def test_a_heartbeat_is_written_only_where_others_have_written(make: Make) -> None:
    stand = streaming(make("sqlite"))
    stand.stop()
    source = ends_of(stand.project(), stand.replication).change_source(stand.replication, [])
    try:
        [(end,)] = stand.source.query("select (pg_current_wal_insert_lsn() - '0/0')::int8")
        assert not source.beat(end)
        stand.source.execute("create table noise as select repeat('x', 1000) as t from generate_series(1, 3000)")
        await_true(lambda: source.beat(end))  # the log is written a little later
    finally:
        source.close()
