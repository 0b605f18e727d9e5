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

from penstock.backends.arrowtext import as_text
from penstock.backends.sqlite.moments import date_text, timestamp_text

Class = Literal["INTEGER", "REAL", "TEXT", "BLOB"]

ARROW: dict[Class, pa.DataType] = {
    "INTEGER": pa.int64(),
    "REAL": pa.float64(),
    "TEXT": pa.string(),
    "BLOB": pa.binary(),
}
_SMALL = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()})
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
    if pa.types.is_date32(type_):
        return date_text(array)
    if pa.types.is_timestamp(type_):
        return timestamp_text(array, type_.unit, zoned=type_.tz is not None)
    if pa.types.is_nested(type_):
        return pc.if_else(pc.is_null(array), None, _json(array))
    return array if pa.types.is_string(type_) else as_text(array)


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
