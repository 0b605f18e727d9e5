"""How far an incremental window stays behind: `lag = "5m"` for times, `lag = "1000"` for integers."""

from __future__ import annotations

import re

from penstock.errors import PlanRefused

UNITS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LAG = re.compile(rf"([0-9]+)({'|'.join(UNITS)})?")


def interval(lag: str | None, column: str) -> str:
    """The lag of a column of times, as SQL reads an interval: `5 minutes`."""
    found = LAG.fullmatch(lag or "0")
    if found is None or (found[2] is None and int(found[1])):
        raise PlanRefused(
            f"lag = {lag!r} does not fit the cursor {column!r}",
            why="it holds times: its lag is a duration",
            remedy=f'lag = "5m" ({", ".join(UNITS)})',
        )
    return f"{found[1]} {UNITS[found[2] or 's']}"


def count(lag: str | None, column: str) -> int:
    """The lag of a column of integers."""
    found = LAG.fullmatch(lag or "0")
    if found is None or found[2] is not None:
        raise PlanRefused(
            f"lag = {lag!r} does not fit the cursor {column!r}",
            why="it holds integers: its lag is a number of them",
            remedy='lag = "1000"',
        )
    return int(found[1])
