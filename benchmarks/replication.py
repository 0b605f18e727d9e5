"""Replication against what Postgres has itself: pg_recvlogical for capture, a subscription for copy and changes.

Two servers, one for each end. Every side reads the same backlog: it is made while none of them runs, and each has a
slot of its own that keeps it.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable

import psycopg

from benchmarks import dataset
from benchmarks.catching_up import changes
from benchmarks.measure import Meter, Sample
from benchmarks.replicas import (
    LARGE,
    LONGEST_SECONDS,
    MARKS,
    QUICK_SMALL,
    SMALL,
    SUBSCRIPTION,
    ReplicationStand,
    accounts,
    await_true,
    row,
)
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

LATENCY_SECONDS = 20.0
TRANSACTIONS_PER_SECOND = 500


def replication(_: object, scale: Scale) -> list[Section]:
    quick = scale.runs == 1
    return [
        *capture(quick=quick),
        *changes(QUICK_SMALL if quick else SMALL, scale.runs),
        *([] if quick else changes(LARGE, scale.runs)),
        *copy(100_000 if quick else 4_000_000),
        *latency(2.0 if quick else LATENCY_SECONDS),
        *memory((20_000, 100_000) if quick else (1_000_000, 8_000_000)),
    ]


def capture(*, quick: bool) -> list[Section]:
    """A backlog into durable segments, against reading it and throwing it away."""
    backlog = QUICK_SMALL if quick else SMALL
    say(f"capture, {backlog.title}")
    with ReplicationStand(["public.accounts", "public.marks"]) as stand:
        accounts(stand, 300_000)
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
            [end] = row(session, "select pg_current_wal_lsn()")
            [number] = row(session, "select (pg_current_wal_lsn() - '0/0')::int8")
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
    begun = time.perf_counter()  # the meter takes its time to begin
    process = subprocess.Popen(command)
    with Meter(process.pid, stand.source.pid) as meter:
        assert process.wait(LONGEST_SECONDS) == 0
    return meter.sample(time.perf_counter() - begun)


def _line(label: str, seconds: float, count: int, cpu: float, server: float, peak: float | None) -> list[str]:
    shown = f"{peak:.0f}" if peak is not None else ""
    return [label, f"{seconds:.2f}", f"{count / seconds:,.0f}", f"{cpu:.1f}", f"{server:.1f}", shown]


def copy(rows: int) -> list[Section]:
    """A table with its key, until it is there and streams."""
    say(f"copy, {rows:,} rows")
    with ReplicationStand(["public.orders", "public.marks"]) as stand:
        dataset.seed(stand.source.dsn, "public.orders", rows)
        dataset.seed(stand.source.dsn, "public.more", rows)
        stand.at_source(MARKS)
        stand.at_source("create publication theirs for table orders, marks")
        for statement in (dataset.CREATE.format(table="orders"), "alter table orders add primary key (id)", MARKS):
            stand.at_target(statement, "theirs")
        stand.mark()
        state = "select bool_and(srsubstate = 'r') from pg_subscription_rel"
        begun = time.perf_counter()
        stand.subscribe(copy=True)
        with psycopg.connect(stand.target.dsn_of("theirs"), autocommit=True) as session:
            await_true(lambda: row(session, state)[0] is True)
        theirs = time.perf_counter() - begun
        begun = time.perf_counter()
        with stand.agent() as pid:
            with Meter(pid, stand.target.pid, memory=None) as meter:
                await_true(_there(stand, "orders", rows))
                ours = time.perf_counter() - begun
            cold = meter.sample()
            assert stand.agrees("orders")
            with Meter(pid, stand.target.pid, memory=1.0) as meter:
                begun = time.perf_counter()
                stand.add("public.more")
                await_true(_there(stand, "more", rows))
                added = time.perf_counter() - begun
            warm = meter.sample()
    section = Section(
        f"Copy, Postgres → Postgres: {rows:,} rows with their key",
        "From `penstock replicate` (with the start of Spark), from `penstock replications reload` after one more such"
        " table was written into the project of a running agent, and from CREATE SUBSCRIPTION on a table that has its"
        " key already, until all rows are to be seen. Memory is read once a second, and in the second case only.",
    )
    section.lines = [
        ["side", "seconds", "rows/s", "CPU s", "target CPU s", "peak MiB"],
        _line(SUBSCRIPTION, theirs, rows, 0.0, 0.0, None),
        _line(f"{PENSTOCK}, from its start", ours, rows, cold.cpu, cold.server_cpu, None),
        _line(f"{PENSTOCK}, a table added while it runs", added, rows, warm.cpu, warm.server_cpu, warm.peak_mib),
    ]
    section.goals = [
        limit_goal(f"copy from a start against {SUBSCRIPTION}", ours / theirs, at_most=1, unit="×"),
        limit_goal(f"copy of a table that is added against {SUBSCRIPTION}", added / theirs, at_most=1, unit="×"),
    ]
    return [section]


def _there(stand: ReplicationStand, table: str, rows: int) -> Callable[[], bool]:
    """In a session of its own, which is asked often: to open one costs more than many questions."""
    session = psycopg.connect(stand.target.dsn_of("ours"), autocommit=True)

    def there() -> bool:
        if row(session, f"select to_regclass('{table}')")[0] is None:
            return False
        return row(session, f"select count(*) from {table}")[0] == rows

    return there


# ---------------------------------------------------------------- latency and memory


def latency(seconds: float) -> list[Section]:
    """From a commit at the source to the moment that a reader of the target sees it."""
    say(f"latency, {TRANSACTIONS_PER_SECOND} transactions a second")
    # With it off, a server's log reaches nobody before its writer comes round: every 200 ms.
    with ReplicationStand(["public.events", "public.marks"], interval=50, synchronous_commit="on") as stand:
        stand.at_source("create table events (id int primary key, at timestamptz not null)")
        stand.at_source(MARKS)
        first = stand.mark()
        with stand.agent():
            await_true(stand.has("ours", first))
            await_true(_there(stand, "events", 0))
            delays = _delays(stand, seconds)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    section = Section(
        f"Latency at {TRANSACTIONS_PER_SECOND} transactions/s, flush_interval_ms = 50",
        f"{len(delays):,} transactions of one insert each, the source with `synchronous_commit = on`. Read by a session"
        " that asks the target every 2 ms; what is told begins before the source's commit, and the servers and tools"
        " share two cores.",
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


def _delays(stand: ReplicationStand, seconds: float) -> list[float]:
    count = int(seconds * TRANSACTIONS_PER_SECOND)

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
            accounts(stand, 100_000)
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
