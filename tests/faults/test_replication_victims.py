"""Others die than the agent: a session of it, a worker of its Spark. It goes on by itself, nothing lost or twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.observe.failpoints import ENV
from tests.conformance.conftest import harness
from tests.conformance.harness import Harness, PostgresHarness
from tests.faults.test_all_or_nothing import REPO
from tests.replication.conftest import drop_slot, make, servers
from tests.replication.desk import NAME, Desk
from tests.replication.servers import Servers
from tests.replication.stand import BAG, ITEMS, Stand
from tests.waiting import await_true

__all__ = ["harness", "make", "servers"]

pytestmark = [pytest.mark.postgres, pytest.mark.faults]

TABLES = (*ITEMS, *BAG, "insert into bag select 'old' from generate_series(1, 30)")
CHANGES = (
    "update items set name = upper(name) where id % 2 = 0",
    "insert into bag select 'new' from generate_series(1, 20)",
    "delete from bag where ctid = (select ctid from bag limit 1)",
)


class Pause:
    """Where a process stops, from when it is told to until it is let go."""

    def __init__(self, folder: Path, failpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed, self._held = folder / "passed", folder / "held"
        self._passed.touch()
        monkeypatch.setenv(ENV, f"{failpoint}=once:{self._passed}:pause:{self._held}")

    def hold(self) -> None:
        self._passed.unlink()

    def reached(self) -> None:
        await_true(self._held.exists)

    def let_go(self) -> None:
        self._held.unlink()


def end_sessions(server: PostgresHarness, where: str) -> int:
    """How many there were."""
    ended = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and"
    return len(server.query(f"{ended} starts_with(application_name, 'penstock:') and {where}"))


@pytest.mark.parametrize("failpoint", ["flush.fenced", "flush.loaded", "flush.committed"])
def test_the_session_of_a_flush_is_ended(
    failpoint: str, make: Callable[..., Stand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Pause(tmp_path, failpoint, monkeypatch)
    stand = make("postgres")
    assert isinstance(stand.target, PostgresHarness)
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    pause.hold()
    stand.source.execute(*CHANGES)
    pause.reached()
    assert end_sessions(stand.target, "application_name like '%:apply'") == 1
    pause.let_go()
    stand.source.execute(*CHANGES)
    stand.sync()
    stand.assert_agrees("items", "bag")


# Where a copy is, at which end somebody dies then, and who.
OF_COPIES = {
    "a range's read session": ("read.batch", "source", "application_name ~ ':[0-9a-f]{32}:read$'"),
    "the holder of the moment": ("read.batch", "source", "application_name ~ '^penstock:penstock_[^:]*:read$'"),
    "the link that has made the slot": ("copy.staged", "source", "backend_type = 'walsender'"),
    "a staging session": ("sink.staged", "target", "application_name ~ ':sink$'"),
    "those of the loads": ("copy.staged", "target", "application_name ~ '^penstock:[0-9a-f]{32}$'"),
    "the one in its commit": ("commit.loaded", "target", "state = 'idle in transaction'"),
    "that of the flushes": ("copy.loaded", "target", "application_name ~ ':apply$'"),
}


@pytest.mark.parametrize("victim", OF_COPIES)
def test_a_session_of_a_copy_is_ended(
    victim: str, make: Callable[..., Stand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failpoint, end, where = OF_COPIES[victim]
    monkeypatch.setattr("penstock.backends.postgres.change_source.RANGE_BYTES", 1 << 14)
    pause = Pause(tmp_path, failpoint, monkeypatch)
    stand = make("postgres")
    assert isinstance(stand.target, PostgresHarness)
    stand.source.execute(*TABLES)
    pause.hold()
    stand.start()
    pause.reached()
    stand.source.execute(*CHANGES)
    assert end_sessions(stand.source if end == "source" else stand.target, where) >= 1
    pause.let_go()
    stand.source.execute(*CHANGES)
    stand.sync(settled=True)
    stand.assert_agrees("items", "bag")
    stand.stop()
    assert stand.target.leftovers() == []


@pytest.mark.parametrize("failpoint", ["copy.staged", "commit.loaded", "flush.fenced", "flush.loaded"])
def test_the_target_crashes_between_stage_and_commit(
    failpoint: str, make: Callable[..., Stand], servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of what it was told is there afterwards, and some is not; which, the agent has to ask."""
    pause = Pause(tmp_path, failpoint, monkeypatch)
    stand = make("postgres")
    server = servers.start()
    stand.target = PostgresHarness(server.dsn)
    stand.source.execute(*TABLES)
    if failpoint.startswith("flush"):
        stand.start()
        stand.sync()
        pause.hold()
        stand.source.execute(*CHANGES)
    else:
        pause.hold()
        stand.start()
    pause.reached()
    server.restart(immediate=True)
    pause.let_go()
    stand.source.execute(*CHANGES)
    stand.sync(settled=True)
    stand.assert_agrees("items", "bag")
    stand.stop()
    assert stand.target.leftovers() == []


def test_the_servers_side_of_the_stream_is_ended(make: Callable[..., Stand]) -> None:
    stand = make("sqlite")
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    for _ in range(2):
        stand.source.execute(*CHANGES)
        await_true(lambda: end_sessions(stand.source, "backend_type = 'walsender'"))
        stand.source.execute(*CHANGES)
        stand.sync()
    stand.assert_agrees("items", "bag")


@pytest.mark.spark
def test_workers_of_a_copy_and_of_a_flush_are_killed(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    source.execute(*TABLES)
    desk = Desk(source, harness("sqlite"), tmp_path)
    desk.configure(apply_in_driver_rows=0)
    killed = {name: tmp_path / name for name in ("sink.receipt", "fold.written")}
    armed = ",".join(f"{name}=once:{path}:kill" for name, path in killed.items())
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "--project", str(tmp_path), "replicate", NAME],
        cwd=REPO,
        env=os.environ | {ENV: armed},
    )
    try:
        await_true(lambda: _streams(desk, process), 120, desk.tables)
        assert killed["sink.receipt"].exists()
        source.execute(*CHANGES)
        desk.await_target("select name from items where id = 500", [("ITEM 500",)])
        assert killed["fold.written"].exists()
        desk.await_target("select count(*) from bag", [(49,)])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        drop_slot(source, desk.slot)
    for shown in ("select id, name from items order by id", "select v, count(*) from bag group by v order by v"):
        assert desk.target.query(shown) == source.query(shown)


def _streams(desk: Desk, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    known = desk.tables()
    return bool(known) and all(table["phase"] == "streaming" for table in known.values())
