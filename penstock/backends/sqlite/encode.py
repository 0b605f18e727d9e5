"""Canonical arrays as SQLite stores them: 64-bit integers, doubles, texts and bytes. Vectorised, per batch.

A type that SQLite lacks becomes its canonical text; nested ones become JSON in which only integers
and booleans stand bare: everything else is a string, so that no reader rounds it. What SQLite would
change without a word (NaN becomes NULL, -0.0 becomes 0.0) is `Unfit`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.sqlite.moments import date_text, time_text, timestamp_text

Class = Literal["INTEGER", "REAL", "TEXT", "BLOB"]

ARROW: dict[Class, pa.DataType] = {
    "INTEGER": pa.int64(),
    "REAL": pa.float64(),
    "TEXT": pa.string(),
    "BLOB": pa.binary(),
}
_SMALL = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()})
_HEX = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], dtype="uint8")
_DASHES = (8, 13, 18, 23)  # of a uuid's text
_CONTROL = [chr(code) for code in range(32)]
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class Unfit(Exception):
    """Some rows hold a value that SQLite cannot."""

    def __init__(self, why: str, rows: np.ndarray) -> None:
        super().__init__(why)
        self.why = why
        self.rows = rows


def class_of(type_: pa.DataType) -> Class:
    """The storage class that holds every value of a canonical type."""
    if type_ in _SMALL:
        return "INTEGER"
    if pa.types.is_floating(type_):
        return "REAL"
    return "BLOB" if pa.types.is_binary(type_) else "TEXT"


def stored(array: pa.Array) -> pa.Array:
    """The array in its storage class."""
    kind = class_of(array.type)
    if kind == "REAL":
        return _doubles(array.cast(pa.float64()))
    if kind == "TEXT":
        return text_of(array)
    return array if array.type == ARROW[kind] else array.cast(ARROW[kind])


def _doubles(array: pa.Array) -> pa.Array:
    values = pc.fill_null(array, 1.0).to_numpy(zero_copy_only=False)
    if (rows := np.flatnonzero(np.isnan(values))).size:
        raise Unfit("SQLite has no NaN: it would become NULL", rows)
    if (rows := np.flatnonzero((values == 0.0) & np.signbit(values))).size:
        raise Unfit("SQLite has no negative zero: it would become 0.0", rows)
    return array


def text_of(array: pa.Array) -> pa.Array:
    """The canonical text of any type."""
    type_ = array.type
    if pa.types.is_string(type_):
        return array
    if isinstance(type_, pa.JsonType):
        return array.storage.cast(pa.string())
    if isinstance(type_, pa.UuidType):
        return _uuids(array)
    if pa.types.is_decimal(type_):
        return _decimals(array)
    if pa.types.is_date32(type_):
        return date_text(array)
    if pa.types.is_timestamp(type_):
        return timestamp_text(array, type_.unit, zoned=type_.tz is not None)
    if pa.types.is_time64(type_):
        return time_text(array, type_.unit)
    if pa.types.is_floating(type_):
        return _floats(array)
    if pa.types.is_binary(type_):
        return pc.binary_join_element_wise("\\x", _hex(array), "")
    if pa.types.is_nested(type_):
        return pc.if_else(pc.is_null(array), None, _json(array))
    return array.cast(pa.string())


def _decimals(array: pa.Array) -> pa.Array:
    """Plain digits: Arrow's own printer turns to exponents where a number is small."""
    scale = array.type.scale
    whole = array.cast(pa.decimal128(38, scale))
    digits = pa.Array.from_buffers(pa.decimal128(38, 0), len(whole), whole.buffers(), offset=whole.offset)
    text = digits.cast(pa.string())
    if scale == 0:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(padded, 0, stop=-scale)
    after = pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")


def _floats(array: pa.Array) -> pa.Array:
    """The shortest digits that read back as the same number; the others as Postgres spells them."""
    text = array.cast(pa.string())
    for ours, theirs in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        text = pc.if_else(pc.equal(text, ours), theirs, text)
    return text


