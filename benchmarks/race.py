"""Several sides over the same data in turns, so that whatever disturbs the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.dataset import Check
from benchmarks.measure import Median, Sample
from benchmarks.sides import Side, SideFailed
from benchmarks.stand import say

# A side that needs longer than this for its first run is not run again: its first run counts.
PATIENCE_SECONDS = 60.0

LEFT_OUT = "not asked for"


def nothing() -> None:
    """For entrants that need no reset."""


@dataclass(slots=True)
class Entrant:
    """A side with its job. `reset` makes the target as it must be before a run; it is not measured."""

    label: str
    side: Side | None
    job: dict[str, Any]
    check: Callable[[], Check]
    reset: Callable[[], None] = nothing
    note: str = ""


@dataclass(slots=True)
class Row:
    """What one entrant did: a line of a table."""

    label: str
    median: Median | None = None
    cold: float | None = None
    note: str = ""
    failed: str = ""
    samples: list[Sample] = field(default_factory=list)


def race(
    entrants: list[Entrant], runs: int, before_round: Callable[[int], None] | None = None, *, warm: bool = False
) -> list[Row]:
    """One cold run each, unless the sides are `warm`, then `runs` rounds of all, and one whose memory is watched.

    A side that fails drops out, with the reason; one that was not asked for does not appear.
    """
    entrants = [entrant for entrant in entrants if entrant.note != LEFT_OUT]
    rows = {entrant.label: Row(entrant.label, note=entrant.note) for entrant in entrants}
    running = entrants if warm else [entrant for entrant in entrants if _enter(entrant, rows[entrant.label])]
    for turn in range(runs + 1):
        if before_round is not None:
            before_round(turn)
        shift = turn % max(len(running), 1)
        for entrant in [*running[shift:], *running[:shift]]:
            row = rows[entrant.label]
            if row.failed or entrant.side is None:
                row.failed = row.failed or entrant.note
                continue
            try:
                row.samples.append(_once(entrant, row, watched=turn == runs))
            except SideFailed as error:
                row.failed = str(error)
    for row in rows.values():
        if row.samples and not row.failed:
            row.median = Median.of(row.samples[:-1] or row.samples, row.samples[-1])
    return list(rows.values())


def _enter(entrant: Entrant, row: Row) -> bool:
    """The cold run. True if the entrant takes part in the rounds."""
    if entrant.side is None:
        row.failed = entrant.note
        return False
    entrant.side.stop()
    try:
        sample = _once(entrant, row, watched=True, cold=True)
    except SideFailed as error:
        row.failed = str(error)
        say(f"  {entrant.label}: {error}")
        return False
    if sample.seconds > PATIENCE_SECONDS:
        row.samples.append(sample)
        return False
    return True


def _once(entrant: Entrant, row: Row, *, watched: bool, cold: bool = False) -> Sample:
    assert entrant.side is not None
    entrant.reset()
    begun = time.perf_counter()
    sample = entrant.side.run(entrant.job, watched=watched)
    if cold:
        # The start of the worker is in it: imports, and Spark's session.
        row.cold = time.perf_counter() - begun
    phases = "".join(f", {name} {seconds:.2f}" for name, seconds in sample.phases.items())
    memory = f", {sample.peak_mib:.0f} MiB" if watched else ""
    say(f"  {entrant.label}: {sample.seconds:.2f} s, {sample.cpu:.1f} CPU s{memory}{phases}")
    found = entrant.check()
    if not found.complete:
        raise SideFailed("the target does not hold every row")
    row.note = "; ".join(filter(None, [entrant.note, _differences(found)]))
    return sample


def _differences(found: Check) -> str:
    parts = [f"{name} as {kind}" for name, kind in found.types.items()]
    if found.differing:
        parts.append("values changed: " + ", ".join(found.differing))
    return ", ".join(parts)
