"""What SQLite stores, made canonical again by the type that is remembered. Vectorised, per batch.

A cell that is not what its column's type says is `Wrong`: somebody else has written it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.backends.arrowtext import as_text as printed
from penstock.backends.arrowtext import plain_number, text_time, text_uuid
from penstock.backends.sqlite.encode import class_of, text_of
from penstock.backends.sqlite.moments import dates, timestamps

BYTES = r"^\\x([0-9a-f]{2})*$"


class Wrong(Exception):
    """A cell does not hold a value of its column's type."""

    def __init__(self, cell: pa.Scalar) -> None:
        super().__init__("a cell is not of its column's type")
        self.cell = cell  # to find its row by; never shown


def canonical(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The stored array as the canonical type."""
    try:
        return _canonical(array, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Wrong(array[_first_wrong(array, type_)]) from error


def _first_wrong(array: pa.Array, type_: pa.DataType) -> int:
    """Found by halves: a batch is decoded a few dozen times at most."""
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _canonical(array.slice(start, middle - start), type_)
            start = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            end = middle
    return start


def _canonical(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if class_of(type_) == "TEXT":
        return from_text(array, type_)
    if pa.types.is_boolean(type_):
        if not pc.all(pc.is_in(pc.drop_null(array), pa.array([0, 1], array.type)), min_count=0).as_py():
            raise pa.ArrowInvalid("a boolean is neither 0 nor 1")
        return array.cast(pa.bool_())
    if pa.types.is_float32(type_):
        made = array.cast(pa.float32())
        if pc.any(pc.not_equal(made.cast(pa.float64()), array)).as_py():
            raise pa.ArrowInvalid("a number has more digits than a float")
        return made
    return array if array.type == type_ else array.cast(type_)


def from_text(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """The inverse of `encode.text_of`; ArrowInvalid where a text is not what that would write."""
    if pa.types.is_string(type_):
        return text
    if isinstance(type_, pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, text.cast(type_.storage_type))
    if isinstance(type_, pa.UuidType):
        return _uuids(text)
    if pa.types.is_date32(type_):
        return dates(text)
    if pa.types.is_timestamp(type_):
        made = timestamps(text, type_.unit, zoned=type_.tz is not None)
        return made if type_.tz is None else made.cast(pa.int64()).cast(type_)
    if pa.types.is_time64(type_):
        return _times(text, type_)
    if pa.types.is_binary(type_):
        return _bytes(text)
    if pa.types.is_nested(type_):
        return _nested(text, type_)
    return text.cast(type_)


def _require(text: pa.Array, pattern: str) -> None:
    if pc.any(pc.invert(pc.match_substring_regex(text, pattern))).as_py():
        raise pa.ArrowInvalid("a text is not of its type")


def _uuids(text: pa.Array) -> pa.Array:
    made, spelled = text_uuid(text)
    if not pc.all(spelled, min_count=0).as_py():
        raise pa.ArrowInvalid("a text is no uuid")
    return made


def _times(text: pa.Array, type_: pa.DataType) -> pa.Array:
    made = text_time(text, type_)
    if not pc.all(pc.equal(printed(made), plain_number(text)), min_count=0).as_py():
        raise pa.ArrowInvalid("a text is no time of day")
    return made


def _bytes(text: pa.Array) -> pa.Array:
    _require(text, BYTES)
    digits = pa.concat_arrays([pc.fill_null(pc.utf8_slice_codeunits(text, 2), "")])
    offsets = np.frombuffer(digits.buffers()[1], dtype="int32")[: len(digits) + 1]
    data = digits.buffers()[2]
    raw = _unhex(np.frombuffer(data, dtype="uint8")[: offsets[-1]] if data is not None else None)
    halves = (offsets // 2).astype("int32")
    made = pa.Array.from_buffers(pa.binary(), len(text), [None, pa.py_buffer(halves), pa.py_buffer(raw.tobytes())])
    return pc.if_else(pc.is_valid(text), made, None)


def _unhex(letters: np.ndarray | None) -> np.ndarray:
    if letters is None or not letters.size:
        return np.empty(0, dtype="uint8")
    nibbles = np.where(letters >= ord("a"), letters - ord("a") + 10, letters - ord("0"))
    return (nibbles[0::2] * 16 + nibbles[1::2]).astype("uint8")


# ---------------------------------------------------------------- nested types


def _nested(text: pa.Array, type_: pa.DataType) -> pa.Array:
    if not len(text):
        return pa.nulls(0, type_)
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        raise pa.ArrowInvalid("a nested value is not written as Penstock writes it")
    lines = pa.concat_arrays([pc.binary_join_element_wise('{"v":', pc.fill_null(text, "null"), "}\n", "")])
    data = lines.buffers()[2]
    options = pj.ParseOptions(explicit_schema=pa.schema([("v", _shape(type_))]), unexpected_field_behavior="error")
    read = pj.read_json(
        pa.BufferReader(data), read_options=pj.ReadOptions(block_size=max(data.size, 1)), parse_options=options
    )
    if read.num_rows != len(text):
        raise pa.ArrowInvalid("a nested value is not one JSON value")
    return _filled(read.column("v").combine_chunks(), type_)


def _shape(type_: pa.DataType) -> pa.DataType:
    """What the JSON of a type looks like: integers and booleans as such, all else as strings."""
    if pa.types.is_list(type_):
        return pa.list_(_shape(type_.value_type))
    if pa.types.is_map(type_):
        return pa.list_(pa.struct([("key", _shape(type_.key_type)), ("value", _shape(type_.item_type))]))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _shape(field.type)) for field in type_])
    if pa.types.is_boolean(type_) or type_ == pa.uint64():
        return type_
    return pa.int64() if pa.types.is_integer(type_) else pa.string()


def _filled(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The parsed strings as the values that they spell."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    nulls = pc.is_null(array) if array.null_count else None
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(_offsets(array), _filled(array.flatten(), type_.value_type), mask=nulls).cast(
            type_
        )
    if pa.types.is_map(type_):
        entries = array.flatten()
        keys = _filled(entries.field("key"), type_.key_type)
        items = _filled(entries.field("value"), type_.item_type)
        made = pa.MapArray.from_arrays(_offsets(array), keys, items, mask=nulls)
        return made if made.type == type_ else made.cast(type_)
    if pa.types.is_struct(type_):
        children = [_filled(array.field(number), field.type) for number, field in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=nulls)
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return array.cast(type_)
    if pa.types.is_floating(type_):
        return array.cast(type_)
    return from_text(array, type_)


def _offsets(array: pa.ListArray) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype("int32"))


def as_text(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The text form of a stored column, for whoever wants text."""
    return array if pa.types.is_string(array.type) else text_of(canonical(array, type_))
