"""JSON text of whole columns, and its parts: built and taken apart without looking at rows one by one.

Taking apart keeps every token as it is written: `1.10` stays `1.10`, and a number of 23 digits is
not rounded. The syntax itself is checked by Arrow's JSON parser before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.backends.files.bytetext import Bytes, Numbers, build, gather, spans

_QUOTE, _BACKSLASH, _COMMA, _COLON = (ord(mark) for mark in '"\\,:')
_OPENS, _CLOSES = (ord("{"), ord("[")), (ord("}"), ord("]"))
_SPACE = np.zeros(256, np.bool_)
_SPACE[np.frombuffer(b" \t\r\n", np.uint8)] = True
_STRING = r'"(\\.|[^"\\])*"'
_NO_NUMBER = "NaN|Inf"
_CONTROLS = "[\\x00-\\x1f]"
BLOCK = 1 << 20  # bytes that are taken apart at a time: what it needs beside them is many times as much


# ---------------------------------------------------------------- building


def quoted(text: pa.Array) -> pa.Array:
    """Texts as JSON strings; NULL stays NULL."""
    if pc.any(pc.match_substring_regex(text, '[\\\\"\\x00-\\x1f]')).as_py():
        text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(text, _CONTROLS)).as_py():
            for code in range(0x20):
                text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise('"', text, '"', "")


def listed(offsets: pa.Array, items: pa.Array, nulls: pa.Array | None) -> pa.Array:
    """JSON arrays out of the texts of their elements; a NULL element is `null`."""
    filled = pc.fill_null(items, "null")
    lists = pa.ListArray.from_arrays(offsets, filled)
    text = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return text if nulls is None else pc.if_else(nulls, pa.scalar(None, pa.string()), text)


def objects(names: list[str], members: list[pa.Array]) -> pa.Array:
    """JSON objects out of the texts of their members; NULL is `null`."""
    parts: list[pa.Array | str] = []
    for place, (name, texts) in enumerate(zip(names, members, strict=True)):
        key = quoted(pa.array([name]))[0].as_py()
        parts += [f"{'{' if place == 0 else ','}{key}:", pc.fill_null(texts, "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


# ---------------------------------------------------------------- taking apart


@dataclass(frozen=True, slots=True)
class Members:
    """Parts of JSON containers: of which container, under which name, and the text of each."""

    rows: Numbers
    names: pa.Array | None  # of objects: as they stand in the text, without their quotes
    values: pa.Array


def elements(texts: pa.Array) -> Members:
    """The elements of JSON arrays."""
    data, ends = _joined(texts)
    places = _Places(data, ends)
    starts, stops, rows = places.pieces()
    starts, stops = _trimmed(data, starts, stops)
    keep = stops > starts  # `[]` has one empty piece
    starts, stops, rows = starts[keep], stops[keep], rows[keep]
    return Members(rows, None, _texts(data, starts, stops))


def members(texts: pa.Array) -> Members:
    """The members of JSON objects."""
    data, ends = _joined(texts)
    places = _Places(data, ends)
    starts, stops, rows = places.pieces()
    starts, stops = _trimmed(data, starts, stops)
    keep = stops > starts
    starts, stops, rows = starts[keep], stops[keep], rows[keep]
    colons = places.colons
    # The first colon at or after the start of a piece parts its name from its value.
    middle = colons[np.searchsorted(colons, starts)] if len(starts) else starts
    name_starts, name_stops = _trimmed(data, starts, middle)
    value_starts, value_stops = _trimmed(data, middle + 1, stops)
    names = unquoted(_texts(data, name_starts, name_stops))
    return Members(rows, names, _texts(data, value_starts, value_stops))


def unquoted(tokens: pa.Array) -> pa.Array:
    """JSON strings as the texts they stand for; other tokens as they are, `null` as NULL."""
    tokens = pc.if_else(pc.equal(tokens, "null"), pa.scalar(None, pa.string()), tokens)
    strings = pc.fill_null(pc.starts_with(tokens, '"'), False)
    if not pc.any(strings).as_py():
        return tokens
    bare = pc.utf8_slice_codeunits(tokens, 1, -1)
    plain = pc.if_else(strings, bare, tokens)
    escaped = pc.and_(strings, pc.fill_null(pc.match_substring(tokens, "\\"), False))
    if pc.any(escaped).as_py():
        plain = pc.replace_with_mask(plain, escaped, _unescaped(tokens.filter(escaped)))
    return plain


def _unescaped(strings: pa.Array) -> pa.Array:
    lines = pc.binary_join_element_wise('{"v":', strings, "}\n", "")
    return parsed(lines, pa.schema([pa.field("v", pa.string())])).column("v").combine_chunks()


def check(texts: pa.Array) -> None:
    """Raise `ArrowInvalid` where a text is not JSON, or not one value of it."""
    # `1, "b": 2` is right inside of an object, `1, 2` inside of a list; only one value is right in both.
    for opening, closing in ('{"v":', "}\n"), ('{"v":[', "]}\n"):
        if len(texts) and parsed(pc.binary_join_element_wise(opening, texts, closing, "")).num_rows != len(texts):
            raise pa.ArrowInvalid("a text is several values")
    # Arrow takes these for numbers, JSON has none such.
    strange = texts.filter(pc.match_substring_regex(texts, _NO_NUMBER))
    if pc.any(pc.match_substring_regex(pc.replace_substring_regex(strange, _STRING, ""), _NO_NUMBER)).as_py():
        raise pa.ArrowInvalid("a text holds a number that is none")


def parsed(lines: pa.Array, schema: pa.Schema | None = None) -> pa.Table:
    """Objects by Arrow's own parser; fields that are not in `schema` are only checked."""
    data, starts, lengths = spans(lines)
    buffer = gather(data, starts, lengths).tobytes()
    options = pj.ParseOptions(
        explicit_schema=schema or pa.schema([]), newlines_in_values=False, unexpected_field_behavior="ignore"
    )
    read = pj.ReadOptions(use_threads=False, block_size=max(len(buffer) + 1, 64))
    return pj.read_json(pa.BufferReader(buffer), read_options=read, parse_options=options)


