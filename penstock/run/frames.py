"""A pandas frame as an Arrow table, its types never guessed wrongly: what is mixed is refused by name.

What pandas itself calls missing (None, NaN, NaT, NA) is NULL. The index is no column, and the plan says
so where it holds something.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.schema.kinds import has_nan, has_nanoseconds, misfit

NANOSECONDS = "ns"


def from_pandas(frame: Any) -> tuple[pa.Table, tuple[str, ...]]:
    """The frame's columns in Arrow, and what a reader of the plan should know."""
    from pandas import RangeIndex

    names = list(frame.columns)
    _check_names(names)
    columns = [_column(name, frame[name]) for name in names]
    notes = []
    if not isinstance(frame.index, RangeIndex):
        notes.append("the index of the frame is not written: reset_index() makes it a column")
    without = [name for name, array in zip(names, columns, strict=True) if _had_nan(frame[name], array)]
    if without:
        notes.append(f"NaN in {', '.join(without)} is NULL, as pandas means it")
    return pa.Table.from_arrays(columns, names=names), tuple(notes)


def _had_nan(series: Any, array: pa.Array) -> bool:
    """Whether something became NULL that is a number to everybody but pandas."""
    if str(series.dtype) == "object":
        return has_nan(list(series))
    return bool(str(series.dtype).startswith("float") and array.null_count)


def _check_names(names: list[Any]) -> None:
    odd = [name for name in names if not isinstance(name, str) or not name]
    if odd:
        raise DataError(
            f"{len(odd)} columns of the frame have no text for a name",
            why=f"the first is named by {type(odd[0]).__name__}",
            kept="nothing was touched",
            remedy='frame.columns = ["id", …]',
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"the frame has columns of one name: {', '.join(twice)}", kept="nothing was touched", remedy="rename them"
        )


def _column(name: str, series: Any) -> pa.Array:
    finest = None
    if str(series.dtype) == "object":
        finest = _check_objects(name, series.dropna())
    elif str(series.dtype) == "category" and str(series.cat.categories.dtype) == "object":
        _check_objects(name, series.cat.categories, nanoseconds=False)
    try:
        made = pa.Array.from_pandas(series, type=finest)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError):
        # Arrow's own text quotes a value.
        raise _refused(name, f"its values ({series.dtype}) have no one Arrow type that holds them all") from None
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    return _in_microseconds(made)


def _check_objects(name: str, values: Any, *, nanoseconds: bool = True) -> pa.DataType | None:
    """Objects are of one kind: out of 1 and 2.5 Arrow would make 1.0 and 2.5. The type of those with nanoseconds."""
    objects = list(values)
    why = misfit(objects, nan_is_missing=True, nanoseconds=nanoseconds)
    if not why and any(isinstance(value, dict) for value in objects):
        why = "it holds dict, which is no column type"
    if why:
        raise _refused(name, why)
    if not has_nanoseconds(objects):
        return None
    if isinstance(objects[0], datetime.timedelta):
        return pa.duration(NANOSECONDS)
    return pa.timestamp(NANOSECONDS, "UTC" if objects[0].tzinfo is not None else None)


def _refused(name: str, why: str) -> DataError:
    return DataError(
        f"column {name} of the frame cannot be written",
        why=why,
        kept="nothing was touched",
        remedy=f"make it one type: frame[{name!r}] = frame[{name!r}].astype(…); json as text",
    )


def _in_microseconds(array: pa.Array) -> pa.Array:
    """Nanoseconds are pandas' default, not the user's choice: microseconds where they hold every value."""
    type_ = array.type
    if not (pa.types.is_timestamp(type_) and type_.unit == NANOSECONDS):
        return array
    try:
        return array.cast(pa.timestamp("us", type_.tz))
    except pa.ArrowInvalid:  # one that needs them: the target says whether it can hold it
        return array
