"""Arrow arrays into the form in which they travel through Spark, and back. Column by column, in C.

`forth` is exact for every value that the type can hold, ±infinity included; `back` fails with the
column's name where a transform has put in a value that the type cannot hold.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.sparktypes import carried
from penstock.errors import DataError
from penstock.schema.columns import TIMESTAMP_INFINITY

DAY_MICROSECONDS = 86_400_000_000

_HEX = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), dtype="S2")
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))  # bytes between the dashes
_UUID_TEXT = 36


def forth(array: pa.Array, to: pa.DataType | None = None) -> pa.Array:
    """A canonical array as Spark's schema wants it."""
    kind = array.type
    wanted = carried(kind) if to is None else to
    if isinstance(kind, pa.UuidType):
        return uuid_text(array.storage)
    if isinstance(kind, pa.JsonType):
        return array.storage.cast(pa.string())
    if pa.types.is_time(kind):
        return time_text(array)
    if pa.types.is_timestamp(kind) and kind != wanted:
        return _rescaled(array, wanted)
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
        return pa.ExtensionArray.from_storage(wanted, uuid_bytes(array))
    if isinstance(wanted, pa.JsonType):
        return pa.ExtensionArray.from_storage(wanted, array.cast(wanted.storage_type))
    if pa.types.is_time(wanted):
        return time_from_text(array, wanted)
    if pa.types.is_timestamp(wanted):
        return _rescaled(array, wanted)
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


# ---------------------------------------------------------------- uuid


def uuid_text(storage: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """16 bytes as the text with dashes, by a table of hex pairs."""
    count = len(storage)
    if count == 0:
        return pa.array([], pa.string())
    raw = np.frombuffer(storage.buffers()[1], dtype=np.uint8)[storage.offset * 16 : (storage.offset + count) * 16]
    pairs = _HEX[raw].view(np.uint8).reshape(count, 32)
    text = np.full((count, _UUID_TEXT), ord("-"), dtype=np.uint8)
    place = 0
    for start, stop in _UUID_GROUPS:
        width = (stop - start) * 2
        text[:, place : place + width] = pairs[:, start * 2 : stop * 2]
        place += width + 1
    offsets = np.arange(0, (count + 1) * _UUID_TEXT, _UUID_TEXT, dtype=np.int32)
    made = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
    return _with_nulls_of(made, storage)


def uuid_bytes(array: pa.StringArray) -> pa.FixedSizeBinaryArray:
    """The 16 bytes of canonical text; ArrowInvalid for any other text."""
    plain = pc.replace_substring(array, "-", "")
    good = pc.match_substring_regex(array, "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
    if pc.any(pc.invert(good)).as_py():
        raise pa.ArrowInvalid("not a uuid")
    filled = pc.fill_null(pc.utf8_lower(plain), "0" * 32)
    if len(filled) == 0:
        return pa.array([], pa.binary(16))
    fixed = filled.cast(pa.binary()).cast(pa.binary(32))
    digits = np.frombuffer(fixed.buffers()[1], dtype=np.uint8)[fixed.offset * 32 : (fixed.offset + len(fixed)) * 32]
    values = np.where(digits >= ord("a"), digits - ord("a") + 10, digits - ord("0")).reshape(-1, 2)
    raw = (values[:, 0] * 16 + values[:, 1]).astype(np.uint8)
    made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(array), [None, pa.py_buffer(raw)])
    return _with_nulls_of(made, array)


def _with_nulls_of(made: pa.Array, origin: pa.Array) -> pa.Array:
    return made if origin.null_count == 0 else pc.if_else(origin.is_valid(), made, pa.scalar(None, made.type))


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
    pattern = r"^(?P<h>\d\d):(?P<m>[0-5]\d):(?P<s>[0-5]\d)\.(?P<f>\d{6})$"
    if pc.any(pc.invert(pc.match_substring_regex(array, pattern))).as_py():
        raise pa.ArrowInvalid("not a time of day")
    parts = pc.extract_regex(pc.fill_null(array, "00:00:00.000000"), pattern)
    hours, minutes, seconds, fraction = (parts.field(place) for place in range(4))
    whole = pc.add(
        pc.multiply(pc.add(pc.multiply(hours.cast(pa.int64()), 60), minutes.cast(pa.int64())), 60),
        seconds.cast(pa.int64()),
    )
    total = pc.add(pc.multiply(whole, 1_000_000), fraction.cast(pa.int64()))
    timed = _with_nulls_of(total, array).view(pa.time64("us"))
    return timed if timed.type == wanted else timed.cast(wanted)


def _rescaled(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Another unit of the same timestamp. ±infinity are fixed numbers, the same in every unit."""
    numbers = array.view(pa.int64())
    endless = pc.equal(pc.abs(numbers), TIMESTAMP_INFINITY)
    if not pc.any(endless).as_py():
        return array.cast(wanted)
    finite = pc.if_else(endless, pa.scalar(0, pa.int64()), numbers).view(array.type).cast(wanted).view(pa.int64())
    return pc.if_else(endless, numbers, finite).view(wanted)
