"""Canonical values as text and back, exactly: what CSV, JSON Lines and folder names hold.

    true  -7  1e+300 nan inf -inf  1.10  text  base64
    2024-01-31  0044-03-15 BC  infinity  23:59:59.5  24:00:00
    2024-01-31 12:00:00.5  2024-01-31 12:00:00.5+00  …-…-… (uuid)
    lists, structs and maps as JSON

One spelling per value: a type is inferred only where every text is the one that its value has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import (
    UUID_TEXT,
    decimal_text,
    text_time,
    text_uuid,
    time_text,
    uuid_text,
)
from penstock.backends.calendars import Refused, date_text, text_date, text_timestamp, timestamp_text
from penstock.backends.files import jsontext
from penstock.backends.files.bytetext import BASE64_PATTERN, base64_text, bytes_of_base64

EXACT_IN_JSON = 2**53  # readers that hold every number as a double keep integers up to here
_DIGITS = {pa.float32(): 6, pa.float64(): 15}  # that every integer of so many has in the type
_NULL = pa.scalar(None, pa.string())


class Unreadable(ValueError):
    """A text is no value of the type. `places` are some of those, as far as known."""

    def __init__(self, places: list[int]) -> None:
        super().__init__("a text is no value of its type")
        self.places = places


# ---------------------------------------------------------------- values to text


def text_of(array: pa.Array) -> pa.Array:
    """The text of every value; NULL stays NULL."""
    type_ = array.type
    if pa.types.is_string(type_):
        return array
    if isinstance(type_, pa.JsonType):
        return array.storage.cast(pa.string())
    if isinstance(type_, pa.UuidType):
        return uuid_text(array)
    if pa.types.is_decimal(type_):
        return decimal_text(array)
    if pa.types.is_binary(type_):
        return base64_text(array)
    if pa.types.is_date32(type_):
        return date_text(array)
    if pa.types.is_time(type_):
        return time_text(array)
    if pa.types.is_timestamp(type_):
        return timestamp_text(array)
    if pa.types.is_nested(type_):
        return token_of(array)
    return array.cast(pa.string())


def token_of(array: pa.Array) -> pa.Array:
    """The JSON of every value; NULL stays NULL."""
    type_ = array.type
    if pa.types.is_boolean(type_) or (pa.types.is_integer(type_) and type_.bit_width <= 32):
        return array.cast(pa.string())
    if pa.types.is_integer(type_):
        text = array.cast(pa.string())
        small = pc.less_equal(array, pa.scalar(EXACT_IN_JSON, type_))
        if pa.types.is_signed_integer(type_):
            small = pc.and_(small, pc.greater_equal(array, pa.scalar(-EXACT_IN_JSON, type_)))
        return pc.if_else(small, text, jsontext.quoted(text))
    if pa.types.is_floating(type_):
        text = array.cast(pa.string())
        return pc.if_else(pc.is_finite(array), text, jsontext.quoted(text))
    if pa.types.is_list(type_):
        nulls = pc.is_null(array) if array.null_count else None
        offsets, items = parts(array)
        return jsontext.listed(offsets, token_of(items), nulls)
    if pa.types.is_map(type_):
        nulls = pc.is_null(array) if array.null_count else None
        offsets, items = parts(array)
        pairs = jsontext.objects(["key", "value"], [token_of(items.field(0)), token_of(items.field(1))])
        return jsontext.listed(offsets, pairs, nulls)
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        text = jsontext.objects(names, [token_of(child) for child in array.flatten()])
        return pc.if_else(pc.is_null(array), _NULL, text) if array.null_count else text
    return jsontext.quoted(text_of(array))


def parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Offsets from zero, and the elements that they part; a NULL list has none."""
    lengths = pc.fill_null(_lengths(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if pa.types.is_map(array.type):
        entries = pa.struct([array.type.key_field, array.type.item_field])
        array = array.cast(pa.list_(pa.field("entries", entries, nullable=False)))
    return pa.array(offsets), array.flatten()


def _lengths(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        edges = array.offsets.to_numpy()
        lengths = pa.array(np.diff(edges), pa.int32())
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.int32()), lengths)
    return pc.list_value_length(array)


# ---------------------------------------------------------------- text to values


def value_of(text: pa.Array, type_: pa.DataType, *, own: bool = False) -> pa.Array:
    """The value of every text; raises `Unreadable`. `own` says that this module has spelled it."""
    if pa.types.is_nested(type_):
        text = pc.utf8_trim(text, " \t\r\n")
        try:
            jsontext.check(text.drop_null())
        except pa.ArrowInvalid as error:
            raise Unreadable([]) from error
        return value_of_token(text, type_, own=own)
    if own and isinstance(type_, pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, text)  # it was checked when it came here
    try:
        return _parse(text, type_)
    except (pa.ArrowInvalid, Refused) as error:
        raise Unreadable(_failing(text, lambda part: _parse(part, type_))) from error


def value_of_token(tokens: pa.Array, type_: pa.DataType, *, own: bool = False) -> pa.Array:
    """The value behind JSON that was checked; raises `Unreadable`. Our own JSON inside of JSON is in quotes."""
    if isinstance(type_, pa.JsonType) and not own:
        return value_of(pc.if_else(pc.equal(tokens, "null"), _NULL, tokens), type_)
    if not pa.types.is_nested(type_):
        return value_of(jsontext.unquoted(tokens), type_, own=own)
    nulls = pc.fill_null(pc.equal(tokens, "null"), True)
    kept = pc.if_else(nulls, _NULL, tokens)
    opening = "{" if pa.types.is_struct(type_) else "["
    if pc.all(pc.starts_with(kept, opening)).as_py() is False:
        raise Unreadable([])
    mask = nulls if pc.any(nulls).as_py() else None
    if pa.types.is_struct(type_):
        return _structs(kept, type_, mask, own=own)
    found = jsontext.elements(kept)
    counts = np.bincount(found.rows, minlength=len(tokens)) if len(found.rows) else np.zeros(len(tokens), np.int64)
    edges = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum(counts, out=edges[1:])
    if pa.types.is_map(type_):
        pair = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        pairs = _structs(found.values, pair, None, own=own)
        made = pa.MapArray.from_arrays(pa.array(edges), pairs.field(0), pairs.field(1), type=type_)
        return made if mask is None else pc.if_else(mask, pa.scalar(None, type_), made)
    values = value_of_token(found.values, type_.value_type, own=own)
    return pa.ListArray.from_arrays(pa.array(edges), values, type_, mask=mask)


def _structs(tokens: pa.Array, type_: pa.StructType, mask: pa.Array | None, *, own: bool) -> pa.Array:
    found = jsontext.members(tokens)
    strange = pc.invert(pc.is_in(found.names, pa.array([field.name for field in type_], pa.string())))
    if pc.any(strange).as_py():  # it would be left out
        raise Unreadable([int(found.rows[pc.index(strange, True).as_py()])])
    tokens_of = [member(found, len(tokens), field.name) for field in type_]
    children = [value_of_token(part, field.type, own=own) for part, field in zip(tokens_of, type_, strict=True)]
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)