def _uuids(array: pa.Array) -> pa.Array:
    storage = array.storage
    raw = np.frombuffer(storage.buffers()[1], dtype="uint8")
    raw = raw[storage.offset * 16 : (storage.offset + len(storage)) * 16].reshape(-1, 16)
    digits = _HEX[raw].reshape(-1, 32)
    text = np.full((len(storage), 36), ord("-"), dtype="uint8")
    text[:, [place for place in range(36) if place not in _DASHES]] = digits
    return _fixed_width(text, pc.is_valid(array))


def _fixed_width(letters: np.ndarray, valid: pa.Array) -> pa.Array:
    offsets = np.arange(len(letters) + 1, dtype="int32") * letters.shape[1]
    made = pa.StringArray.from_buffers(len(letters), pa.py_buffer(offsets), pa.py_buffer(letters.tobytes()))
    return pc.if_else(valid, made, None)


def _hex(array: pa.Array) -> pa.Array:
    """Two lower-case digits per byte."""
    packed = pc.fill_null(array, b"")
    packed = pa.concat_arrays([packed])  # a slice's own buffers
    offsets = np.frombuffer(packed.buffers()[1], dtype="int32")[packed.offset : packed.offset + len(packed) + 1]
    data = packed.buffers()[2]
    raw = np.frombuffer(data, dtype="uint8")[offsets[0] : offsets[-1]] if data is not None else np.empty(0, "uint8")
    letters = _HEX[raw].tobytes()
    doubled = ((offsets - offsets[0]).astype("int64") * 2).astype("int32")
    made = pa.StringArray.from_buffers(len(packed), pa.py_buffer(doubled), pa.py_buffer(letters))
    return pc.if_else(pc.is_valid(array), made, None)


# ---------------------------------------------------------------- nested types


def _json(array: pa.Array) -> pa.Array:
    """A JSON value per row, `null` for NULL."""
    type_ = array.type
    if pa.types.is_list(type_):
        return _nulled(array, _joined_lists(array, _json(array.flatten())))
    if pa.types.is_map(type_):
        pairs = _object([("key", _json(_keys(array))), ("value", _json(_items(array)))])
        return _nulled(array, _joined_lists(array, pairs))
    if pa.types.is_struct(type_):
        children = zip(type_, array.flatten(), strict=True)
        return _nulled(array, _object([(field.name, _json(child)) for field, child in children]))
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return pc.fill_null(array.cast(pa.string()), "null")
    return pc.fill_null(pc.binary_join_element_wise('"', escaped(text_of(array)), '"', ""), "null")


def _nulled(array: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_null(array), "null", text)


def _lengths(array: pa.Array) -> np.ndarray:
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths = np.diff(offsets)
    return np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), lengths, 0)


def _joined_lists(array: pa.Array, elements: pa.Array) -> pa.Array:
    """`[a,b]` out of the elements that `flatten` gave, which leaves out what lies under a NULL."""
    offsets = np.concatenate(([0], np.cumsum(_lengths(array)))).astype("int32")
    lists = pa.ListArray.from_arrays(pa.array(offsets), elements)
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")


def _keys(array: pa.MapArray) -> pa.Array:
    return array.keys.take(_live(array))


def _items(array: pa.MapArray) -> pa.Array:
    return array.items.take(_live(array))


def _live(array: pa.MapArray) -> pa.Array:
    """Places of the entries that belong to a row of this slice."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths = _lengths(array)
    starts = np.repeat(offsets[:-1], lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # `keys` and `items` begin where the slice's first entry does.
    return pa.array(starts + within - offsets[0])


def _object(fields: list[tuple[str, pa.Array]]) -> pa.Array:
    parts = [
        pc.binary_join_element_wise(f'"{escaped(pa.array([name]))[0].as_py()}":', values, "") for name, values in fields
    ]
    return pc.binary_join_element_wise("{", pc.binary_join_element_wise(*parts, ","), "}", "")


def escaped(text: pa.Array) -> pa.Array:
    """As it stands between the quotes of a JSON string."""
    text = pc.replace_substring(text, "\\", "\\\\")
    text = pc.replace_substring(text, '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for letter in _CONTROL:
            text = pc.replace_substring(text, letter, _SHORT.get(letter, f"\\u{ord(letter):04x}"))
    return text
