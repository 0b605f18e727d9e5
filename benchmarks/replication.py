"""Replication against what Postgres has itself: pg_recvlogical for capture, a subscription for copy and changes.

Two servers, one for each end. Every side reads the same backlog: it is made while none of them runs, and each has a
slot of its own that keeps it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import LiteralString

import psutil
import psycopg

from benchmarks import dataset
from benchmarks.measure import Meter, Sample
from benchmarks.results import Goal, Section, limit_goal
from benchmarks.scenarios import PENSTOCK, Scale
from benchmarks.stand import psql, say
from penstock.backends.change_source import LogNames, ReadsChanges, TableRequest
from penstock.backends.changelog.chain import Chain
from penstock.backends.registry import backend
from penstock.project.load import load
from penstock.replicate.buffer import mark
from penstock.replicate.capturing import CaptureProcess, Orders
from penstock.schema import TableName
from penstock.testing.postgres import EmbeddedPostgres

SETTINGS = {"autovacuum": "off", "max_wal_size": "16GB", "max_replication_slots": "20", "max_wal_senders": "20"}
SUBSCRIPTION = "CREATE SUBSCRIPTION"
LONGEST_SECONDS = 600.0
LATENCY_SECONDS = 20.0
TRANSACTIONS_PER_SECOND = 500
MIB = 1024 * 1024

PROJECT = """\
[connections.shop]
type = "postgres"
dsn = "{source}"

[connections.warehouse]
type = "postgres"
dsn = "{target}"

[replications.bench]
source = "shop"
target = "warehouse"
tables = {tables}
flush_interval_ms = {interval}

