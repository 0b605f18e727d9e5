"""The agent or its capture is killed at every failpoint, under work: nothing lost, nothing twice, nothing torn."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import psycopg
import pytest

from penstock.backends.changelog.chain import Chain
from tests.conformance.conftest import harness
from tests.replication.conftest import TARGETS, make, servers
from tests.replication.stand import Stand

__all__ = ["harness", "make", "servers"]

pytestmark = [pytest.mark.postgres, pytest.mark.sampled(shared=("failpoint",))]

# Of the way into every target; what each means is told where it stands (penstock/observe/failpoints.py).
FAILPOINTS = (
    *("replicate.slot", "replicate.begun", "copy.begun", "load.staging"),
    *("read.open", "read.batch", "sink.open", "sink.staged", "sink.receipt"),
    *("copy.staged", "commit.begin", "commit.loaded", "commit.done", "copy.loaded", "replicate.joined"),
    *("capture.claimed", "segment.written", "segment.linked", "segment.durable", "capture.durable"),
    *("fold.written", "flush.fenced", "flush.loaded", "flush.committed"),
)
TABLES = (
    "create table accounts (id int primary key, balance int not null, note text)",
    "insert into accounts select i, 100, repeat(md5(i::text), 10) from generate_series(1, 2000) i",
    "create table transfers (id serial primary key, src int, dst int, amount int)",
    "create table bag (v text, n int)",
    "alter table bag replica identity full",
    "insert into bag select 'x', i % 5 from generate_series(1, 500) i",
    "create table toasted (id int primary key, n int, big text)",
    "alter table toasted alter big set storage external",
    "insert into toasted select i, 0, repeat(md5(i::text), 200) from generate_series(1, 60) i",
    "create table nested (id serial primary key, v text)",
    "create table emptied (id int primary key, n int)",
    "insert into emptied select i, 0 from generate_series(1, 50) i",
    "create table grown (id serial primary key, v int)",
    "insert into grown (v) select i from generate_series(1, 50) i",
)
COMPARED = ("accounts", "transfers", "bag", "toasted", "nested", "emptied", "grown")
PAUSE_SECONDS = 0.05  # between two rounds: it is the kill that is tried, not the speed
ROUND = """
do $$ declare a int; b int; begin
  for i in 1..20 loop
    a := 1 + (random() * 1999)::int; b := 1 + (random() * 1999)::int;
    update accounts set balance = balance - i where id = a;
    update accounts set balance = balance + i where id = b;
    insert into transfers (src, dst, amount) values (a, b, i);
    update toasted set n = n + 1 where id = 1 + i % 60;
    insert into bag values ('y', i % 5);
    delete from bag where ctid = (select ctid from bag limit 1);
    -- Inside of others, and of those that are rolled back below: one that is kept, one that is not.
    begin
      insert into nested (v) values ('kept ' || i);
      begin
        insert into nested (v) values ('aborted'); update toasted set n = -1 where id = i; raise division_by_zero;
      exception when division_by_zero then null; end;
      update nested set v = v || '.' where id = (select max(id) from nested);
    exception when division_by_zero then null; end;
    if i % 4 = 0 then
      -- Keys that are swapped, one that goes away and one that comes back, with values that are not sent.
      update toasted set id = -i where id = i; update toasted set id = i where id = i + 20;
      update toasted set id = i + 20 where id = -i;
      update toasted set id = 1060 - id where id in (i + 40, 1020 - i);
    end if;
    if i % 7 = 0 then rollback; else commit; end if;
  end loop; end $$
