"""Arrow arrays into the form in which they travel through Spark, and back. Column by column, in C.

`forth` is exact for every value that the type can hold, ±infinity included; `back` fails with the
column's name where a transform has put in a value that the type cannot hold.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import text_time, text_uuid, uuid_text
from penstock.backends.arrowtypes import retimed
from penstock.engine.sparktypes import carried
from penstock.errors import DataError

DAY_MICROSECONDS = 86_400_000_000


def forth(array: pa.Array, to: pa.DataType | None = None) -> pa.Array:
    """A canonical array as Spark's schema wants it."""
    kind = array.type
    wanted = carried(kind) if to is None else to
    if isinstance(kind, pa.UuidType):
        return uuid_text(array)
    if isinstance(kind, pa.JsonType):
        return array.storage.cast(pa.string())
    if pa.types.is_time(kind):
        return time_text(array)
    if pa.types.is_timestamp(kind) and kind != wanted:
        return retimed(array, wanted)
    if pa.types.is_list(kind):
        return _with_values(array, forth(array.values))
    if pa.types.is_struct(kind):
        children = [forth(array.field(place)) for place in range(kind.num_fields)]
        fields = [pa.field(field.name, child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    return array if kind == wanted else array.cast(wanted)


def back(array: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """What came out of Spark as the canonical `wanted`; DataError where a value does not fit."""
    if array.type == wanted:
        return array
    try:
        return _back(array, wanted)
    except pa.ArrowInvalid as error:
        # Arrow's text would quote the value: told without it, the cause stays out of the record.
        raise DataError(
            f"column {name} holds a value that {wanted} cannot hold",
            why="the transform put it there",
            kept="nothing was committed",
            remedy="cast the column in the transform to the type that it should have",
        ) from error


def _back(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(wanted, pa.UuidType):
        return _uuids(array)
    if isinstance(wanted, pa.JsonType):
        return pa.ExtensionArray.from_storage(wanted, array.cast(wanted.storage_type))
    if pa.types.is_time(wanted):
        return time_from_text(array, wanted)
    if pa.types.is_timestamp(wanted):
        return retimed(array, wanted)
    if pa.types.is_list(wanted):
        return _with_values(array, _back(array.values, wanted.value_type)).cast(wanted)
    if pa.types.is_struct(wanted):
        children = [_back(array.field(place), field.type) for place, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    return array.cast(wanted)


def _with_values(array: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """The same lists over converted values. `values` are all of the child's, so the offsets hold."""
    offsets = pa.array(array.offsets.to_numpy())  # a slice of them and a mask do not go together
    return pa.ListArray.from_arrays(offsets, values, mask=array.is_null() if array.null_count else None)


def _uuids(array: pa.StringArray) -> pa.Array:
    """The uuids of texts, in letters of either size; ArrowInvalid for any other text."""
    made, spelled = text_uuid(pc.utf8_lower(array))
    if pc.all(spelled).as_py() is False:
        raise pa.ArrowInvalid("not a uuid")
    return made


# ---------------------------------------------------------------- times


def time_text(array: pa.Array) -> pa.StringArray:
    """Time of day as `HH:MM:SS.ffffff`; 24:00:00 is a legal one."""
    array = array.cast(pa.time64("us"))
    numbers = array.view(pa.int64())
    midnight = pc.equal(numbers, DAY_MICROSECONDS)
    if not pc.any(midnight).as_py():
        return array.cast(pa.string())
    text = pc.if_else(midnight, pa.scalar(0, pa.int64()), numbers).view(array.type).cast(pa.string())
    return pc.if_else(midnight, pa.scalar("24:00:00.000000"), text)


def time_from_text(array: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """The time that `time_text` wrote; ArrowInvalid for any other text."""
    if pc.all(pc.match_substring_regex(array, r"^\d\d:\d\d:\d\d\.\d{6}$")).as_py() is False:
        raise pa.ArrowInvalid("not a time of day")
    timed = text_time(array, pa.time64("us"))
    return timed if timed.type == wanted else timed.cast(wanted)
