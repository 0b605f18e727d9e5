"""Arrow values as text and back, whole arrays at a time.

The texts are those that databases print: `2024-01-31 12:00:00.5+00`, `1.10`, `infinity`, a uuid in
small letters. Arrow's own are not used where they differ: `0E-12`, `1e+300` of a decimal, a date that
it can hold and not print.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

UUID_TEXT = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
MIDNIGHT = "24:00:00"  # a time of day of Postgres and DuckDB that Arrow holds and does not print
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
_DIGIT = np.zeros(256, np.uint8)
_DIGIT[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
# Where the 32 digits of a uuid stand in its 36 characters.
_PLACES = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])


def has_text(type_: pa.DataType) -> bool:
    """Whether `as_text` knows the type: every one but lists, structs and maps."""
    return not pa.types.is_nested(type_)


def as_text(array: pa.Array, name: str = "") -> pa.Array:
    """The canonical text of every value."""
    type_ = array.type
    if isinstance(type_, pa.UuidType):
        return uuid_text(array)
    if isinstance(type_, pa.BaseExtensionType):  # json
        return array.storage.cast(pa.string())
    if pa.types.is_binary(type_):
        return pc.binary_join_element_wise("\\x", _hex(array), "")
    if pa.types.is_decimal(type_):
        return decimal_text(array)
    if pa.types.is_date(type_):
        return _with_infinity(array, array.cast(pa.int32()), DATE_INFINITY, array.cast(pa.string()), name)
    if pa.types.is_timestamp(type_):
        text = plain_number(pc.replace_substring(array.cast(pa.string()), "Z", ""))
        if type_.tz is not None:
            text = pc.binary_join_element_wise(text, "+00", "")
        return _with_infinity(array, array.cast(pa.int64()), TIMESTAMP_INFINITY, text, name)
    if pa.types.is_time(type_):
        return time_text(array)
    if pa.types.is_floating(type_):
        text = array.cast(pa.string())
        for spelled, said in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            text = pc.if_else(pc.equal(text, spelled), said, text)
        return text
    return array.cast(pa.string())


def _with_infinity(array: pa.Array, numbers: pa.Array, infinity: int, text: pa.Array, name: str) -> pa.Array:
    text = pc.if_else(pc.equal(numbers, infinity), "infinity", text)
    # Arrow says "<value out of range: …>", and counts the years before the first one as nobody else does.
    unsaid = pc.and_(pc.match_substring_regex(text, "^[<-]"), pc.not_equal(numbers, -infinity))
    text = pc.if_else(pc.equal(numbers, -infinity), "-infinity", text)
    if pc.any(unsaid).as_py():
        raise DataError(
            f"column {name} holds a date that has no text here",
            why=f"{array.type} reaches beyond the years 1 to 32767",
            kept="nothing was committed",
        )
    return text


def time_text(array: pa.Array) -> pa.Array:
    numbers = array.cast(pa.int32()).cast(pa.int64()) if pa.types.is_time32(array.type) else array.cast(pa.int64())
    last = pc.equal(numbers, _DAY[array.type.unit])
    return pc.if_else(last, MIDNIGHT, plain_number(array.cast(pa.string())))


def text_time(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Times of day, which Arrow reads as a part of a moment only; midnight at the end of a day not at all."""
    last = pc.equal(plain_number(array), MIDNIGHT)
    moments = pc.binary_join_element_wise("1970-01-01", pc.if_else(last, "00:00:00", array), " ")
    parsed = moments.cast(pa.timestamp(type_.unit)).cast(pa.int64())
    return pc.if_else(last, _DAY[type_.unit], parsed).cast(type_)


def decimal_text(array: pa.Array) -> pa.Array:
    """All digits before and after the point: `0.00`, `-0.000000000001`. Arrow's own text of the last is -1E-12."""
    type_ = array.type
    if type_.scale <= 0 or not (pa.types.is_decimal128(type_) or pa.types.is_decimal256(type_)):
        return array.cast(pa.string())
    integer = pa.decimal128(38, 0) if pa.types.is_decimal128(type_) else pa.decimal256(76, 0)
    # The same digits as an integer.
    whole = pa.Array.from_buffers(integer, len(array), array.buffers(), array.null_count, array.offset)
    digits = whole.cast(pa.string())
    negative = pc.starts_with(digits, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), type_.scale + 1, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -type_.scale)
    after = pc.utf8_slice_codeunits(digits, -type_.scale)
    return pc.binary_join_element_wise(pc.if_else(negative, "-", ""), before, ".", after, "")


def plain_number(text: pa.Array) -> pa.Array:
    """A text without what does not count of a fraction: `1.50` and `1.5` are one number, `007` and `7` two texts.

    `12:00:00.500000` is `12:00:00.5` too; whole seconds have no point.
    """
    if not len(text) or not pc.any(pc.match_substring(text, ".")).as_py():
        return text
    return pc.if_else(pc.match_substring(text, "."), pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), "."), text)


# ---------------------------------------------------------------- bytes


def _hex(array: pa.Array) -> pa.Array:
    """Two characters per byte."""
    array = pa.concat_arrays([array])  # without an offset
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int32)[: len(array) + 1]
    spelled = _HEX[np.frombuffer(data, np.uint8)[: starts[-1]]] if data is not None and starts[-1] else b""
    ends = pa.py_buffer((starts.astype(np.int64) * 2).tobytes())
    made = pa.LargeStringArray.from_buffers(len(array), ends, pa.py_buffer(bytes(spelled)))
    return pc.if_else(pc.is_valid(array), made.cast(pa.string()), None)


def uuid_text(array: pa.Array) -> pa.Array:
    storage = pc.fill_null(array.storage, bytes(16))
    [_, data] = pa.concat_arrays([storage]).buffers()
    rows = np.frombuffer(data, np.uint8)[: len(array) * 16].reshape(-1, 16) if len(array) else np.empty((0, 16), "u1")
    spelled = np.full((len(array), 36), ord("-"), np.uint8)
    spelled[:, _PLACES] = _HEX[rows].reshape(-1, 32)
    ends = pa.py_buffer((np.arange(len(array) + 1, dtype=np.int32) * 36).tobytes())
    made = pa.StringArray.from_buffers(len(array), ends, pa.py_buffer(spelled.tobytes()))
    return pc.if_else(pc.is_valid(array), made, None)


def text_uuid(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The uuids that texts spell, and which of them do."""
    spelled = pc.fill_null(pc.match_substring_regex(array, UUID_TEXT), True)
    valid = pc.is_valid(array)
    nothing = "00000000-0000-0000-0000-000000000000"
    texts = pa.concat_arrays([pc.if_else(pc.and_(valid, spelled), array, nothing)])
    [_, _, data] = texts.buffers()
    digits = np.frombuffer(data, np.uint8)[: len(array) * 36].reshape(-1, 36)[:, _PLACES] if len(array) else None
    if digits is None:
        return pa.array([], pa.uuid()), spelled
    halves = _DIGIT[digits]
    rows = ((halves[:, 0::2] << 4) | halves[:, 1::2]).astype(np.uint8)
    storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(array), [None, pa.py_buffer(rows.tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), pc.if_else(valid, storage, None)), spelled
