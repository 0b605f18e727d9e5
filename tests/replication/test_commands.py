"""`penstock replicate` and `penstock replications`: what they do to a running agent, and what they say."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import penstock as ps
from penstock.backends.change_target import Flush, TableState
from penstock.backends.postgres.apply import PostgresApplier
from penstock.backends.postgres.config import PostgresConfig
from penstock.errors import StateError
from penstock.project import load
from penstock.run.replicating import copying_by
from penstock.schema import TableName
from penstock.state import AgentRecord, open_store
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.desk import NAME, Desk
from tests.replication.stand import stage_here
from tests.unit.changelog_rows import position
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres]

SOON = 1.0  # from a command's question to its effect
COUNT = "select count(*) from items"


@pytest.fixture
def desk(harness: Callable[[str], Harness], tmp_path: Path) -> Iterator[Desk]:
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    source.execute(
        "create table items (id bigint primary key, name text)",
        "insert into items select i, 'item ' || i from generate_series(1, 100) i",
        "create table words (id bigint primary key, word text)",
        "insert into words select i, 'word ' || i from generate_series(1, 50) i",
    )
    made = Desk(source, harness("duckdb"), tmp_path)
    yield made
    try:
        made.stop()
    finally:
        made.clear()


@pytest.fixture
def running(desk: Desk) -> Desk:
    desk.start()
    desk.await_streaming("items", "words")
    return desk


# ---------------------------------------------------------------- looking


def test_list_and_show_before_the_first_start(desk: Desk) -> None:
    listed = desk.run("replications")
    assert listed.code == 0
    assert all(word in listed.out for word in (NAME, "from_", "to", "public.*", "never started"))
    [record] = json.loads(desk.run("replications", "list", "--output", "json").out)
    assert (record["name"], record["state"]) == (NAME, "never started")
    assert (record["lag_bytes"], record["lag_seconds"]) == (None, None)
    assert "never started" in desk.run("replications", "show", NAME).out


def test_list_and_show_of_a_running_agent(running: Desk) -> None:
    shown = running.show()
    assert shown["state"] == "running"
    assert [(table["table"], table["phase"], table["copied"]) for table in shown["status"]["tables"]] == [
        ("public.items", "streaming", 100),
        ("public.words", "streaming", 50),
    ]
    running.source.execute("update items set name = 'x' where id <= 7")
    running.await_target("select count(*) from items where name = 'x'", [(7,)])
    await_true(lambda: running.tables()["public.items"]["applied"] == 7)
    text = running.run("replications", "show", NAME).out
    assert all(len(line) <= 100 for line in text.splitlines())
    line = next(line for line in text.splitlines() if "public.items" in line)
    assert ("streaming" in line, "100" in line, "7" in line) == (True, True, True)
    assert "rows/s" not in text  # of one look
    assert re.search(r"the source holds [\d.]+ [KM]?i?B of log \(reserved\)", " ".join(text.split()))
    held = running.show()["status"]["held"]
    assert (held["state"], held["left_bytes"], held["warning"]) == ("reserved", None, "")
    assert "running" in running.run("replications", "list").out


def test_an_agent_that_was_stopped_or_died_does_not_run(running: Desk) -> None:
    running.stop()
    assert running.show()["state"] == "stopped"
    dead = subprocess.Popen(["true"])
    dead.wait()
    with open_store(running.folder / ".penstock" / "state.db") as store:
        store.tell_agent(AgentRecord(NAME, "running", store.agents()[0].status, pid=dead.pid, process="1"))
    assert running.show()["state"] == "stopped"


# ---------------------------------------------------------------- asking


def test_an_agent_acts_within_a_second_however_long_its_flushes_are_apart(desk: Desk) -> None:
    desk.configure(flush_interval_ms=5_000)
    desk.start()
    desk.await_streaming("items", "words", seconds=90)
    for word in ("pause", "resume", "reload", "resync"):
        taken = [desk.answered(word) for _ in range(3)]
        assert max(taken) < SOON, (word, taken)


def test_pause_and_resume_act_and_lose_nothing(running: Desk) -> None:
    answer = running.ask("pause")
    assert answer.out.strip() == f"{NAME}: paused"
    assert running.show()["state"] == "paused"
    running.source.execute("delete from items where id > 90", "update words set word = 'new'")
    mark = running.source.query("select pg_current_wal_lsn() - '0/0'")[0][0]
    # Captured all the while: the server need not keep it.
    confirmed = f"select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = '{running.slot}'"
    await_true(lambda: running.source.query(confirmed)[0][0] >= mark - 1000, 30)
    await_true(lambda: running.show()["lag_seconds"] > 1, 30)
    behind = running.show()
    assert behind["lag_bytes"] > 0
    assert behind["status"]["lag_seconds"] == behind["lag_seconds"]
    for words in (["replications"], ["replications", "show", NAME]):
        assert re.search(r"\d [KM]?i?B, \d+\.\d s", running.run(*words).out)
    assert running.read(COUNT) == [(100,)]
    assert running.ask("resume").out.strip() == f"{NAME}: resumed"
    running.await_target(COUNT, [(90,)], seconds=10)
    running.await_target("select distinct word from words", [("new",)], seconds=10)


def test_a_table_that_is_added_is_copied_alone_while_the_others_go_on(running: Desk) -> None:
    running.source.execute(
        "create table extras (id bigint primary key)", "insert into extras select generate_series(1, 30)"
    )
    with _Writer(running) as writer:
        answer = running.ask("reload")
        assert answer.out.strip() == f"{NAME}: 1 table added, 0 removed"
        running.await_streaming("items", "words", "extras")
    running.source.execute("insert into extras values (31)", "delete from extras where id <= 10")
    running.await_target("select count(*), max(id) from extras", [(21, 31)])
    running.await_target("select count(*) from items", [(100 + writer.count,)])
    known = running.tables()
    assert [known[f"public.{name}"]["copied"] for name in ("items", "words", "extras")] == [100, 50, 30]


def test_a_table_that_is_removed_is_let_go_and_keeps_its_rows(running: Desk) -> None:
    running.configure(tables=["public.*", "!public.words"])
    answer = running.ask("reload")
    assert "1 removed" in answer.out
    running.source.execute("insert into words values (99, 'unseen')", "insert into items values (1000, 'seen')")
    running.await_target("select name from items where id = 1000", [("seen",)])
    assert running.read("select count(*) from words") == [(50,)]
    await_true(lambda: set(running.tables()) == {"public.items"})
    # And back again: its rows are copied anew, with what was missed.
    running.configure()
    running.ask("reload")
    running.await_streaming("items", "words")
    running.await_target("select count(*), max(id) from words", [(51, 99)])


def test_a_reload_of_a_project_that_is_wrong_changes_nothing(running: Desk) -> None:
    running.configure(tables=["public.nowhere"])
    answer = running.run("replications", "reload", NAME)
    assert answer.code == 1
    assert "public.nowhere" in answer.err
    running.configure()
    running.source.execute("insert into items values (1000, 'seen')")
    running.await_target("select name from items where id = 1000", [("seen",)])
    assert set(running.tables()) == {"public.items", "public.words"}


def test_one_table_is_copied_again_while_the_others_stream(running: Desk) -> None:
    # What nobody has told: the target alone has other rows.
    running.write("delete from items where id <= 50", "update items set name = 'wrong' where id = 60")
    with _Writer(running, "words", first=1000) as writer:
        answer = running.ask("resync", "public.items")
        assert answer.out.strip() == f"{NAME}: 1 table will be copied again"
        running.await_target("select count(*) from items where name = 'item ' || id", [(100,)])
        running.await_streaming("items", "words")
    running.await_target("select count(*) from words", [(50 + writer.count,)])
    known = running.tables()
    assert [known[f"public.{name}"]["copied"] for name in ("items", "words")] == [200, 50]


def test_all_tables_are_copied_again(running: Desk) -> None:
    running.write("delete from items", "delete from words where id > 7")
    assert "2 tables will be copied again" in running.ask("resync").out
    running.await_target(COUNT, [(100,)])
    running.await_target("select count(*) from words", [(50,)])


class _Writer:
    """Inserts into a table all along; none may fail or wait."""

    def __init__(self, desk: Desk, table: str = "items", first: int = 10_000) -> None:
        self._desk = desk
        self._table = table
        self._next = first
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.count = 0
        self._error: BaseException | None = None

    def _write(self) -> None:
        try:
            with psycopg.connect(self._desk.source.dsn, autocommit=True) as connection:
                connection.execute("set lock_timeout = '2s'")
                while not self._over.wait(0.01):
                    connection.execute(f"insert into {self._table} values (%s, 'w')".encode(), (self._next,))
                    self._next += 1
                    self.count += 1
        except BaseException as error:  # noqa: BLE001  raised again at the end
            self._error = error

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        assert self._error is None
        assert self.count > 0


# ---------------------------------------------------------------- what cannot be done


@pytest.mark.parametrize("word", ["pause", "resume", "reload"])
def test_nothing_can_be_asked_of_an_agent_that_does_not_run(word: str, desk: Desk) -> None:
    answer = desk.run("replications", word, NAME)
    assert answer.code == 1
    assert f"no agent runs {NAME}" in answer.err
    assert f"penstock replicate {NAME}" in answer.err


@pytest.mark.parametrize("words", [("replicate",), ("replications", "show"), ("replications", "pause")])
def test_a_name_that_is_not_there_is_told_with_the_nearest(words: tuple[str, ...], desk: Desk) -> None:
    answer = desk.run(*words, "shp")
    assert answer.code == 2
    assert "there is no replication 'shp'" in answer.err
    assert NAME in answer.err


def test_a_table_that_is_not_there_is_not_copied_again(running: Desk) -> None:
    answer = running.run("replications", "resync", NAME, "public.nothing")
    assert answer.code == 1
    assert "public.nothing" in answer.err
    assert "public.items, public.words" in answer.err


def test_a_running_agent_is_not_removed_under_its_feet(running: Desk) -> None:
    answer = running.run("replications", "remove", NAME)
    assert answer.code == 1
    assert "stop it first" in answer.err
    assert running.source.query(f"select 1 from pg_replication_slots where slot_name = '{running.slot}'")


def test_an_agent_on_a_machine_that_is_gone_is_in_nobodys_way(running: Desk) -> None:
    """Nobody here can tell whether it runs: who removes it must say so, and may not say it of one that runs here."""
    answer = running.run("replications", "remove", NAME, "--without-agent")
    assert answer.code == 1
    assert "--without-agent" not in answer.err
    running.stop()
    with open_store(load(running.folder).state_location) as store:
        known = store.agent(NAME)
        assert known is not None
        store.tell_agent(replace(known, state="running", host="elsewhere"))
    answer = running.run("replications", "remove", NAME)
    assert answer.code == 1
    assert f"on elsewhere, last heard of at {known.at:%Y-%m-%d}" in " ".join(answer.err.split())
    assert f"penstock replications remove {NAME} --without-agent" in " ".join(answer.err.split())
    assert running.source.query(f"select 1 from pg_replication_slots where slot_name = '{running.slot}'")
    answer = running.run("replications", "remove", NAME, "--without-agent")
    assert answer.code == 0, answer.err
    assert running.source.query(f"select 1 from pg_replication_slots where slot_name = '{running.slot}'") == []


# ---------------------------------------------------------------- before and after


def test_prepare_prints_what_a_dba_would_run_and_runs_it_when_asked(desk: Desk) -> None:
    printed = desk.run("replications", "prepare", NAME, "--print")
    assert printed.code == 0, printed.err
    assert "create publication" in printed.out
    assert desk.source.query("select 1 from pg_publication") == []
    for statement in printed.out.split(";\n"):
        if statement.strip():
            desk.source.execute(statement)
    again = desk.run("replications", "prepare", NAME)
    assert (again.code, again.out) == (0, "")
    assert "nothing is left to be prepared" in again.err
    desk.start()
    desk.await_streaming("items", "words")


def test_prepare_runs_what_is_missing(desk: Desk) -> None:
    assert desk.run("replications", "prepare", NAME).code == 0
    tables = desk.source.query("select tablename from pg_publication_tables order by 1")
    assert tables == [("items",), ("words",)]


def test_what_is_missing_is_found_at_once_before_anything_starts(desk: Desk) -> None:
    role = f"bystander_{uuid.uuid4().hex[:8]}"  # a role is of the whole server, which other tests use too
    desk.source.execute(f"create role {role} login", f"grant usage on schema public to {role}")
    desk.source.dsn, owner = desk.source.dsn + f"?options=-crole%3D{role}", desk.source.dsn
    desk.configure()
    desk.source.dsn = owner
    for words in (("replications", "prepare", NAME), ("replicate", NAME)):
        answer = desk.run(*words)
        assert answer.code != 0
        for what in ("may not replicate", "alter role", "public.items", "public.words", "grant select"):
            assert what in " ".join(answer.err.split()), answer.err
    assert desk.source.query("select 1 from pg_replication_slots where slot_name = '" + desk.slot + "'") == []


def test_remove_takes_back_what_was_made_and_a_new_start_begins_anew(running: Desk) -> None:
    running.source.execute("update words set word = 'changed'")  # which the buffer keeps
    running.await_target("select distinct word from words", [("changed",)])
    running.stop()
    answer = running.run("replications", "remove", NAME)
    assert answer.code == 0, answer.err
    assert running.source.query(f"select 1 from pg_replication_slots where slot_name = '{running.slot}'") == []
    assert running.source.query("select 1 from pg_publication") == []
    assert running.read(COUNT) == [(100,)]
    assert "never started" in running.run("replications", "list").out
    running.source.execute("delete from items where id > 20", "insert into words values (99, 'missed')")
    running.start()
    running.await_target(COUNT, [(20,)])
    running.await_target("select count(*) from words", [(51,)])


NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def test_remove_without_a_source_that_is_gone_says_what_stays_there(running: Desk) -> None:
    running.stop()
    there, running.source.dsn = running.source.dsn, NOWHERE
    running.configure()
    running.source.dsn = there
    answer = running.run("replications", "remove", NAME)
    assert answer.code == 1
    assert f"penstock replications remove {NAME} --without-source" in " ".join(answer.err.split())
    assert "nothing was touched" in answer.err
    known = "select count(*) from _penstock.replications"
    assert running.read(known) == [(1,)]
    answer = running.run("replications", "remove", NAME, "--without-source")
    assert answer.code == 0, answer.err
    assert running.read(known) == [(0,)]
    assert not (running.folder / ".penstock" / "buffer" / NAME).exists()
    assert running.read(COUNT) == [(100,)]
    for table in ("pg_replication_slots where slot_name = '" + running.slot + "'", "pg_publication"):
        assert running.source.query(f"select 1 from {table}")
    running.source.execute(*(line.removesuffix(";") for line in answer.out.splitlines()))
    for table in ("pg_replication_slots where slot_name = '" + running.slot + "'", "pg_publication"):
        assert running.source.query(f"select 1 from {table}") == []


def test_remove_without_a_target_that_is_gone_says_what_stays_there(
    desk: Desk, harness: Callable[[str], Harness]
) -> None:
    target = harness("postgres")
    assert isinstance(target, PostgresHarness)
    target.dsn, there = NOWHERE, target.dsn
    desk.target = target
    desk.configure()
    assert desk.run("replications", "prepare", NAME).code == 0
    answer = desk.run("replications", "remove", NAME)
    assert answer.code == 1
    assert f"penstock replications remove {NAME} --without-target" in " ".join(answer.err.split())
    assert desk.source.query("select 1 from pg_publication")
    answer = desk.run("replications", "remove", NAME, "--without-target")
    assert answer.code == 0, answer.err
    assert desk.source.query("select 1 from pg_publication") == []
    target.dsn = there
    back = PostgresApplier(PostgresConfig.model_validate({"name": "to", "type": "postgres", "dsn": there}), NAME)
    back.claim()
    back.flush(Flush(None, position(10), states=(TableState(TableName("public", "t"), TableName("public", "t")),)))
    back.close()
    target.execute(*(line.removesuffix(";") for line in answer.out.splitlines()))
    for table in ("replications", "replicated"):
        assert target.query(f"select 1 from _penstock.{table}") == []


def test_a_replication_whose_tables_are_all_gone_can_be_removed(desk: Desk) -> None:
    assert desk.run("replications", "prepare", NAME).code == 0
    desk.source.execute("drop table items, words")
    answer = desk.run("replications", "remove", NAME)
    assert answer.code == 0, answer.err
    assert desk.source.query("select 1 from pg_publication") == []


# ---------------------------------------------------------------- the command itself, with Spark


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_replicate_until_caught_up_and_then_until_it_is_told_to_stop(desk: Desk) -> None:
    done = desk.run("replicate", NAME, "--until-caught-up")
    assert done.code == 0, done.err
    assert desk.read(COUNT) == [(100,)]
    assert "streaming" in done.err
    desk.source.execute("delete from items where id <= 10")
    again = desk.run("replicate", NAME, "--until-caught-up")
    assert again.code == 0, again.err
    assert desk.read(COUNT) == [(90,)]
    process = subprocess.Popen(
        desk.command("replicate", NAME), cwd=desk.folder, env=desk.environment, stderr=subprocess.PIPE, text=True
    )
    try:
        await_true(lambda: desk.show()["state"] == "running", 60)
        with psycopg.connect(desk.source.dsn, autocommit=True) as connection:
            for number in range(200):
                # One transaction over two tables, of which either all or nothing is there.
                with connection.transaction():
                    connection.execute("insert into items values (%s, 'pair')", (5000 + number,))
                    connection.execute("insert into words values (%s, 'pair')", (5000 + number,))
                if number == 100:
                    process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    pairs = [desk.read(f"select id from {table} where id >= 5000 order by id") for table in ("items", "words")]
    assert pairs[0] == pairs[1]
    assert [row[0] for row in pairs[0]] == list(range(5000, 5000 + len(pairs[0])))
    assert desk.show()["state"] == "stopped"
    last = desk.run("replicate", NAME, "--until-caught-up")
    assert last.code == 0, last.err
    assert desk.read("select count(*) from words where id >= 5000") == [(200,)]


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_until_caught_up_is_no_success_while_a_table_has_failed(desk: Desk, harness: Callable[[str], Harness]) -> None:
    desk.target = harness("sqlite")
    desk.configure()
    desk.source.execute(
        "create table odd (id int primary key, a double precision)", "insert into odd values (1, 'NaN')"
    )
    answer = desk.run("replicate", NAME, "--until-caught-up")
    assert answer.code == 1
    said = " ".join(answer.err.split())
    assert "1 of 3 tables has not caught up" in said
    assert "why: public.odd: " in said
    assert f"penstock replications resync {NAME} public.odd" in said
    assert desk.read(COUNT) == [(100,)]
    assert desk.read("select count(*) from words") == [(50,)]
    shown = desk.show()
    assert (shown["state"], desk.tables()["public.odd"]["phase"]) == ("failed", "failed")
    assert "public.odd" in shown["status"]["error"]


def test_one_that_ends_by_itself_tries_what_was_left_as_failed(desk: Desk, harness: Callable[[str], Harness]) -> None:
    """Once, whatever the table's own time is; the others are brought to their end each time."""
    desk.target = harness("sqlite")
    desk.configure()
    desk.source.execute("create table odd (id int primary key, a double precision)", "insert into odd values (1, 1)")
    with copying_by(stage_here):
        replication = ps.replication(NAME, project=desk.folder)
    assert replication.start(until_caught_up=True).wait(60)
    desk.source.execute("update odd set a = 'NaN'")
    for number in range(200, 202):
        desk.source.execute(f"insert into items values ({number}, 'more')")
        with pytest.raises(StateError, match="1 of 3 tables has not caught up"):
            replication.start(until_caught_up=True).wait(60)
        assert desk.read(f"select count(*) from items where id = {number}") == [(1,)]
    desk.source.execute("update odd set a = 3")
    assert replication.start(until_caught_up=True).wait(60)
    assert desk.read("select a from odd") == [(3.0,)]
