"""Dates and times as text and back: ISO, in UTC, so that they sort; infinity and BC as Postgres prints them.

    2024-02-29   2024-02-29 12:00:00   2024-02-29 12:00:00.5+00:00   0044-03-15 BC   infinity

SQLite's own date functions read what lies in the years 1 to 9999. Vectorised; those years go
through Arrow's own printer and parser, which know no others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import plain_number, time_text
from penstock.backends.calendars import civil, days_of
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01, 9999-12-31
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
UTC = "+00:00"
DAY = 86_400

_PLAIN_DATE = r"^\d{4}-\d\d-\d\d$"
_PLAIN_TIMESTAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,9})?$"
_ANY_DATE = r"^(?P<y>\d{4,12})-(?P<m>\d\d)-(?P<d>\d\d)(?P<bc> BC)?$"
_ANY_TIMESTAMP = (
    r"^(?P<y>\d{4,12})-(?P<m>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<i>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,9}))?(?P<bc> BC)?$"
)


# ---------------------------------------------------------------- to text


def date_text(array: pa.Array) -> pa.Array:
    days, valid = _numbers(array.cast(pa.int32()))
    plain = (days >= FIRST_DAY) & (days <= LAST_DAY)
    text = _where(plain, days).astype("int32")
    printed = pa.array(text, pa.int32()).cast(pa.date32()).cast(pa.string())
    return _with_odd(printed, valid, ~plain, lambda odd: _odd_dates(days[odd]))


def timestamp_text(array: pa.Array, unit: str, *, zoned: bool) -> pa.Array:
    numbers, valid = _numbers(array.cast(pa.int64()))
    per_day = DAY * PER_SECOND[unit]
    days = np.floor_divide(numbers, per_day)
    # In nanoseconds infinity lies in the year 2262.
    plain = (days >= FIRST_DAY) & (days <= LAST_DAY) & (np.abs(numbers) != TIMESTAMP_INFINITY)
    printed = pa.array(_where(plain, numbers)).cast(pa.timestamp(unit)).cast(pa.string())
    printed = plain_number(printed)
    if zoned:
        printed = pc.binary_join_element_wise(printed, UTC, "")

    def odd_text(odd: np.ndarray) -> np.ndarray:
        return _odd_timestamps(numbers[odd], days[odd], unit, zoned=zoned)

    return _with_odd(printed, valid, ~plain, odd_text)


def _odd_dates(days: np.ndarray) -> np.ndarray:
    infinite = np.abs(days) == DATE_INFINITY
    text = _civil_text(_where(~infinite, days), "")
    return np.where(infinite, np.where(days > 0, "infinity", "-infinity"), text)


def _odd_timestamps(numbers: np.ndarray, days: np.ndarray, unit: str, *, zoned: bool) -> np.ndarray:
    infinite = np.abs(numbers) == TIMESTAMP_INFINITY
    left = _where(~infinite, numbers - days * (DAY * PER_SECOND[unit]))
    # In nanoseconds, whatever the unit: a printed fraction has no zeros at its end.
    nanos = pa.array(left * (PER_SECOND["ns"] // PER_SECOND[unit])).cast(pa.time64("ns"))
    clock = time_text(nanos).to_numpy(zero_copy_only=False).astype(str)
    clock = np.char.add(np.char.add(" ", clock), UTC if zoned else "")
    text = _civil_text(_where(~infinite, days), clock)
    return np.where(infinite, np.where(numbers > 0, "infinity", "-infinity"), text)


def _civil_text(days: np.ndarray, clock: np.ndarray | str) -> np.ndarray:
    year, month, day = civil(days)
    era = np.where(year <= 0, " BC", "")
    shown = np.where(year <= 0, 1 - year, year)
    text = np.char.zfill(shown.astype(str), 4)
    for part in (month, day):
        text = np.char.add(np.char.add(text, "-"), np.char.zfill(part.astype(str), 2))
    return np.char.add(np.char.add(text, clock), era)


# ---------------------------------------------------------------- from text


def dates(text: pa.Array) -> pa.Array:
    """Raises ArrowInvalid where a text is no date as this module writes it."""
    plain = _matches(text, _PLAIN_DATE)
    made = pc.if_else(plain, text, None).cast(pa.date32())
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    if not odd.size:
        return made
    words = text.take(pa.array(odd))
    found = _fields(words, _ANY_DATE)
    numbers = _infinite(words, DATE_INFINITY, days_of(found["y"], found["m"], found["d"]))
    if (np.abs(numbers) > DATE_INFINITY).any():
        raise pa.ArrowInvalid("a date lies beyond 32 bits of days")
    put = pa.array(numbers.astype("int32")).cast(pa.date32())
    _require_same(date_text(put), words)
    return pc.replace_with_mask(made, pc.invert(plain), put)


def timestamps(text: pa.Array, unit: str, *, zoned: bool) -> pa.Array:
    """Naive numbers of the unit; a zoned text must say that it is in UTC."""
    words = _unzoned(text) if zoned else text
    plain = _matches(words, _PLAIN_TIMESTAMP)
    if unit == "ns":  # Arrow's parser refuses the first second that 64 bits of nanoseconds reach
        plain = pc.and_(plain, pc.invert(pc.fill_null(pc.starts_with(words, "1677-09-21 00:12:43"), False)))
    made = pc.if_else(plain, words, None).cast(pa.timestamp(unit))
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    if not odd.size:
        return made
    rest = words.take(pa.array(odd))
    found = _fields(rest, _ANY_TIMESTAMP)
    clock = _clock(found, unit)
    # In Python's own integers the sum cannot wrap; there are few of these.
    day = days_of(found["y"], found["m"], found["d"]).astype(object) * (DAY * PER_SECOND[unit])
    numbers = _infinite(rest, TIMESTAMP_INFINITY, day + clock)
    try:
        put = pa.array(numbers.astype("int64")).cast(pa.timestamp(unit))
    except OverflowError:
        raise pa.ArrowInvalid("a timestamp lies beyond 64 bits of its unit") from None
    _require_same(timestamp_text(put, unit, zoned=False), _plain_fractions(rest))
    return pc.replace_with_mask(made, pc.invert(plain), put)


def _clock(found: dict[str, np.ndarray], unit: str) -> np.ndarray:
    seconds: np.ndarray = found["h"] * 3_600 + found["i"] * 60 + found["s"]
    if unit == "s":
        return seconds
    if (found["digits"] > DIGITS[unit]).any():
        raise pa.ArrowInvalid("a fraction of a second has more digits than its type")
    made: np.ndarray = seconds * PER_SECOND[unit] + found["f"] * 10 ** (DIGITS[unit] - found["digits"])
    return made


def _unzoned(text: pa.Array) -> pa.Array:
    """Without `+00:00`, which must be there but for infinity; ` BC` stays at the end."""
    bare = pc.replace_substring_regex(text, r"(\+00:00|\+00|Z)( BC)?$", r"\2")
    naive = pc.and_(pc.equal(bare, text), pc.invert(pc.ends_with(text, "infinity")))
    if pc.any(naive).as_py():
        raise pa.ArrowInvalid("a time does not say that it is in UTC")
    return bare


def _plain_fractions(text: pa.Array) -> pa.Array:
    """Fractions as they would be printed: `.500` is `.5`."""
    text = pc.replace_substring_regex(text, r"(\.\d*?)0+( BC)?$", r"\1\2")
    return pc.replace_substring_regex(text, r"\.( BC)?$", r"\1")


def _fields(text: pa.Array, pattern: str) -> dict[str, np.ndarray]:
    """The numbers in a text by name; zero where it does not match. A year BC is zero or less."""
    found = pc.extract_regex(text, pattern)
    names = [field.name for field in found.type]
    numbers = {
        name: pc.fill_null(_number(pc.struct_field(found, name)), 0).to_numpy(zero_copy_only=False)
        for name in names
        if name != "bc"
    }
    if "f" in numbers:
        digits = pc.fill_null(pc.binary_length(pc.struct_field(found, "f")), 0)
        numbers["digits"] = digits.to_numpy(zero_copy_only=False).astype("int64")
    if "bc" in names:
        before = pc.fill_null(pc.equal(pc.struct_field(found, "bc"), " BC"), False).to_numpy(zero_copy_only=False)
        numbers["y"] = np.where(before, 1 - numbers["y"], numbers["y"])
    return numbers


def _number(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(text, ""), None, text).cast(pa.int64())


def _infinite(text: pa.Array, infinity: int, numbers: np.ndarray) -> np.ndarray:
    words = text.to_numpy(zero_copy_only=False)
    return np.where(words == "infinity", infinity, np.where(words == "-infinity", -infinity, numbers))


def _require_same(printed: pa.Array, text: pa.Array) -> None:
    if not printed.equals(text):
        raise pa.ArrowInvalid("a text is no date or time as Penstock writes them")


# ---------------------------------------------------------------- arrays


def _matches(text: pa.Array, pattern: str) -> pa.Array:
    """True where a text is of the pattern, or NULL."""
    return pc.fill_null(pc.match_substring_regex(text, pattern), True)


def _numbers(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, zero where NULL, and where they are not NULL."""
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype("int64"), valid


def _where(kept: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.where(kept, numbers, 0)


def _with_odd(
    printed: pa.Array, valid: np.ndarray, odd: np.ndarray, text: Callable[[np.ndarray], np.ndarray]
) -> pa.Array:
    """The printed texts, the odd ones put in, NULL where nothing was."""
    places = np.flatnonzero(odd)
    if places.size:
        printed = pc.replace_with_mask(printed, pa.array(odd), pa.array(text(places).astype(object), pa.string()))
    return printed if valid.all() else pc.if_else(pa.array(valid), printed, None)
