"""Every state store keeps the same promises: memory, SQLite, Postgres."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from penstock.errors import DataError, StateError
from penstock.observe.process import start_of
from penstock.state import AgentRecord, Command, Event, RunRecord, Store, medium_at, open_store
from penstock.state.medium import Medium, Transaction
from penstock.state.migrations import MIGRATIONS
from penstock.state.sql import SqlStore
from penstock.testing.postgres import EmbeddedPostgres

EARLY = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
Opener = Callable[[], Store]


@pytest.fixture(scope="module")
def state_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def postgres_url(state_server: EmbeddedPostgres) -> str:
    """A database of the test's own."""
    import psycopg

    name = f"state_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(state_server.dsn, autocommit=True) as connection:
        connection.execute(f'create database "{name}"'.encode())
    return state_server.dsn_of(name)


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    if request.param == "sqlite":
        return tmp_path / "new folder" / "state.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where: str | Path = "memory:"
    if request.param == "sqlite":
        where = tmp_path / "state.db"
    elif request.param == "postgres":
        where = request.getfixturevalue("postgres_url")
    with open_store(where) as opened:
        yield opened


def _run(pipeline: str = "customers", **fields: object) -> RunRecord:
    record = RunRecord(uuid.uuid4().hex, pipeline)
    return replace(record, **fields)  # type: ignore[arg-type]  # fields of a table of cases


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    record = _run(
        started_at=EARLY, mode="merge", source="shop.public.c", target='warehouse.main."C d"', path="fused", plan="{}"
    )
    store.start_run(record)
    assert store.run(record.run_id) == record
    assert store.run(record.run_id).started_at.tzinfo is UTC  # type: ignore[union-attr]  # it was started above


def test_an_unknown_run_is_none(store: Store) -> None:
    assert store.run("0" * 32) is None


def test_the_same_run_twice_is_an_error(store: Store) -> None:
    record = _run()
    store.start_run(record)
    with pytest.raises(StateError):
        store.start_run(record)


def test_a_finished_run_keeps_its_figures(store: Store) -> None:
    record = _run(mode="merge")
    store.start_run(record)
    finished = store.finish_run(
        record.run_id, "done", rows=2**40, inserted=3, updated=0, deleted=1, bytes=7, path="fused"
    )
    assert finished == store.run(record.run_id)
    assert (finished.state, finished.mode, finished.rows, finished.inserted) == ("done", "merge", 2**40, 3)
    assert finished.seconds is not None
    assert finished.seconds >= 0


def test_finishing_a_run_that_is_not_there(store: Store) -> None:
    with pytest.raises(StateError, match="no run"):
        store.finish_run("0" * 32, "done")


def test_errors_are_stored_without_keys(store: Store) -> None:
    record = _run()
    store.start_run(record)
    error = DataError("a value does not fit", why="numeric overflow", keys=("id=4711",), place="main.t")
    store.finish_run(record.run_id, "failed", error=error)
    kept = store.run(record.run_id)
    assert kept is not None
    assert kept.error is not None
    assert kept.error["error"] == "DataError"
    assert kept.error["why"] == "numeric overflow"
    assert "4711" not in json.dumps(dict(kept.error))
    other = _run(error=error.to_record(), state="failed")
    store.start_run(other)
    assert "keys" not in dict((store.run(other.run_id) or other).error or {"keys": 1})


def test_runs_are_listed_latest_first_with_filters_and_limit(store: Store) -> None:
    records = [
        _run(f"p{n % 2}", started_at=EARLY + timedelta(seconds=n), state="done" if n < 4 else "failed")
        for n in range(6)
    ]
    for record in (records[3], records[0], records[5], records[1], records[4], records[2]):
        store.start_run(record)
    assert store.runs() == records[::-1]
    assert store.runs(limit=2) == [records[5], records[4]]
    assert store.runs(pipeline="p1") == [records[5], records[3], records[1]]
    assert store.runs(state="failed") == [records[5], records[4]]
    assert store.runs(pipeline="p0", state="done", limit=1) == [records[2]]
    assert store.runs(pipeline="none") == []