[spark]
driver_memory = "1g"
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes that wait for their readers."""

    title: str
    changes: int
    make: str  # SQL


SMALL = Backlog(
    "300,000 updates in 60,000 transactions",
    300_000,
    """do $$ begin for i in 1..60000 loop
         update accounts set balance = balance + 1, touched = now() where id between i * 5 - 4 and i * 5; commit;
       end loop; end $$""",
)
LARGE = Backlog(
    "1,000,000 changes in one transaction",
    1_000_000,
    "update accounts set balance = balance + 1, touched = now()",
)
QUICK_SMALL = Backlog("5,000 updates in 1,000 transactions", 5_000, SMALL.make.replace("60000", "1000"))
ACCOUNTS = """create table accounts (id int primary key, balance bigint not null, owner text, touched timestamptz)"""
MARKS = "create table marks (id int primary key)"


class ReplicationStand:
    """Two servers and a project. Use as a context manager."""

    def __init__(self, tables: list[str], interval: int = 1000) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.folder.chmod(0o755)
        self.source = EmbeddedPostgres(self.folder / "source", **SETTINGS)
        self.target = EmbeddedPostgres(self.folder / "target", **SETTINGS)
        self.project = self.folder / "project"
        self._tables = tables
        self._interval = interval
        self._marks = 0

    def __enter__(self) -> ReplicationStand:
        self.source.start()
        self.target.start()
        self.at_target("create database ours")
        self.at_target("create database theirs")
        self.project.mkdir()
        quoted = str(self._tables).replace("'", '"')
        (self.project / "penstock.toml").write_text(
            PROJECT.format(
                source=self.source.dsn, target=self.target.dsn_of("ours"), tables=quoted, interval=self._interval
            )
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.source.remove()
        self.target.remove()
        self._temporary.cleanup()

    def at_source(self, statement: str) -> None:
        _execute(self.source.dsn, statement)

    def at_target(self, statement: str, database: str = "postgres") -> None:
        _execute(self.target.dsn_of(database), statement)

    def mark(self) -> int:
        """A row that comes last of all that was done."""
        self._marks += 1
        self.at_source(f"insert into marks values ({self._marks})")
        return self._marks

    def has(self, database: str, mark: int) -> Callable[[], bool]:
        session = psycopg.connect(self.target.dsn_of(database), autocommit=True)

        def there() -> bool:
            try:
                return bool(session.execute("select 1 from marks where id = %s", (mark,)).fetchone())
            except psycopg.errors.UndefinedTable:
                return False

        return there

    @contextmanager
    def agent(self) -> Iterator[int]:
        """`penstock replicate bench`; its process id."""
        log = self.folder / "agent.log"
        with log.open("ab") as output:
            command = [str(Path(sys.prefix) / "bin" / "penstock"), "replicate", "bench"]
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.project)
            try:
                yield process.pid
            finally:
                process.terminate()
                process.wait(60)
        if process.returncode != 0:
            raise RuntimeError(log.read_text(errors="replace")[-2000:])

    def subscribe(self, *, copy: bool) -> None:
        self.at_target(
            f"create subscription theirs connection '{self.source.dsn}' publication theirs"
            f" with (copy_data = {str(copy).lower()})",
            "theirs",
        )

    def agrees(self, table: str) -> bool:
        """Every row of the source in both targets."""
        figures = "select count(*), sum(hashtextextended(t::text, 0)) from {} as t"
        listed = "select string_agg(column_name, ', ' order by ordinal_position) from information_schema.columns"
        with psycopg.connect(self.source.dsn) as session:
            [columns] = _row(session, f"{listed} where table_name = '{table}'")
            text = figures.format(f"(select {columns} from {table})")
            wanted = _row(session, text)
        for database in ("ours", "theirs"):
            with psycopg.connect(self.target.dsn_of(database)) as session:
                if _row(session, text) != wanted:
                    return False
        return True


def _execute(dsn: str, statement: str) -> None:
    words: LiteralString = statement  # type: ignore[assignment]  # fixed in this package
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(words)


def _row(session: psycopg.Connection[tuple[object, ...]], statement: str) -> tuple[object, ...]:
    words: LiteralString = statement  # type: ignore[assignment]  # as above
    found = session.execute(words).fetchone()
    assert found is not None
    return found


def await_true(condition: Callable[[], bool]) -> float:
    """The seconds until it holds."""
    begun = time.perf_counter()
    while not condition():
        if time.perf_counter() - begun > LONGEST_SECONDS:
            raise RuntimeError("waited in vain")
        time.sleep(0.005)
    return time.perf_counter() - begun


# ---------------------------------------------------------------- changes


def replication(_: object, scale: Scale) -> list[Section]:
    quick = scale.runs == 1
    return [
        *capture(quick=quick),
        *changes(QUICK_SMALL if quick else SMALL),
        *([] if quick else changes(LARGE)),
        *copy(100_000 if quick else 4_000_000),
        *latency(),
        *memory((20_000, 100_000) if quick else (1_000_000, 8_000_000)),
    ]


def _accounts(stand: ReplicationStand, rows: int) -> None:
    for statement in (
        ACCOUNTS,
        MARKS,
        f"insert into accounts select i, 0, md5(i::text), now() from generate_series(1, {rows}) i",
        "create publication theirs for table accounts, marks",
        "vacuum analyze",
    ):
        stand.at_source(statement)
    for statement in (ACCOUNTS, MARKS):
        stand.at_target(statement, "theirs")


def capture(*, quick: bool) -> list[Section]:
    """A backlog into durable segments, against reading it and throwing it away."""
    backlog = QUICK_SMALL if quick else SMALL
    say(f"capture, {backlog.title}")
    with ReplicationStand(["public.accounts", "public.marks"]) as stand:
        _accounts(stand, 300_000)
        project = load(stand.project)
        replication = project.replications["bench"]
        config = project.connection("shop")
        reads = backend(config.type)
        assert isinstance(reads, ReadsChanges)
        names = LogNames(replication.slot_name, replication.publication_name)
        requests = [TableRequest(TableName("public", name)) for name in ("accounts", "marks")]
        source = reads.change_source(config, names, requests)
        moment = source.begin()
        start = moment.position
        moment.close()
        stand.at_source("select pg_create_logical_replication_slot('recv', 'pgoutput')")
        stand.at_source(backlog.make)
        stand.mark()
        with psycopg.connect(stand.source.dsn, autocommit=True) as session:
            [end] = _row(session, "select pg_current_wal_lsn()")
            [number] = _row(session, "select (pg_current_wal_lsn() - '0/0')::int8")
            last = int(str(number))
        stand.mark()
        rows: list[list[str]] = [["side", "seconds", "changes/s", "CPU s", "peak MiB"]]
        theirs = _received(stand, str(end))
        reached = threading.Event()
        chain = Chain(stand.folder / "segments")
        mark(chain.folder, "bench")
        begun: list[float] = []

        def told(record: dict[str, object]) -> None:
            if "started" in record:
                begun.append(time.perf_counter())
            until = record.get("until")
            if isinstance(until, dict) and until["end"] >= last:
                reached.set()

        launched = time.perf_counter()
        orders = Orders(config, names, tuple(requests), chain.folder, chain.turn, start, 0.1, 1 << 40)
        process = CaptureProcess(orders, told)
        with Meter(process.pid, stand.source.pid) as meter:
            assert reached.wait(LONGEST_SECONDS)
            ours = time.perf_counter() - begun[0]
        whole = time.perf_counter() - launched
        process.stop()
        source.close()
        sample = meter.sample()
        for label, seconds, cpu, peak in (
            ("pg_recvlogical -f /dev/null", theirs.seconds, theirs.cpu, theirs.peak_mib),
            (f"{PENSTOCK}, from its connection on", ours, sample.cpu, sample.peak_mib),
            (f"{PENSTOCK}, from the start of its process on", whole, sample.cpu, sample.peak_mib),
        ):
            rows.append([label, f"{seconds:.2f}", f"{backlog.changes / seconds:,.0f}", f"{cpu:.1f}", f"{peak:.0f}"])
    section = Section(f"Capture: {backlog.title}", "Into durable segments (fsync of each), from one backlog.")
    section.lines = rows
    section.goals = [limit_goal("capture against pg_recvlogical", ours / theirs.seconds, at_most=1, unit="×")]
    return [section]


def _received(stand: ReplicationStand, end: str) -> Sample:
    tool = psql().parent / "pg_recvlogical"
    command = [str(tool), "-d", stand.source.dsn, "-S", "recv", "-f", "/dev/null", "--start", "--no-loop"]
    command += ["-o", "proto_version=1", "-o", "publication_names=theirs", f"--endpos={end}"]
    process = subprocess.Popen(command)
    with Meter(process.pid, stand.source.pid) as meter:
        assert process.wait(LONGEST_SECONDS) == 0
    return meter.sample()


def changes(backlog: Backlog) -> list[Section]:
    """A backlog from Postgres into Postgres, until its last row is to be seen."""
    say(f"changes, {backlog.title}")
    with ReplicationStand(["public.accounts", "public.marks"]) as stand:
        _accounts(stand, max(backlog.changes, 1000))
        stand.subscribe(copy=True)
        first = stand.mark()
        with stand.agent() as pid:
            await_true(stand.has("ours", first))
            await_true(stand.has("theirs", first))
            stand.at_target("alter subscription theirs disable", "theirs")
            with _held(pid):
                stand.at_source(backlog.make)
                last = stand.mark()
                seen = stand.has("theirs", last)
                with Meter(stand.target.pid, stand.source.pid) as meter:
                    stand.at_target("alter subscription theirs enable", "theirs")
                    theirs = await_true(seen)
                subscription = meter.sample()
                seen = stand.has("ours", last)
            with Meter(pid, stand.target.pid) as meter:
                ours = await_true(seen)
            sample = meter.sample()
        assert stand.agrees("accounts")
    section = Section(
        f"Changes, Postgres → Postgres: {backlog.title}",
        "The agent is held (SIGSTOP), and the subscription disabled, while the backlog is made; from the moment that"
        " each goes on until the last row is there. CPU of the agent with its capture and Spark, and of the target's"
        " server, which a subscription is a part of.",
    )
    section.lines = [
        ["side", "seconds", "changes/s", "CPU s", "target CPU s", "peak MiB"],
        _line(SUBSCRIPTION, theirs, backlog.changes, 0.0, subscription.cpu, None),
        _line(PENSTOCK, ours, backlog.changes, sample.cpu, sample.server_cpu, sample.peak_mib),
    ]
    section.goals = [limit_goal(f"{backlog.title} against {SUBSCRIPTION}", ours / theirs, at_most=1, unit="×")]
    return [section]


@contextmanager
def _held(pid: int) -> Iterator[None]:
    """The agent and its capture stand still meanwhile."""
    agent = psutil.Process(pid)
    captures = [child for child in agent.children() if "penstock.replicate.capturing" in child.cmdline()]
    for process in (agent, *captures):
        process.suspend()
    try:
        yield
    finally:
        for process in (agent, *captures):
            process.resume()


def _line(label: str, seconds: float, count: int, cpu: float, server: float, peak: float | None) -> list[str]:
    shown = f"{peak:.0f}" if peak is not None else ""
    return [label, f"{seconds:.2f}", f"{count / seconds:,.0f}", f"{cpu:.1f}", f"{server:.1f}", shown]


def copy(rows: int) -> list[Section]:
    """A table with its key, until it is there and streams."""
    say(f"copy, {rows:,} rows")
    with ReplicationStand(["public.orders", "public.marks"]) as stand:
        dataset.seed(stand.source.dsn, "public.orders", rows)
        stand.at_source("alter table orders add primary key (id)")
        stand.at_source(MARKS)
        stand.at_source("create publication theirs for table orders, marks")
        for statement in (dataset.CREATE.format(table="orders"), "alter table orders add primary key (id)", MARKS):
            stand.at_target(statement, "theirs")
        stand.mark()
        state = "select bool_and(srsubstate = 'r') from pg_subscription_rel"
        begun = time.perf_counter()
        stand.subscribe(copy=True)
        with psycopg.connect(stand.target.dsn_of("theirs"), autocommit=True) as session:
            await_true(lambda: _row(session, state)[0] is True)
        theirs = time.perf_counter() - begun
        begun = time.perf_counter()
        with stand.agent() as pid, Meter(pid, stand.target.pid) as meter:
            await_true(lambda: _there(stand, "orders", rows))
            ours = time.perf_counter() - begun
        sample = meter.sample()
        assert stand.agrees("orders")
    section = Section(
        f"Copy, Postgres → Postgres: {rows:,} rows with their key",
        "From `penstock replicate` (with the start of Spark), and from CREATE SUBSCRIPTION on a table that has its"
        " key already, until all rows are to be seen.",
    )
    section.lines = [
        ["side", "seconds", "rows/s", "CPU s", "target CPU s", "peak MiB"],
        _line(SUBSCRIPTION, theirs, rows, 0.0, 0.0, None),
        _line(PENSTOCK, ours, rows, sample.cpu, sample.server_cpu, sample.peak_mib),
    ]
    section.goals = [limit_goal(f"copy against {SUBSCRIPTION}", ours / theirs, at_most=1, unit="×")]
    return [section]


def _there(stand: ReplicationStand, table: str, rows: int) -> bool:
    with psycopg.connect(stand.target.dsn_of("ours"), autocommit=True) as session:
        try:
            return _row(session, f"select count(*) from {table}")[0] == rows
        except psycopg.errors.UndefinedTable:
            return False


# ---------------------------------------------------------------- latency and memory


def latency() -> list[Section]:
    """From a commit at the source to the moment that a reader of the target sees it."""
    say(f"latency, {TRANSACTIONS_PER_SECOND} transactions a second")
    with ReplicationStand(["public.events", "public.marks"], interval=50) as stand:
        stand.at_source("create table events (id int primary key, at timestamptz not null)")
        stand.at_source(MARKS)
        first = stand.mark()
        with stand.agent():
            await_true(stand.has("ours", first))
            delays = _delays(stand)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    section = Section(
        f"Latency at {TRANSACTIONS_PER_SECOND} transactions/s, flush_interval_ms = 50",
        f"{len(delays):,} transactions of one insert each. Read by a session that asks the target every 2 ms; what is"
        " told begins before the source's commit, and the three servers and tools share two cores.",
    )
    section.lines = [
        ["", "milliseconds"],
        ["p50", f"{p50 * 1000:.0f}"],
        ["p99", f"{p99 * 1000:.0f}"],
        ["longest", f"{max(delays) * 1000:.0f}"],
    ]
    section.goals = [
        Goal("latency, p50", "< 100 ms", f"{p50 * 1000:.0f} ms", p50 < 0.1),
        Goal("latency, p99", "< 1 s", f"{p99 * 1000:.0f} ms", p99 < 1),
    ]
    return [section]


def _delays(stand: ReplicationStand) -> list[float]:
    count = int(LATENCY_SECONDS * TRANSACTIONS_PER_SECOND)

    def work() -> None:
        with psycopg.connect(stand.source.dsn, autocommit=True) as session:
            begun = time.perf_counter()
            for number in range(count):
                session.execute("insert into events values (%s, clock_timestamp())", (number,))
                time.sleep(max(0.0, begun + (number + 1) / TRANSACTIONS_PER_SECOND - time.perf_counter()))

    worker = threading.Thread(target=work)
    worker.start()
    delays: list[float] = []
    with psycopg.connect(stand.target.dsn_of("ours"), autocommit=True) as session:
        last = -1
        while last < count - 1:
            found = session.execute(
                "select id, extract(epoch from clock_timestamp() - at)::float8 from events where id > %s order by id",
                (last,),
            ).fetchall()
            delays += [delay for _, delay in found]
            last = found[-1][0] if found else last
            time.sleep(0.002)
    worker.join()
    return delays


def memory(sizes: tuple[int, int]) -> list[Section]:
    """Peak memory of agent and capture over backlogs of several sizes."""
    peaks = []
    for size in sizes:
        say(f"memory, {size:,} changes")
        with ReplicationStand(["public.accounts", "public.marks"]) as stand:
            _accounts(stand, 100_000)
            first = stand.mark()
            with stand.agent():
                await_true(stand.has("ours", first))
            for _ in range(size // 100_000):
                stand.at_source("update accounts set balance = balance + 1, touched = now()")
            last = stand.mark()
            with stand.agent() as pid, Meter(pid, stand.target.pid) as meter:
                await_true(stand.has("ours", last))
            peaks.append(meter.sample().peak_mib)
    growth = peaks[1] / peaks[0] - 1
    section = Section(
        f"Memory: backlogs of {sizes[0]:,} and {sizes[1]:,} changes",
        "Peak PSS of agent and capture together, Postgres → Postgres, in transactions of 100,000.",
    )
    section.lines = [
        ["changes", "peak MiB"],
        *([f"{size:,}", f"{peak:.0f}"] for size, peak in zip(sizes, peaks, strict=True)),
    ]
    section.goals = [Goal("memory of changes, growth", "< 15 %", f"{growth:+.0%}", growth < 0.15)]
    return [section]