def member(found: jsontext.Members, rows: int, name: str) -> pa.Array:
    """The token of one member in each object; NULL where an object has none. Twice is `Unreadable`."""
    places = np.flatnonzero(pc.equal(found.names, name).to_numpy(zero_copy_only=False))
    owners = found.rows[places]
    if len(np.unique(owners)) != len(owners):
        raise Unreadable([int(owners[np.flatnonzero(np.diff(owners) == 0)[0]])])
    index = np.full(rows, -1, np.int64)
    index[owners] = places
    return found.values.take(pa.array(index, mask=index < 0))


def _parse(text: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(type_):
        return text
    if isinstance(type_, pa.JsonType):
        jsontext.check(text.drop_null())
        return pa.ExtensionArray.from_storage(type_, text)
    if isinstance(type_, pa.UuidType):
        _require(pc.utf8_lower(text), UUID_TEXT)
        return text_uuid(pc.utf8_lower(text))[0]
    if pa.types.is_binary(type_):
        _require(text, BASE64_PATTERN)
        made = bytes_of_base64(text)
        if not base64_text(made).equals(text):
            raise Refused("bits beyond the last byte")
        return made
    if pa.types.is_integer(type_):
        _refuse(text, "[xX]")  # 0x10 is 16 to Arrow
        return text.cast(type_)
    if pa.types.is_boolean(type_):
        return _bool_of(text)
    if pa.types.is_floating(type_):
        return _float_of(text, type_)
    if pa.types.is_date32(type_):
        return text_date(text)
    if pa.types.is_time(type_):
        return _time_of(text, type_)
    if pa.types.is_timestamp(type_):
        return text_timestamp(text, type_)
    return text.cast(type_)


def _bool_of(text: pa.Array) -> pa.Array:
    """`t` and `f` too: what Postgres' own COPY writes."""
    for short, word in (("t", "true"), ("f", "false")):
        text = pc.if_else(pc.equal(text, short), word, text)
    return text.cast(pa.bool_())


def _float_of(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """The nearest value to a fraction; the same one as an integer. Arrow's of 1e400 is infinite, of 1e-400 zero."""
    value = text.cast(type_)
    beyond = pc.and_(pc.is_inf(value), pc.invert(pc.match_substring(text, "inf", ignore_case=True)))
    below = pc.and_(pc.equal(value, 0), pc.match_substring_regex(text, "^[^eE]*[1-9]"))
    if pc.any(pc.or_(beyond, below)).as_py():
        raise Refused("it is beyond the type")
    long = pc.match_substring_regex(text, f"^[+-]?[0-9]{{{_DIGITS[type_] + 1},}}$")
    if pc.any(long).as_py():
        whole, made = text.filter(long), value.filter(long).cast(pa.string())
        if not _digits(whole).equals(_digits(made)):
            raise Refused("an integer has more digits than the type")
    return value


def _digits(text: pa.Array) -> pa.Array:
    """Those that count, of a number."""
    bare = pc.replace_substring_regex(pc.replace_substring_regex(text, "[eE].*$", ""), "[^0-9]", "")
    return pc.utf8_trim(bare, "0")


def _require(text: pa.Array, pattern: str) -> None:
    if pc.all(pc.match_substring_regex(text, pattern)).as_py() is False:
        raise Refused(pattern)


def _refuse(text: pa.Array, pattern: str) -> None:
    if pc.any(pc.match_substring_regex(text, pattern)).as_py():
        raise Refused(pattern)


def _time_of(text: pa.Array, type_: pa.DataType) -> pa.Array:
    _require(text, "^[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?$")
    return text_time(text, type_)


def _failing(text: pa.Array, parse: Callable[[pa.Array], pa.Array], most: int = 3) -> list[int]:
    """The first places that fail, found by halves: a column is parsed a few dozen times at most."""
    places: list[int] = []
    pending = [(0, len(text))]
    while pending and len(places) < most:
        start, end = pending.pop()
        try:
            parse(text.slice(start, end - start))
        except (pa.ArrowInvalid, Refused):
            if end - start <= 1:
                places.append(start)
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
    return sorted(places)
