"""Kinds of Python values: which may stand in one column, so that Arrow changes none of them.

Arrow goes by the values that it meets first. The time of day beside a date is cut off, a moment
without a zone beside one that has it becomes one of UTC, text among bytes becomes bytes; and the
zone of a time, or the nanoseconds of pandas, are lost even where they stand alone.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

MISSING = ""
# Arrow refuses a whole number that the other kind does not hold.
WIDENED = ({"int", "float"}, {"int", "Decimal"})


def misfit(
    values: Collection[Any], *, widening: bool = False, nan_is_missing: bool = False, nanoseconds: bool = False
) -> str:
    """Why one Arrow array cannot hold the values as they are; "" if it can. It names types, never a value.

    With `widening`, whole numbers may stand among others. `nanoseconds` says that the caller sees to
    those of the values themselves, though not of what is inside of lists.
    """
    types = {type_: _kind(type_) for type_ in set(map(type, values))}
    kinds = set(types.values())
    unknown = sorted(type_.__name__ for type_, kind in types.items() if kind is None)
    if unknown:
        named = sorted({*unknown, *(kind for kind in kinds if kind)})
        return f"it holds {', '.join(named)}" + ("" if len(named) > 1 else ", which is no column type")
    if kinds & {"datetime", "time"}:
        zoned = {types[type(value)] for value in values if getattr(value, "tzinfo", None) is not None}
        plain = {types[type(value)] for value in values if getattr(value, "tzinfo", None) is None}
        if "time" in zoned:
            return "it holds times of day with a zone"
        if "datetime" in zoned & plain:
            return "it holds times with a zone and without"
    kinds.discard(MISSING)
    if len(kinds) > 1 and not (widening and kinds in WIDENED):
        return f"it holds {', '.join(sorted(str(kind) for kind in kinds))}"
    if not nanoseconds and has_nanoseconds(values):
        return "it holds nanoseconds"
    for inner in _inside(values, kinds):
        seen = [value for value in inner if not _is_nan(value)] if nan_is_missing else inner
        why = misfit(seen, widening=widening, nan_is_missing=nan_is_missing)
        if why:
            return f"inside, {why}"
    return ""


def has_nanoseconds(values: Collection[Any]) -> bool:
    """Whether a moment or a duration of pandas has some, of which Arrow by itself would keep the microseconds."""
    if not any(hasattr(type_, "nanosecond") or hasattr(type_, "nanoseconds") for type_ in set(map(type, values))):
        return False
    return any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values)


def has_nan(values: Collection[Any]) -> bool:
    """Whether one of the values, or something in a list of them, is a NaN."""
    kinds = {_kind(type_) for type_ in set(map(type, values))}
    if kinds & {"float", "Decimal"} and any(map(_is_nan, values)):
        return True
    return any(map(has_nan, _inside(values, kinds)))


def _inside(values: Collection[Any], kinds: set[str | None]) -> Iterator[list[Any]]:
    """What the lists hold, together; what the mappings hold, key by key."""
    import numpy as np

    if "list" in kinds:
        elements: list[Any] = []
        for value in values:
            if isinstance(value, np.ndarray) and value.dtype != object:
                # All of them are of one type: one stands for them, and a NaN for its like.
                elements += [*value[:1], *(value[np.isnan(value)][:1] if value.dtype.kind == "f" else ())]
            elif isinstance(value, (list, tuple, np.ndarray)):
                elements += list(value)
        yield elements
    if "dict" in kinds:
        fields: dict[Any, list[Any]] = {}
        for value in values:
            for key, field in value.items() if isinstance(value, Mapping) else ():
                fields.setdefault(key, []).append(field)
        yield from fields.values()


@functools.cache
def _kind(type_: type) -> str | None:
    """What Arrow takes a value of this type for; None if for nothing that a column could hold."""
    import numpy as np

    if type_ is type(None) or type_.__name__ in ("NAType", "NaTType"):  # the latter calls itself a datetime
        return MISSING
    if issubclass(type_, pa.Scalar):
        return type_.__name__
    known: dict[str, tuple[type, ...]] = {
        "bool": (bool, np.bool_),  # before int, which a bool is too
        "int": (int, np.integer),
        "float": (float, np.floating),
        "Decimal": (decimal.Decimal,),
        "str": (str,),
        "bytes": (bytes, bytearray, memoryview),
        "datetime": (datetime.datetime,),  # before date
        "date": (datetime.date,),
        "time": (datetime.time,),
        "timedelta": (datetime.timedelta,),
        "datetime64": (np.datetime64,),
        "timedelta64": (np.timedelta64,),
        "UUID": (uuid.UUID,),
        "list": (list, tuple, np.ndarray),
        "dict": (Mapping,),
    }
    return next((name for name, types in known.items() if issubclass(type_, types)), None)


def _is_nan(value: Any) -> bool:
    import numpy as np

    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, (float, np.floating)) and bool(value != value)
