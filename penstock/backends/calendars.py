"""Dates and timestamps as text and back, of every year: `2024-01-31`, `0044-03-15 BC`, `infinity`, `…+00`.

Arrow itself writes and reads the years 1 to 9999 only, and knows no infinity. The spelling is Postgres' own ISO style.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import plain_number
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

Numbers = npt.NDArray[np.int64]

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_OF_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31: what Arrow itself writes and reads
_NULL = pa.scalar(None, pa.string())


class Refused(ValueError):
    """Arrow would take this text for a value; it is none."""


# ---------------------------------------------------------------- to text


def date_text(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32())
    if _within(days, _FIRST_DAY, _LAST_DAY):
        return array.cast(pa.string())
    finite = pc.less(pc.abs_checked(pc.cast(days, pa.int64())), DATE_INFINITY)
    date, era = _calendar_text(pc.cast(pc.if_else(finite, days, 0), pa.int64()))
    return _with_infinities(pc.binary_join_element_wise(date, era, ""), days, finite)


def _calendar_text(days: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The date of each number of days since 1970, and ` BC` where it is."""
    year, month, day = civil(pc.fill_null(days, 0).to_numpy())
    before = year <= 0
    shown = np.where(before, 1 - year, year)
    parts = [(shown, 4), (month, 2), (day, 2)]
    texts = [pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0") for numbers, width in parts]
    date = pc.binary_join_element_wise(*texts, "-")
    date = pc.if_else(pc.is_null(days), _NULL, date)
    return date, pc.if_else(pa.array(before), " BC", "")


def civil(days: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Year (1 BC is 0), month and day of the proleptic Gregorian calendar."""
    shifted = days + 719_468  # since 0000-03-01, so that leap days are the last of their year
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    index = (5 * of_year + 2) // 153
    month = np.where(index < 10, index + 3, index - 9)
    year = year_of_era + era * 400 + (month <= 2)
    return year, month, of_year - (153 * index + 2) // 5 + 1


def days_of(year: Numbers, month: Numbers, day: Numbers) -> Numbers:
    """The inverse of `civil`."""
    year = year - (month <= 2)
    era = year // 400
    year_of_era = year - era * 400
    of_year = (153 * np.where(month > 2, month - 3, month + 9) + 2) // 5 + day - 1
    of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + of_year
    made: Numbers = era * 146_097 + of_era - 719_468
    return made


def timestamp_text(array: pa.Array) -> pa.Array:
    type_, zone = array.type, "" if array.type.tz is None else "+00"
    units = array.cast(pa.int64())
    day = _SECONDS_OF_DAY * _UNITS[type_.unit]
    first, last = max(_FIRST_DAY * day, -TIMESTAMP_INFINITY + 1), min((_LAST_DAY + 1) * day, TIMESTAMP_INFINITY) - 1
    if _within(units, first, last):
        text = plain_number(units.cast(pa.timestamp(type_.unit)).cast(pa.string()))
        return pc.binary_join_element_wise(text, zone, "") if zone else text
    finite = pc.less(pc.abs(units), TIMESTAMP_INFINITY)
    numbers = pc.fill_null(pc.if_else(finite, units, 0), 0).to_numpy()
    days = numbers // day
    date, era = _calendar_text(pa.array(days))
    rest = pa.array(numbers - days * day).cast(pa.timestamp(type_.unit)).cast(pa.string())
    time = plain_number(pc.utf8_slice_codeunits(rest, 11))
    text = pc.binary_join_element_wise(pc.binary_join_element_wise(date, time, " "), zone, era, "")
    return _with_infinities(pc.if_else(pc.is_null(units), _NULL, text), units, finite)


def _with_infinities(text: pa.Array, numbers: pa.Array, finite: pa.Array) -> pa.Array:
    infinite = pc.if_else(pc.greater(numbers, 0), "infinity", "-infinity")
    return pc.if_else(finite, text, infinite)


def _within(numbers: pa.Array, low: int, high: int) -> bool:
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (ends["min"] >= low and ends["max"] <= high)


# ---------------------------------------------------------------- from text

_DATE = "^(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})(?P<era> BC)?$"
_STAMP = "^(?P<date>[0-9]{4,7}-[0-9]{2}-[0-9]{2})[ T](?P<time>[0-9:.]+)(?P<zone>\\+00)?(?P<era> BC)?$"


def text_date(text: pa.Array) -> pa.Array:
    try:
        return text.cast(pa.date32())
    except pa.ArrowInvalid:
        pass
    infinite, sign = _infinities(text)
    days = _days_of(pc.if_else(infinite, "1970-01-01", text))
    made = pc.if_else(infinite, pc.multiply(sign, DATE_INFINITY), days)
    return made.cast(pa.int32()).cast(pa.date32())


def _days_of(text: pa.Array) -> pa.Array:
    found = pc.extract_regex(pc.fill_null(text, "1970-01-01"), _DATE)
    if found.null_count:
        raise Refused(_DATE)
    year, month, day = (found.field(n).cast(pa.int64()).to_numpy() for n in range(3))
    before = pc.equal(found.field(3), " BC").to_numpy(zero_copy_only=False)
    year = np.where(before, 1 - year, year)
    days = days_of(year, month, day)
    if not all(np.array_equal(a, b) for a, b in zip(civil(days), (year, month, day), strict=True)):
        raise Refused("there is no such day")
    return pc.if_else(pc.is_null(text), pa.scalar(None, pa.int64()), pa.array(days))


def _infinities(text: pa.Array) -> tuple[pa.Array, pa.Array]:
    infinite = pc.or_(pc.equal(text, "infinity"), pc.equal(text, "-infinity"))
    return infinite, pc.if_else(pc.starts_with(text, "-"), -1, 1)


def text_timestamp(text: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return text.cast(type_)
    except pa.ArrowInvalid:
        pass
    infinite, sign = _infinities(text)
    zone = "" if type_.tz is None else "+00"
    epoch = f"1970-01-01 00:00:00{zone}"
    found = pc.extract_regex(pc.fill_null(pc.if_else(infinite, epoch, text), epoch), _STAMP)
    if found.null_count:
        # Another zone than ours, or no such text: what Arrow reads may stand beside what only we do.
        return _each(text, type_)
    if pc.all(pc.equal(found.field(2), zone)).as_py() is False:
        raise Refused("a zone is missing, or one too many")
    days = _days_of(pc.binary_join_element_wise(found.field(0), found.field(3), ""))
    clock = pc.binary_join_element_wise("1970-01-01 ", found.field(1), "").cast(pa.timestamp(type_.unit))
    day = _SECONDS_OF_DAY * _UNITS[type_.unit]
    finite = pc.add_checked(pc.multiply_checked(days, day), clock.cast(pa.int64()))
    made = pc.if_else(infinite, pc.multiply(sign, TIMESTAMP_INFINITY), finite)
    return pc.if_else(pc.is_null(text), pa.scalar(None, pa.int64()), made).cast(type_)


def _each(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """A column of both kinds: ours by our rules, the rest by Arrow's."""
    ours = pc.fill_null(pc.match_substring_regex(text, f"{_STAMP}|^-?infinity$"), True)
    if pc.all(ours).as_py() or not pc.any(ours).as_py():
        return text.cast(type_)
    mine = text_timestamp(text.filter(ours), type_)
    rest = text.filter(pc.invert(ours)).cast(type_)
    places = ours.to_numpy(zero_copy_only=False)
    order = np.where(places, np.cumsum(places) - 1, len(mine) + np.cumsum(~places) - 1)
    return pa.concat_arrays([mine, rest]).take(pa.array(order))
