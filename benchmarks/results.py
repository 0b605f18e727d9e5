"""What the scenarios found: tables of sides, and the goals with what was reached."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.race import Row


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that Penstock is to reach."""

    what: str
    wanted: str
    found: str
    met: bool | None  # None: it could not be measured


@dataclass(slots=True)
class Section:
    """One scenario: its tables and its goals."""

    title: str
    about: str
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=list)  # a table of its own, first line the header


def seconds_of(rows: list[Row], label: str) -> float | None:
    return next((row.median.seconds for row in rows if row.label == label and row.median is not None), None)


def ratio_goal(what: str, slower: float | None, faster: float | None, *, at_least: float) -> Goal:
    """`slower` takes at least so many times as long as `faster`."""
    wanted = f"≥ {at_least:g} ×" if at_least != 1 else "faster"
    if slower is None or faster is None:
        return Goal(what, wanted, "not measured", None)
    ratio = slower / faster
    return Goal(what, wanted, f"{ratio:.2f} ×", ratio >= at_least if at_least != 1 else ratio > 1)


def limit_goal(what: str, value: float | None, *, at_most: float, unit: str) -> Goal:
    wanted = f"≤ {at_most:g} {unit}"
    if value is None:
        return Goal(what, wanted, "not measured", None)
    return Goal(what, wanted, f"{value:.2f} {unit}", value <= at_most)
