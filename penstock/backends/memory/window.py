"""Incremental windows on a memory source: half-open, at the cursor column's own granularity."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends import lags
from penstock.backends.base import Cursor, Window
from penstock.errors import PlanRefused

# Clocks are set back by an hour or two: see `_local`.
AHEAD = timedelta(hours=3)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}


def inside(column: pa.Array, window: Window) -> pa.Array:
    """For each row whether it is in the window."""
    mask = _below(column, window.upper)
    if window.lower is not None:
        mask = pc.and_(mask, pc.invert(_below(column, window.lower)))
    return pc.fill_null(mask, window.on_null == "include")


def _below(column: pa.Array, bound: str) -> pa.Array:
    type_ = column.type
    if pa.types.is_integer(type_):
        # The bound after the highest value of a type is no value of that type.
        if int(bound) > _highest(type_):
            return pc.if_else(pc.is_valid(column), True, None)
        return pc.less(column, pa.scalar(int(bound), type_))
    if pa.types.is_date(type_):
        return pc.less(column, pa.scalar(date.fromisoformat(bound), type_))
    return pc.less(column, pa.scalar(_micros(bound), pa.timestamp("us", type_.tz)).cast(type_))


def _micros(bound: str) -> int:
    moment = datetime.fromisoformat(bound)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _highest(type_: pa.DataType) -> int:
    return int(1 << (type_.bit_width - pa.types.is_signed_integer(type_))) - 1


def _lowest(type_: pa.DataType) -> int:
    return -(1 << (type_.bit_width - 1)) if pa.types.is_signed_integer(type_) else 0


def upper_bound(column: pa.ChunkedArray, cursor: Cursor, now: datetime) -> str:
    """Where the window ends, never before the last one's end. Nobody writes to a snapshot."""
    type_ = column.type
    if pa.types.is_integer(type_):
        lag = lags.count(cursor.lag, cursor.column)
        highest = pc.max(column).as_py()
        bound = _lowest(type_) if highest is None else max(highest + 1 - lag, _lowest(type_))
        return str(bound if cursor.floor is None else max(bound, int(cursor.floor)))
    if not (pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
        raise PlanRefused(
            f"{cursor.column!r} cannot be an incremental cursor",
            why=f"{type_} has no last value to stop before: use a timestamp, a date or an integer",
        )
    number, unit = lags.interval(cursor.lag, cursor.column).split()
    moment = now - timedelta(**{unit: int(number)})
    if pa.types.is_date(type_) or type_.tz is None:
        moment = _local(moment, cursor, type_)
    bound = moment.date().isoformat() if pa.types.is_date(type_) else _cut(moment, type_.unit)
    if cursor.floor is None:
        return str(bound)
    # Texts of one form and length: they sort as what they say.
    return max(str(bound), cursor.floor)


def _cut(moment: datetime, unit: str) -> str:
    """Cut, never rounded: half a second early, rows that are still to come would lie below the bound."""
    left = moment.microsecond // 10 ** (6 - _DIGITS[unit]) * 10 ** (6 - _DIGITS[unit])
    return moment.replace(microsecond=left).isoformat(" ", "microseconds")


def _local(moment: datetime, cursor: Cursor, type_: pa.DataType) -> datetime:
    if cursor.timezone is None:
        raise PlanRefused(
            f"the cursor {cursor.column!r} has no time zone",
            why=f"it is a {type_}, and its clock is not known",
            remedy='cursor_timezone = "UTC", or the zone that its times are in',
        )
    try:
        zone = ZoneInfo(cursor.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise PlanRefused(
            f"there is no time zone {cursor.timezone!r}", remedy='cursor_timezone = "Europe/Prague"'
        ) from error
    # When clocks are set back, an hour comes twice: what follows falls below what went before. The
    # bound waits until no later moment of the next hours reads lower.
    ahead = (moment + AHEAD).astimezone(zone).replace(tzinfo=None) - AHEAD
    return min(moment.astimezone(zone).replace(tzinfo=None), ahead)