def test_times_of_other_zones_sort_by_moment(store: Store) -> None:
    east = _run(started_at=EARLY.astimezone(timezone(timedelta(hours=9))))
    later = _run(started_at=EARLY + timedelta(microseconds=1))
    store.start_run(later)
    store.start_run(east)
    assert [record.run_id for record in store.runs()] == [later.run_id, east.run_id]


def test_events_come_in_order(store: Store) -> None:
    record = _run()
    store.start_run(record)
    events = [Event(record.run_id, name, {"attempt": n}, EARLY) for n, name in enumerate(["retry", "sweep", "retry"])]
    for event in events:
        store.add_event(event)
    store.add_event(Event("other", "retry"))
    assert store.events(record.run_id) == events
    assert store.events("none") == []


def _dead_process() -> tuple[int, str]:
    """The pid and start of a process that lived and is gone."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_of(process.pid)
    process.communicate(b"\n")
    assert started is not None
    assert start_of(process.pid) is None
    return process.pid, started


def test_dead_runs_are_interrupted_and_live_ones_are_not(store: Store) -> None:
    pid, process = _dead_process()
    dead = _run(pid=pid, process=process)
    alive = _run()
    reused = _run(pid=os.getpid(), process="another boot:1")
    elsewhere = _run(host="another.example", pid=pid, process=process)
    done = _run(pid=pid, process=process, state="done")
    for record in (dead, alive, reused, elsewhere, done):
        store.start_run(record)
    assert {record.run_id for record in store.interrupt_dead_runs()} == {dead.run_id, reused.run_id}
    states = {record.run_id: record.state for record in store.runs()}
    assert states == {
        dead.run_id: "interrupted",
        alive.run_id: "running",
        reused.run_id: "interrupted",
        elsewhere.run_id: "running",
        done.run_id: "done",
    }
    assert store.interrupt_dead_runs() == []


def test_a_zombie_is_no_live_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while start_of(process.pid) is not None:  # not waited for, so it stays a zombie
        assert time.monotonic() < deadline
    process.wait()


def test_a_run_knows_its_own_process() -> None:
    record = _run()
    assert (record.host, record.pid, record.process) == (socket.gethostname(), os.getpid(), start_of(os.getpid()))


# ---------------------------------------------------------------- agents, and what is asked of them


def test_an_agent_is_known_as_it_last_told(store: Store) -> None:
    assert store.agents() == []
    assert store.agent("shop") is None
    early = AgentRecord("shop", "running", {"lag_bytes": 2**40, "tables": [{"table": 'public."Öl"'}]}, EARLY)
    other = AgentRecord("bank", "stopped", at=EARLY.astimezone(timezone(timedelta(hours=-3))), host="h", pid=1)
    for record in (early, other):
        store.tell_agent(record)
    assert store.agents() == [other, early]
    assert store.agent("shop") == early
    later = replace(early, state="paused", status={}, at=EARLY + timedelta(seconds=1), pid=7, process="x")
    store.tell_agent(later)
    assert store.agents() == [other, later]
    assert store.agent("shop").at.tzinfo is UTC  # type: ignore[union-attr]  # it was told above


def test_an_agent_that_is_forgotten_was_never_there(store: Store) -> None:
    for name in ("shop", "bank"):
        store.tell_agent(AgentRecord(name, "stopped"))
    stop, other = store.ask("shop", "stop"), store.ask("bank", "stop")
    store.forget_agent("shop")
    assert [record.name for record in store.agents()] == ["bank"]
    # What was asked of it must not be heard by one that begins anew under its name.
    assert store.asked("shop") == []
    assert "was removed" in str(store.command(stop).answer)  # type: ignore[union-attr]  # it was asked above
    assert [command.id for command in store.asked("bank")] == [other]
    store.forget_agent("shop")


def test_an_agent_whose_process_is_gone_is_known_to_be(store: Store) -> None:
    pid, process = _dead_process()
    records = {
        "alive": AgentRecord("alive", "running"),
        "dead": AgentRecord("dead", "running", pid=pid, process=process),
        "elsewhere": AgentRecord("elsewhere", "running", host="another.example", pid=pid, process=process),
        "reused": AgentRecord("reused", "running", process="another boot:1"),
    }
    for record in records.values():
        store.tell_agent(record)
    assert {record.name: record.gone for record in store.agents()} == {
        "alive": False,
        "dead": True,
        "elsewhere": False,
        "reused": True,
    }


def test_commands_are_asked_in_order_until_they_are_answered(store: Store) -> None:
    first = store.ask("shop", "resync", 'public."a.b"')
    other = store.ask("bank", "pause")
    second = store.ask("shop", "reload")
    asked = [Command(first, "shop", "resync", 'public."a.b"'), Command(second, "shop", "reload")]
    assert store.asked("shop") == asked
    store.answer(first, "1 table will be copied again")
    assert store.asked("shop") == asked[1:]
    assert store.command(first) == replace(asked[0], answer="1 table will be copied again")
    assert store.command(second) == asked[1]
    assert store.asked("bank") == [Command(other, "bank", "pause")]
    assert store.asked("none") == []


def test_an_empty_answer_is_one(store: Store) -> None:
    number = store.ask("shop", "pause")
    store.answer(number, "")
    assert store.asked("shop") == []


def test_a_command_that_is_not_there(store: Store) -> None:
    assert store.command(4711) is None
    with pytest.raises(StateError, match="no command 4711"):
        store.answer(4711, "done")


# ---------------------------------------------------------------- what is stored outlives the process


def test_agents_and_commands_are_found_again(location: str | Path) -> None:
    with open_store(location) as store:
        store.tell_agent(AgentRecord("shop", "running", at=EARLY))
        number = store.ask("shop", "pause")
    with open_store(location) as store:
        assert [record.at for record in store.agents()] == [EARLY]
        assert store.asked("shop") == [Command(number, "shop", "pause")]


def test_a_store_of_version_one_gets_agents_and_keeps_its_runs(location: str | Path) -> None:
    record, event = _run(), Event("r", "retry", {"attempt": 1}, EARLY)
    with SqlStore(medium_at(location), MIGRATIONS[:1]) as old:
        assert old.version == 1
        old.start_run(record)
        old.add_event(event)
    with open_store(location) as store:
        assert store.version == len(MIGRATIONS)
        assert (store.runs(), store.events("r")) == ([record], [event])
        assert store.agents() == []
        store.tell_agent(AgentRecord("shop", "running"))
        store.answer(store.ask("shop", "pause"), "paused")
        assert store.asked("shop") == []


def test_several_ask_at_once_and_each_gets_its_own_answer(location: str | Path) -> None:
    def ask(number: int) -> tuple[int, str]:
        with open_store(location) as store:
            return store.ask("shop", "resync", f"public.t{number}"), f"public.t{number}"

    open_store(location).close()
    with ThreadPoolExecutor(8) as pool:
        asked = dict(pool.map(ask, range(24)))
    assert len(asked) == 24
    with open_store(location) as store:
        assert {command.id: command.table for command in store.asked("shop")} == asked


def test_a_store_is_found_again(location: str | Path) -> None:
    record = _run()
    with open_store(location) as store:
        store.start_run(record)
    with open_store(location) as store:
        assert store.runs() == [record]
        assert store.version == len(MIGRATIONS)


def test_a_newer_store_is_refused_and_left_alone(location: str | Path) -> None:
    def next_version(medium: Medium, transaction: Transaction) -> None:
        transaction.query("select 1")

    with SqlStore(medium_at(location), (*MIGRATIONS, next_version)) as newer:
        assert newer.version == len(MIGRATIONS) + 1
    with pytest.raises(StateError) as caught:
        open_store(location)
    assert caught.value.remedy == "upgrade penstock"
    with SqlStore(medium_at(location), (*MIGRATIONS, next_version)) as newer:
        assert newer.version == len(MIGRATIONS) + 1


def test_the_version_before_is_migrated_with_its_rows(location: str | Path) -> None:
    def next_version(medium: Medium, transaction: Transaction) -> None:
        transaction.execute(f"create table {medium.prefix}positions (name text primary key)")

    record = _run()
    with open_store(location) as store:
        store.start_run(record)
    with SqlStore(medium_at(location), (*MIGRATIONS, next_version)) as store:
        assert store.version == len(MIGRATIONS) + 1
        assert store.runs() == [record]


def test_a_migration_that_fails_leaves_the_version_before(location: str | Path) -> None:
    def broken(_: Medium, transaction: Transaction) -> None:
        transaction.execute("create table half_made (x text)")
        transaction.execute("select * from nowhere")

    open_store(location).close()
    with pytest.raises(StateError):
        SqlStore(medium_at(location), (*MIGRATIONS, broken))
    with open_store(location) as store:
        assert store.version == len(MIGRATIONS)
    with pytest.raises(StateError):  # half of it is not there either: it fails at the same place
        SqlStore(medium_at(location), (*MIGRATIONS, broken))


def test_many_open_and_write_at_once(location: str | Path) -> None:
    """The first use races to create the tables; later writers wait for their turn."""

    def work(_: int) -> None:
        with open_store(location) as store:
            for _ in range(5):
                record = _run()
                store.start_run(record)
                store.finish_run(record.run_id, "done", rows=1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    with open_store(location) as store:
        assert [record.state for record in store.runs(limit=None)] == ["done"] * 40


def test_a_hundred_thousand_runs_are_listed_at_once(location: str | Path) -> None:
    place = medium_at(location)
    with SqlStore(place) as opened:
        with place.transaction(writes=True) as transaction:
            pre = place.prefix
            numbers = (
                "select g as n from generate_series(1, 100000) g"
                if pre
                else "with recursive s(n) as (select 1 union all select n + 1 from s where n < 100000) select n from s"
            )
            moment = (
                "to_timestamp(1704067200 + n)"
                if pre
                else "strftime('%Y-%m-%dT%H:%M:%S.000000Z', 1704067200 + n, 'unixepoch')"
            )
            transaction.execute(
                f"insert into {pre}runs (run_id, pipeline, kind, state, started_at, host, pid, process)"
                " select 'r' || n, 'p' || (n % 100), 'batch',"
                " case when n % 1000 = 0 then 'failed' else 'done' end,"
                f" {moment}, 'h', 1, '' from ({numbers}) numbers"
            )
        for filters in ({}, {"pipeline": "p7"}, {"state": "failed"}, {"state": "running"}):
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                opened.runs(**filters)  # type: ignore[arg-type]  # fields of a table of cases
                seconds.append(time.perf_counter() - began)
            assert min(seconds) < 0.1, filters


# ---------------------------------------------------------------- stores that cannot be used


def test_a_corrupt_file_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(b"this is no database, but long enough to be read as one " * 100)
    with pytest.raises(StateError) as caught:
        open_store(file)
    assert str(file) in caught.value.what
    assert "move the file away" in caught.value.remedy


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError) as caught:
        open_store(tmp_path / "file" / "state.db")
    assert "writable" in caught.value.remedy


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be used"):
        open_store(tmp_path)


def test_sqlite_is_in_wal_mode_and_holds_no_file_open(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    with open_store(file) as store:
        store.start_run(_run())
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
        assert str(file) not in held
    connection = sqlite3.connect(file)
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    connection.close()


def _is_link(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:wrong-Pa55word@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=user&password=wrong-Pa55word",
        "postgresql://user@127.0.0.1:1/db?sslpassword=wrong-Pa55word&sslmode=prefer",
        "postgresql://user@127.0.0.1:1/db?nosuchoption=wrong-Pa55word",
        "postgresql://user:wrong-Pa55word@127.0.0.1:port/db",
        "mysql://user:wrong-Pa55word@127.0.0.1/db",
    ],
)
def test_the_secrets_of_a_url_are_never_shown(url: str) -> None:
    with pytest.raises(StateError) as caught:
        open_store(url)
    assert "wrong-Pa55word" not in f"{caught.value} {caught.value.remedy} {caught.value.to_record()}"


def test_the_password_that_a_server_refused_is_never_shown(state_server: EmbeddedPostgres) -> None:
    with pytest.raises(StateError) as caught:
        open_store(state_server.dsn.replace(state_server.password, "wrong-Pa55word"))
    assert "password authentication failed" in caught.value.why
    assert "wrong-Pa55word" not in f"{caught.value} {caught.value.remedy} {caught.value.to_record()}"
