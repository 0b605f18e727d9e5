"""Incremental reads: the half-open window `[lower, upper)` and where it may end.

The upper bound is a moment that nothing can still be written before: the source's clock before
the snapshot, no later than the start of any transaction that was open then. Where not all of them
are seen, the user says by `lag` how long they may take.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends import lags
from penstock.backends.base import Cursor, Window
from penstock.backends.postgres.connect import identifier, literal
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.types import PgType
from penstock.backends.sql import KEYS_SHOWN, without_cursor
from penstock.errors import PlanRefused

INTEGERS = {"int2": -(2**15), "int4": -(2**31), "int8": -(2**63)}
TIMES = frozenset({"timestamptz", "timestamp", "date"})
MICROSECOND_DIGITS = 6


def window_condition(window: Window, type_: PgType) -> str:
    """The window over alias `q`."""
    check_cursor(window.column, type_)
    column = f"q.{identifier(window.column)}"
    parts = [f"{column} < {literal(window.upper)}::{type_.spelling}"]
    if window.lower is not None:
        parts.insert(0, f"{column} >= {literal(window.lower)}::{type_.spelling}")
    inside = " and ".join(parts)
    return f"{inside} or {column} is null" if window.on_null == "include" else inside


def check_nulls(holder: Holder, source: str, window: Window, keys: Sequence[str]) -> tuple[str, ...]:
    """What the plan says about rows without a cursor; an error with `on_null_cursor = "error"`."""
    rows = f"{source} as q where q.{identifier(window.column)} is null"
    text = " || ', ' || ".join(
        f"{literal(key + '=')} || coalesce(q.{identifier(key)}::pg_catalog.text, 'NULL')" for key in keys
    )

    def shown() -> tuple[str, ...]:
        return tuple(row for (row,) in holder.ask(f"select {text} from {rows} limit {KEYS_SHOWN}")) if keys else ()

    return without_cursor(window, int(holder.ask(f"select count(*) from {rows}")[0][0]), "", shown)


def check_cursor(column: str, type_: PgType) -> None:
    if type_.built_in and (type_.name in INTEGERS or type_.name in TIMES):
        return
    raise PlanRefused(
        f"column {column!r} cannot be a cursor",
        why=f"it is {type_.spelling}; windows need a type whose next value is known: integers, dates, timestamps",
        remedy="choose an integer, date or timestamp column",
    )


def upper_bound(holder: Holder, source: str, cursor: Cursor, type_: PgType) -> str:
    """Where the window ends, as text of the cursor's type; never before the last one's end."""
    check_cursor(cursor.column, type_)
    bound = _settled_bound(holder, source, cursor, type_)
    if cursor.floor is None:
        return bound
    ends = ", ".join(f"{literal(end)}::{type_.spelling}" for end in (cursor.floor, bound))
    return str(holder.ask(f"select greatest({ends})::pg_catalog.text")[0][0])


def _settled_bound(holder: Holder, source: str, cursor: Cursor, type_: PgType) -> str:
    if type_.name in INTEGERS:
        return _upper_integer(holder, source, cursor, type_)
    if type_.name != "timestamptz" and cursor.timezone is None:
        raise PlanRefused(
            f"the cursor {cursor.column!r} has no time zone",
            why=f"a {type_.spelling} cannot be compared with the source's clock",
            remedy='cursor_timezone = "UTC" (the zone its writers mean)',
        )
    clock = holder.clock
    if clock.stopped:
        raise PlanRefused(
            f"the cursor {cursor.column!r} cannot be read on this standby yet",
            why="it has replayed no transaction since it started, so it does not know how far it has got",
            remedy="run it again when the primary has committed something, or read from the primary",
        )
    if clock.blind and cursor.lag is None:
        raise PlanRefused(
            f"the cursor {cursor.column!r} needs a lag",
            why=f"{clock.blind}: they may still commit earlier rows",
            remedy='lag = "5m" (longer than any transaction takes)',
        )
    lag = f"{literal(lags.interval(cursor.lag, cursor.column))}::pg_catalog.interval"
    moment = f"({literal(clock.settled)}::pg_catalog.timestamptz - {lag})"
    if type_.name != "date" and 0 <= type_.typmod < MICROSECOND_DIGITS:
        # The cast to a timestamp(0) rounds: half a second early, rows still to come would lie below the bound.
        half = 5 * 10 ** (MICROSECOND_DIGITS - 1 - type_.typmod)
        moment = f"({moment} - interval '{half} microseconds')"
    if type_.name == "timestamptz":
        return str(holder.ask(f"select ({moment})::{type_.spelling}::pg_catalog.text")[0][0])
    # When clocks are set back, an hour comes twice: what follows falls below what went before. The
    # bound waits until no later moment of the next hours reads lower.
    zone = literal(cursor.timezone or "")
    ahead = f"(({moment} + interval '3 hours') at time zone {zone} - interval '3 hours')"
    naive = f"least({moment} at time zone {zone}, {ahead})"
    # Of a date, the day that has begun is left for later: more rows of it may come.
    return str(holder.ask(f"select ({naive})::{type_.spelling}::pg_catalog.text")[0][0])


def _upper_integer(holder: Holder, source: str, cursor: Cursor, type_: PgType) -> str:
    if cursor.lag is None:
        raise PlanRefused(
            f"the cursor {cursor.column!r} needs a lag",
            why="it counts in integers, and a row with a lower number may commit after one with a higher",
            remedy='lag = "1000" (as many as may be open at once), or lag = "0" if rows never commit late',
        )
    lag = lags.count(cursor.lag, cursor.column)
    column = f"q.{identifier(cursor.column)}"
    highest = holder.ask(f"select max({column})::pg_catalog.int8 from {source} as q")[0][0]
    if highest is None:
        return str(INTEGERS[type_.name])
    lowest, beyond = INTEGERS[type_.name], -INTEGERS[type_.name]
    bound = int(highest) - lag + 1
    if bound >= beyond:
        raise PlanRefused(
            f"the cursor {cursor.column!r} has reached the end of {type_.spelling}",
            why="no half-open window can hold its highest value",
            remedy="give a lag, or read the table without `incremental`",
        )
    return str(max(bound, lowest))
