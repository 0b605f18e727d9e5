"""Incremental windows on a SQLite source: half-open, at the cursor column's own granularity.

A column of dates or times is text there. ISO texts in UTC compare as their moments do, except the
years after 9999, which no window reaches, and those BC, which lie before every window but the first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from penstock.backends import lags
from penstock.backends.base import Cursor, Window
from penstock.backends.sqlite.connect import Session
from penstock.backends.sqlite.dialect import EARLIER
from penstock.backends.sqlite.encode import text_of
from penstock.backends.sqlite.types import StoredColumn, cell, literal
from penstock.errors import PlanRefused

LOWEST, HIGHEST = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1)
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
MOMENT = "'[0-9][0-9][0-9][0-9]*-[0-9][0-9]-[0-9][0-9]*'"
CHANGE_OF_CLOCKS = timedelta(hours=3)


def condition(window: Window, cursor: StoredColumn) -> str:
    """The test that a row is in the window."""
    column = cell(window.column)
    if pa.types.is_integer(cursor.column.type):
        above = "" if window.lower is None else f"{column} >= {int(window.lower)} and "
        below = f"{column} < {int(window.upper)}" if int(window.upper) <= HIGHEST else f"{column} is not null"
    else:
        above = "" if window.lower is None else f"{column} >= {literal(window.lower)} and {column} not glob '* BC' and "
        below = EARLIER.format(column, literal(window.upper))
    inside = above + below
    return f"({inside}) or {column} is null" if window.on_null == "include" else inside


def astray(cursor: StoredColumn) -> str:
    """True where a cell lies in no window, though it is not NULL: it would never be read, and never be missed.

    A text is above every integer. Empty where there can be none.
    """
    tests = [cursor.wrong()]
    if pa.types.is_date32(cursor.column.type) or pa.types.is_timestamp(cursor.column.type):
        tests.append(f"({cursor.cell} not glob {MOMENT} and {cursor.cell} not in ('infinity', '-infinity'))")
    return " or ".join(test for test in tests if test)


def upper_bound(session: Session, relation: str, cursor: Cursor, stored: StoredColumn, now: datetime) -> str:
    """Where the window ends, never before the last one's end."""
    type_ = stored.column.type
    if pa.types.is_integer(type_) and stored.kind == "INTEGER":
        return _next_integer(session, relation, cursor)
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_):
        bound = _bound(cursor, type_, now)
        return bound if cursor.floor is None else max(cursor.floor, bound)
    raise PlanRefused(
        f"{cursor.column!r} cannot be an incremental cursor",
        why=f"{stored.column.describe()} has no last value to stop before: use a timestamp, a date or an integer"
        " (of a table that Penstock has loaded: what others keep as text is only text)",
    )


def _next_integer(session: Session, relation: str, cursor: Cursor) -> str:
    """The source may be empty: the window then ends at the lowest value, which takes no row."""
    lag = lags.count(cursor.lag, cursor.column)
    column = cell(cursor.column)
    highest = session.query(f"select max({column}) from {relation} as source where typeof({column}) = 'integer'")[0][0]
    bound = LOWEST if highest is None else max(int(highest) + 1 - lag, LOWEST)
    return str(bound if cursor.floor is None else max(bound, int(cursor.floor)))


def _bound(cursor: Cursor, type_: pa.DataType, now: datetime) -> str:
    moment = now - _lag(cursor)
    naive = pa.types.is_date32(type_) or type_.tz is None
    local = moment.replace(tzinfo=None)
    if naive:
        zone = _zone(cursor, type_)
        # When clocks are set back, an hour comes twice: what follows falls below what went before.
        # The bound waits until no later moment of the next hours reads lower.
        ahead = (moment + CHANGE_OF_CLOCKS).astimezone(zone).replace(tzinfo=None) - CHANGE_OF_CLOCKS
        local = min(moment.astimezone(zone).replace(tzinfo=None), ahead)
    passed = local - EPOCH
    if pa.types.is_date32(type_):
        return str(text_of(pa.array([passed.days], pa.int32()).cast(type_))[0])
    micros = passed // timedelta(microseconds=1)
    number = micros * PER_SECOND[type_.unit] // PER_SECOND["us"]
    return str(text_of(pa.array([number], pa.int64()).cast(type_))[0])


def _lag(cursor: Cursor) -> timedelta:
    count, unit = lags.interval(cursor.lag, cursor.column).split()
    return timedelta(**{unit: int(count)})


def _zone(cursor: Cursor, type_: pa.DataType) -> ZoneInfo:
    if cursor.timezone is None:
        raise PlanRefused(
            f"the cursor {cursor.column!r} has no time zone",
            why=f"it is a {type_}, and its clock is not known",
            remedy='cursor_timezone = "UTC", or the zone that its times are in',
        )
    try:
        return ZoneInfo(cursor.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise PlanRefused(f"there is no time zone {cursor.timezone!r}", remedy='as in "Europe/Prague"') from error


def clock() -> datetime:
    """The source's clock: a file has none but its machine's."""
    return datetime.now(UTC)