def _joined(texts: pa.Array) -> tuple[Bytes, Numbers]:
    """All containers one after the other, and where each ends."""
    data, starts, lengths = spans(texts)
    return gather(data, starts, lengths), np.cumsum(lengths)


class _Places:
    """The marks of JSON containers that lie one after the other: brackets, commas and colons outside of strings."""

    def __init__(self, data: Bytes, ends: Numbers) -> None:
        outside = _outside_strings(data)
        opens = outside & ((data == _OPENS[0]) | (data == _OPENS[1]))
        closes = outside & ((data == _CLOSES[0]) | (data == _CLOSES[1]))
        depth = np.cumsum(opens.astype(np.int32) - closes.astype(np.int32))
        # Every container opens at depth 1; what belongs to it lies there and no deeper.
        top = depth == 1
        self._first = np.flatnonzero(opens & top)
        self._last = np.flatnonzero(closes & (depth == 0))
        self._commas = np.flatnonzero(outside & top & (data == _COMMA))
        self.colons = np.flatnonzero(outside & top & (data == _COLON))
        self._ends = ends
        self._require_one()

    def _require_one(self) -> None:
        """Every text is one container: what begins and ends elsewhere would be taken for a part of its neighbour."""
        bounds = np.unique(np.concatenate([[0], self._ends]))  # a NULL has no length
        if not (np.array_equal(self._first, bounds[:-1]) and np.array_equal(self._last, bounds[1:] - 1)):
            raise pa.ArrowInvalid("a text is not one container")

    def pieces(self) -> tuple[Numbers, Numbers, Numbers]:
        """Where the pieces between the marks start and stop, and which container each is of."""
        starts = np.sort(np.concatenate([self._first, self._commas])) + 1
        stops = np.sort(np.concatenate([self._commas, self._last]))
        rows = np.searchsorted(self._ends, starts - 1, side="right")
        return starts, stops, rows


def _outside_strings(data: Bytes) -> npt.NDArray[np.bool_]:
    quotes = data == _QUOTE
    slashes = data == _BACKSLASH
    if slashes.any():
        # A quote is escaped if the run of backslashes before it has odd length.
        places = np.arange(len(data), dtype=np.int64)
        last_other = np.maximum.accumulate(np.where(slashes, -1, places))
        run = np.zeros(len(data), np.int64)
        run[1:] = places[1:] - 1 - last_other[:-1]
        quotes &= run % 2 == 0
    inside = np.cumsum(quotes, dtype=np.int32) % 2 == 1
    return np.asarray(~inside & ~quotes)


def _trimmed(data: Bytes, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
    """The same spans without white space at either end."""
    starts, stops = starts.copy(), stops.copy()
    if not len(data):
        return starts, stops
    while (blank := (starts < stops) & _SPACE[data[np.minimum(starts, len(data) - 1)]]).any():
        starts[blank] += 1
    while (blank := (starts < stops) & _SPACE[data[np.maximum(stops - 1, 0)]]).any():
        stops[blank] -= 1
    return starts, stops


def _texts(data: Bytes, starts: Numbers, stops: Numbers) -> pa.Array:
    lengths = stops - starts
    return build(gather(data, starts, lengths), lengths, pa.string())
