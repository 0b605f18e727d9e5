"""Incremental windows on files: half-open, at the cursor column's own granularity."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends import lags
from penstock.backends.base import Cursor, Window
from penstock.backends.files.texts import text_of, value_of
from penstock.errors import PlanRefused
from penstock.schema import Column


def inside(window: Window, values: pa.Array) -> pa.Array:
    """Which rows are in the window."""
    type_ = values.type
    if pa.types.is_integer(type_):
        # The end may lie one beyond the type's last value.
        values, type_ = values.cast(pa.decimal128(20, 0)), pa.decimal128(20, 0)
    kept = pc.less(values, value_of(pa.array([window.upper]), type_)[0])
    if window.lower is not None:
        kept = pc.and_(kept, pc.greater_equal(values, value_of(pa.array([window.lower]), type_)[0]))
    return pc.fill_null(kept, window.on_null == "include")


def null_count(values: Iterator[pa.Array]) -> int:
    return sum(array.null_count for array in values)


def upper_bound(cursor: Cursor, column: Column, values: Iterator[pa.Array], now: datetime) -> str:
    """Where the window ends, never before the last one's end."""
    if pa.types.is_integer(column.type):
        bound = _last_integer(cursor, column, values)
        return str(bound if cursor.floor is None else max(bound, int(cursor.floor)))
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type)) or column.logical is not None:
        raise PlanRefused(
            f"column {cursor.column!r} cannot be a cursor",
            why=f"{column.describe()} has no last value to stop before: use a timestamp, a date or an integer",
        )
    text = _moment(cursor, column, now)
    if cursor.floor is None:
        return text
    ends = value_of(pa.array([text, cursor.floor]), column.type)
    return str(text_of(ends.take(pa.array([pc.index(ends, pc.max(ends)).as_py()])))[0].as_py())


def _last_integer(cursor: Cursor, column: Column, values: Iterator[pa.Array]) -> int:
    """One beyond the highest, less the lag; of no rows, the type's lowest, which takes none."""
    lag = lags.count(cursor.lag, cursor.column)
    bits = column.type.bit_width
    lowest = -(2 ** (bits - 1)) if pa.types.is_signed_integer(column.type) else 0
    highest = [found for array in values if (found := pc.max(array).as_py()) is not None]
    return max(max(highest) + 1 - lag, lowest) if highest else lowest


def _moment(cursor: Cursor, column: Column, now: datetime) -> str:
    number, unit = lags.interval(cursor.lag, cursor.column).split(" ")
    now = now - timedelta(**{unit: int(number)})
    if pa.types.is_date32(column.type) or column.type.tz is None:
        if cursor.timezone is None:
            raise PlanRefused(
                f"the cursor {cursor.column!r} has no time zone",
                why=f"it is a {column.describe()}, and its clock is not known",
                remedy='cursor_timezone = "UTC", or the zone that its times are in',
            )
        zone, hours = ZoneInfo(cursor.timezone), timedelta(hours=3)
        # When clocks are set back, an hour comes twice: the bound waits until no later moment reads lower.
        here, ahead = (moment.astimezone(zone).replace(tzinfo=None) for moment in (now, now + hours))
        local = min(here, ahead - hours)
        if pa.types.is_date32(column.type):
            return local.date().isoformat()
        return str(text_of(pa.array([local], pa.timestamp("us")).cast(column.type, safe=False))[0].as_py())
    return str(text_of(pa.array([now], pa.timestamp("us", "UTC")).cast(column.type, safe=False))[0].as_py())
