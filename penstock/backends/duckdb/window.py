"""Incremental windows on a DuckDB source: half-open, at the cursor column's own granularity."""

from __future__ import annotations

from penstock.backends import lags
from penstock.backends.base import Cursor, Window
from penstock.backends.duckdb import types
from penstock.backends.duckdb.connect import Session
from penstock.backends.duckdb.dialect import literal
from penstock.errors import PlanRefused

ZONED = frozenset({"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"})
NAIVE = frozenset({"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE"})
_ROUNDED = {"TIMESTAMP_S": "second", "TIMESTAMP_MS": "millisecond"}


def condition(window: Window, spelling: str) -> str:
    """The test that a row is in the window."""
    column = types.quote(window.column)
    tests = [f"{column} < cast({literal(window.upper)} as {spelling})"]
    if spelling in types.INTEGERS and int(window.upper) > _highest(spelling):
        tests = [f"{column} is not null"]  # the type has no value that the window leaves out
    if window.lower is not None:
        tests.insert(0, f"{column} >= cast({literal(window.lower)} as {spelling})")
    inside = " and ".join(tests)
    return f"({inside}) or {column} is null" if window.on_null == "include" else inside


def upper_bound(session: Session, relation: str, cursor: Cursor, spelling: str, now: str) -> str:
    """Where the window ends, never before the last one's end."""
    bound = _bound(session, relation, cursor, spelling, now)
    if cursor.floor is None:
        return bound
    ends = ", ".join(f"cast({literal(end)} as {spelling})" for end in (cursor.floor, bound))
    return str(session.query(f"select cast(greatest({ends}) as varchar)")[0][0])


def _bound(session: Session, relation: str, cursor: Cursor, spelling: str, now: str) -> str:
    """Nobody writes while the file is held, so the clock needs no more care.

    The source may be empty: integers then end at the type's lowest value, which takes no row.
    """
    column = types.quote(cursor.column)
    if spelling in types.INTEGERS:
        lag = lags.count(cursor.lag, cursor.column)
        bits, signed = types.INTEGERS[spelling]
        lowest = -(2 ** (bits - 1)) if signed else 0
        highest = session.query(f"select cast(max({column}) as varchar) from {relation} as source")[0][0]
        return str(lowest if highest is None else max(int(highest) + 1 - lag, lowest))
    if spelling in ZONED | NAIVE:
        lag_sql = f"interval '{lags.interval(cursor.lag, cursor.column)}'"
        moment = f"(cast({literal(now)} as timestamptz) - {lag_sql})"
        if spelling in NAIVE:
            if cursor.timezone is None:
                raise PlanRefused(
                    f"the cursor {cursor.column!r} has no time zone",
                    why=f"it is a {spelling}, and its clock is not known",
                    remedy='cursor_timezone = "UTC", or the zone that its times are in',
                )
            zone = literal(cursor.timezone)
            # When clocks are set back, an hour comes twice: what follows falls below what went before.
            # The bound waits until no later moment of the next hours reads lower.
            ahead = f"timezone({zone}, {moment} + interval '3 hours') - interval '3 hours'"
            moment = f"least(timezone({zone}, {moment}), {ahead})"
        if spelling in _ROUNDED:
            # The cast rounds: half a second early, rows that are still to come would lie below the bound.
            moment = f"date_trunc('{_ROUNDED[spelling]}', {moment})"
        return str(session.query(f"select cast(cast({moment} as {spelling}) as varchar)")[0][0])
    raise PlanRefused(
        f"{cursor.column!r} cannot be an incremental cursor",
        why=f"{spelling} has no last value to stop before: use a timestamp, a date or an integer",
    )


def _highest(spelling: str) -> int:
    bits, signed = types.INTEGERS[spelling]
    return (1 << (bits - signed)) - 1
