"""Wall time, CPU seconds and peak memory of a tree of processes.

Memory is PSS (a page shared by n processes counts 1/n in each), summed over the tree and sampled
every 100 ms. To read it stops a process that asks for memory: of a run of two seconds with a JVM it takes 7 %. So
what is timed against others is not watched, and memory is that of another run. CPU is that of the living plus that
of the dead whom their parents have waited for.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import psutil

SAMPLE_SECONDS = 0.1
MIB = 1024 * 1024
KINDS = ("driver", "JVM", "workers")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side."""

    seconds: float
    cpu: float
    server_cpu: float
    peak_mib: float
    phases: dict[str, float] = field(default_factory=dict)
    peak_of: dict[str, float] = field(default_factory=dict)  # MiB of each kind of process at the peak


@dataclass(frozen=True, slots=True)
class Median:
    """Several runs of one side."""

    seconds: float
    low: float
    high: float
    cpu: float
    server_cpu: float
    peak_mib: float
    phases: dict[str, float]
    runs: int

    @classmethod
    def of(cls, samples: Sequence[Sample], watched: Sample) -> Median:
        """`watched` is the run that tells the memory."""
        seconds = [sample.seconds for sample in samples]
        return cls(
            statistics.median(seconds),
            min(seconds),
            max(seconds),
            statistics.median(sample.cpu for sample in samples),
            statistics.median(sample.server_cpu for sample in samples),
            watched.peak_mib,
            {name: statistics.median(s.phases[name] for s in samples) for name in samples[0].phases},
            len(samples),
        )


class Tree:
    """A process and all that descend from it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def cpu(self) -> float:
        total = 0.0
        for process in self._living():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue  # it ended meanwhile: its parent has its time
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def pss_mib(self) -> dict[str, float]:
        """Of the process itself, of Java, and of all others."""
        found = dict.fromkeys(KINDS, 0.0)
        for process in self._living():
            try:
                kind = "driver" if process == self._root else "JVM" if process.name() == "java" else "workers"
                found[kind] += process.memory_full_info().pss / MIB
            except psutil.Error:
                continue
        return found

    def _living(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []


class Meter:
    """Measures what happens inside its `with` block; the block must hold one run of one side.

    `memory` is how many seconds lie between two looks at it, None if there shall be none.
    """

    def __init__(self, side: int, server: int, *, memory: float | None = SAMPLE_SECONDS) -> None:
        self._side = Tree(side)
        self._server = Tree(server)
        self._peak = dict.fromkeys(KINDS, 0.0)
        self._cpu_seen = 0.0
        self._done = threading.Event()
        self._memory = memory
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.cpu = self.server_cpu = self.seconds = 0.0

    def __enter__(self) -> Meter:
        self._cpu_before, self._server_before = self._side.cpu(), self._server.cpu()
        self._thread.start()
        self._started = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.seconds = time.perf_counter() - self._started
        self._done.set()
        self._thread.join()
        # A side that has ended tells nothing any more: what was seen last counts.
        self.cpu = max(self._side.cpu(), self._cpu_seen) - self._cpu_before
        self.server_cpu = self._server.cpu() - self._server_before

    def sample(self, seconds: float | None = None, phases: dict[str, float] | None = None) -> Sample:
        cpu, server = max(self.cpu, 0.0), max(self.server_cpu, 0.0)
        return Sample(seconds or self.seconds, cpu, server, sum(self._peak.values()), phases or {}, self._peak)

    def _watch(self) -> None:
        while True:
            if self._memory is not None:
                self._peak = max(self._peak, self._side.pss_mib(), key=lambda found: sum(found.values()))
            self._cpu_seen = max(self._cpu_seen, self._side.cpu())
            if self._done.wait(self._memory or SAMPLE_SECONDS):
                return
