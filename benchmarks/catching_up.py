"""A backlog caught up with, by a subscription and by Penstock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks.measure import SAMPLE_SECONDS, Meter, Tree
from benchmarks.replicas import SUBSCRIPTION, Backlog, ReplicationStand, accounts, await_true
from benchmarks.results import Section, limit_goal
from benchmarks.scenarios import PENSTOCK
from benchmarks.stand import say


def changes(backlog: Backlog, runs: int) -> list[Section]:
    """A backlog from Postgres into Postgres, until its last row is to be seen; each side in turn, several times."""
    say(f"changes, {backlog.title}")
    theirs, ours = [], []
    with ReplicationStand(["public.accounts", "public.marks"]) as stand:
        accounts(stand, max(backlog.changes, 1000))
        stand.subscribe(copy=True)
        first = stand.mark()
        with stand.agent() as pid:
            await_true(stand.has("ours", first))
            await_true(stand.has("theirs", first))
            for turn in range(runs + 1):
                watched = turn == runs
                stand.at_target("alter subscription theirs disable", "theirs")
                for database in ("ours", "theirs"):
                    stand.at_target("vacuum analyze accounts", database)
                with _held(pid):
                    stand.at_source(backlog.make)
                    last = stand.mark()
                    theirs.append(_subscribed(stand, last))
                    seen = stand.has("ours", last)
                ours.append(_replicated(stand, pid, seen, watched=watched))
        peak = ours.pop().peak_mib
        theirs.pop()
        assert stand.agrees("accounts")
    section = Section(
        f"Changes, Postgres → Postgres: {backlog.title}",
        "The agent is held (SIGSTOP), and the subscription disabled, while the backlog is made; from the moment that"
        f" each goes on until the last row is there. Medians of {runs}, with CPU seconds of each part: of the source's"
        " server, which sends the changes; of the target's server, which a subscription is a part of.",
    )
    section.lines = [
        ["side", "seconds", "range", "changes/s", *(f"{name} CPU" for name in PARTS), "peak MiB"],
        [*_caught_up(SUBSCRIPTION, backlog, theirs), ""],
        [*_caught_up(PENSTOCK, backlog, ours), f"{peak:.0f}"],
    ]
    ratio = statistics.median(run.seconds for run in ours) / statistics.median(run.seconds for run in theirs)
    section.goals = [limit_goal(f"{backlog.title} against {SUBSCRIPTION}", ratio, at_most=1, unit="×")]
    return [section]


PARTS = ("source", "capture", "agent", "Spark", "target")


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """One side with one backlog."""

    seconds: float
    cpu: dict[str, float]  # by part
    peak_mib: float = 0.0


def _subscribed(stand: ReplicationStand, last: int) -> CaughtUp:
    seen = stand.has("theirs", last)
    with Meter(stand.target.pid, stand.source.pid, memory=None) as meter:
        stand.at_target("alter subscription theirs enable", "theirs")
        seconds = await_true(seen)
    return CaughtUp(seconds, {"source": meter.server_cpu, "target": meter.cpu})


def _replicated(stand: ReplicationStand, pid: int, seen: Callable[[], bool], *, watched: bool) -> CaughtUp:
    servers = [Tree(server.pid) for server in (stand.source, stand.target)]
    before = [tree.cpu() for tree in servers]
    parts = _cpu_of_parts(pid)
    with Meter(pid, stand.target.pid, memory=SAMPLE_SECONDS if watched else None) as meter:
        seconds = await_true(seen)
    source, target = (tree.cpu() - had for tree, had in zip(servers, before, strict=True))
    spent = {name: cpu - parts[name] for name, cpu in _cpu_of_parts(pid).items()}
    return CaughtUp(seconds, {"source": source, "target": target} | spent, meter.sample().peak_mib)


def _cpu_of_parts(pid: int) -> dict[str, float]:
    """Of an agent and what it has started."""
    agent = psutil.Process(pid)
    captures = {child.pid for child in _captures(agent)}
    found = dict.fromkeys(("capture", "agent", "Spark"), 0.0)
    for process in (agent, *agent.children(recursive=True)):
        part = "agent" if process.pid == pid else "capture" if process.pid in captures else "Spark"
        times = process.cpu_times()
        found[part] += times.user + times.system
    return found


def _caught_up(label: str, backlog: Backlog, runs: Sequence[CaughtUp]) -> list[str]:
    seconds = [run.seconds for run in runs]
    median = statistics.median(seconds)
    spent = [statistics.median(run.cpu.get(name, 0.0) for run in runs) for name in PARTS]
    return [
        *(label, f"{median:.2f}", f"{min(seconds):.2f}–{max(seconds):.2f}", f"{backlog.changes / median:,.0f}"),
        *(f"{cpu:.2f}" if cpu else "" for cpu in spent),
    ]


def _captures(agent: psutil.Process) -> list[psutil.Process]:
    return [child for child in agent.children() if "penstock.replicate.capturing" in child.cmdline()]


@contextmanager
def _held(pid: int) -> Iterator[None]:
    """The agent and its capture stand still meanwhile."""
    agent = psutil.Process(pid)
    held = [agent, *_captures(agent)]
    for process in held:
        process.suspend()
    try:
        yield
    finally:
        for process in held:
            process.resume()