"""
EMPTIES_EVERY, GROWS_EVERY = 50, 25  # rounds: a copy that finds its table emptied or altered begins again
EMPTY = """
begin; update emptied set n = n + 1; truncate emptied; insert into emptied select i, i from generate_series(1, 30) i;
delete from emptied where id % 3 = 0; commit
"""
GROW = """
begin; insert into grown (v) values (1); alter table grown add column cN text default 'default N';
insert into grown (v, cN) values (2, 'given'), (3, null); update grown set cN = 'changed' where id % 10 = 0; commit
"""


PREPARE = """
begin; insert into transfers (src, dst, amount) values (1, 2, 0); insert into nested (v) values ('prepared');
prepare transaction 'NAME'
"""


class Workload(threading.Thread):
    """Transfers whose sum never changes, and other work, until it is told to stop."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._stopping = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stopping.is_set():
                name = uuid.uuid4().hex
                connection.execute(PREPARE.replace("NAME", name).encode())
                connection.execute(ROUND.encode())
                connection.execute(f"{'rollback' if self.rounds % 3 == 0 else 'commit'} prepared '{name}'".encode())
                if self.rounds % EMPTIES_EVERY == 5:
                    connection.execute(EMPTY.encode())
                if self.rounds % GROWS_EVERY == 0:
                    connection.execute(GROW.replace("N", str(self.rounds)).encode())
                self.rounds += 1
                self._stopping.wait(PAUSE_SECONDS)
            # Once more, of tables that stream.
            connection.execute(EMPTY.encode())
            connection.execute(GROW.replace("N", "last").encode())

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)


# A log has no hidden tables, no transaction to commit, and nothing that joins.
OF_DATABASES = ("fold.written", "commit.begin", "commit.loaded", "commit.done", "replicate.joined")
LOGGED = tuple(name for name in FAILPOINTS if name not in OF_DATABASES)
# Whoever reads a log has neither a slot nor a capture.
OF_CAPTURE = (
    "replicate.slot",
    "capture.claimed",
    "segment.written",
    "segment.linked",
    "segment.durable",
    "capture.durable",
)
READING = tuple(name for name in FAILPOINTS if name not in OF_CAPTURE)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_killed_and_started_again_nothing_is_lost_or_twice(
    failpoint: str, target: str, make: Callable[..., Stand]
) -> None:
    # Tasks fold the flushes of every other failpoint.
    rows = 0 if failpoint == "fold.written" or FAILPOINTS.index(failpoint) % 2 else 10_000
    stand = make(target, apart=True, range_bytes=1 << 16, apply_in_driver_rows=rows)
    stand.source.execute(*TABLES)
    reached = stand.root / f"reached-{uuid.uuid4().hex}"
    work = Workload(stand.source.dsn)
    stand.start(f"{failpoint}=once:{reached}:kill")
    work.start()
    try:
        stand.sync()
    finally:
        work.stop()
    stand.sync()
    assert reached.exists()
    assert work.rounds > 0
    stand.assert_agrees(*COMPARED)
    stand.stop()
    assert stand.target.leftovers() == []


@pytest.mark.parametrize("failpoint", LOGGED)
def test_a_log_whose_agent_is_killed_has_every_change_once(failpoint: str, make: Callable[..., Stand]) -> None:
    log = make("files", apart=True, range_bytes=1 << 16)
    log.source.execute(*TABLES)
    _killed_under_work(log, log, failpoint)
    assert log.target.leftovers() == []
    _assert_filled(log, make)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("failpoint", READING)
def test_a_target_that_reads_a_log_has_every_change_once(
    failpoint: str, target: str, make: Callable[..., Stand]
) -> None:
    log = make("files", apart=True, range_bytes=1 << 16)
    log.source.execute(*TABLES)
    log.start()
    log.sync()
    copy = make(target, of=log, apart=True, apply_in_driver_rows=0 if failpoint == "fold.written" else 10_000)
    _killed_under_work(copy, log, failpoint)
    log.sync()
    copy.sync()
    copy.assert_agrees(*COMPARED)
    copy.stop()
    assert copy.target.leftovers() == []


def _killed_under_work(killed: Stand, log: Stand, failpoint: str) -> None:
    """The agent of one of them dies where it is told to, while the source works."""
    reached = killed.root / f"reached-{uuid.uuid4().hex}"
    work = Workload(log.source.dsn)
    killed.start(f"{failpoint}=once:{reached}:kill")
    work.start()
    try:
        killed.sync()
    finally:
        work.stop()
    killed.sync()
    assert reached.exists()
    assert work.rounds > 0
    if killed is log:
        killed.stop()


def _assert_filled(log: Stand, make: Callable[..., Stand]) -> None:
    """Every transaction is in the log once, and what it fills is what the source has."""
    chain = Chain(log.log)
    commits = [commit for number in chain.numbers() for commit in chain.read(number).transactions["commit"].to_pylist()]
    assert commits == sorted(set(commits))
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync(mark=commits[-1])
    copy.assert_agrees(*COMPARED)
