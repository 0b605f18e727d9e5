"""What Postgres prints, read back as canonical values: the way of changes, as `decode.py` is that of rows.

The server prints under our own settings (`connect.SETTINGS`): dates are ISO, times UTC, floats shortest-exact, bytes
hex. What Arrow cannot carry is `BeyondArrow`, with the keys of its rows, as on the way of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import text_time, text_uuid
from penstock.backends.calendars import text_date, text_timestamp
from penstock.backends.changes import ChangedColumn, TableVersion
from penstock.backends.postgres.decode import row_keys
from penstock.backends.postgres.types import BACKEND
from penstock.errors import COPY_TABLE_AGAIN, BeyondArrow, SourceError
from penstock.schema import Column, Schema

_SPECIAL = "^-?(NaN|Infinity)$"
_QUOTE, _ESCAPE, _OPEN, _CLOSE, _COMMA = (ord(letter) for letter in '"\\{},')


class _Beyond(Exception):  # becomes a BeyondArrow where the column is known
    def __init__(self, why: str, rows: np.ndarray) -> None:
        super().__init__(why)
        self.why = why
        self.rows = rows


def values(text: pa.Array, column: Column, rows: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> pa.Array:
    """The texts of a column as `column.type`; `rows` and `keys` name those that do not go into it."""
    try:
        return _values(spelled(text, column.native), column.type)
    except _Beyond as beyond:
        raise BeyondArrow(
            f"column {column.name!r} holds a value that {column.type} cannot carry",
            why=beyond.why,
            remedy=f'columns.{column.name} = "text"',
            keys=row_keys(rows, [int(row) for row in beyond.rows], keys),
            columns=(column.name,),
        ) from None
    except (pa.ArrowInvalid, ValueError) as error:
        raise SourceError(
            f"the log has a text for column {column.name!r} that is no {column.describe()}",
            why=f"it cannot be read as {column.type}",
            remedy=COPY_TABLE_AGAIN,
        ) from error


def read_values(version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
    """Columns of texts, named as in `schema`, as its types."""
    keys = [column.name for column in version.columns if column.key]
    return pa.table(
        {
            name: values(rows[name].combine_chunks(), schema[name], rows, keys) if name in schema else rows[name]
            for name in rows.column_names
        }
    )


def read_keys(column: ChangedColumn, text: pa.Array) -> pa.Array | None:
    """Texts of a key column that are equal where the values are; None where the server's own rules are needed."""
    spelling = column.native.removeprefix(f"{BACKEND}:")
    return None if spelling.rpartition(".")[2] == "citext" else key_texts(spelling, text)


def key_texts(spelling: str, text: pa.Array) -> pa.Array:
    """The texts of a key column as the server compares them: 1.0 is 1.00, 0 is -0, and a char's padding is nothing."""
    kind = spelling.partition("(")[0]
    if kind == "numeric":
        text = pc.replace_substring_regex(text, r"^(-?[0-9]*\.[0-9]*?)0+$", r"\1")
        text = pc.replace_substring_regex(text, r"\.$", "")
    if kind in ("numeric", "real", "double precision"):
        return pc.replace_substring_regex(text, "^-0$", "0")
    if kind == "character":
        return pc.utf8_rtrim(text, " ")
    return text


def spelled(text: pa.Array, native: str) -> pa.Array:
    """The texts as a cast to text gives them, which is how rows are copied: some types print themselves otherwise."""
    kind = native.removeprefix(f"{BACKEND}:")
    if kind == "money":
        return pc.replace_substring_regex(text, "[$,]", "")
    if kind == "inet":
        mask = pc.if_else(pc.match_substring(text, ":"), "/128", "/32").cast(text.type)
        whole = pc.binary_join_element_wise(text, mask, pa.scalar("", text.type))
        return pc.if_else(pc.match_substring(text, "/"), text, whole)
    return text


def _values(text: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(type_):
        return text.cast(type_)
    if isinstance(type_, pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, text.cast(pa.string()))
    if pa.types.is_list(type_):
        return _lists(text, type_)
    if pa.types.is_decimal(type_):
        return _decimals(text, type_)
    for known, parse in _PARSERS:
        if known(type_):
            return parse(text.cast(pa.string()), type_)
    return text.cast(type_)  # integers, and floats: Arrow reads what the server prints, NaN and Infinity too


def _decimals(text: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return text.cast(type_)
    except pa.ArrowInvalid:
        special = pc.fill_null(pc.match_substring_regex(text, _SPECIAL), False)
        rows = np.flatnonzero(special.to_numpy(zero_copy_only=False))
        if rows.size == 0:
            raise
        raise _Beyond("it holds NaN or Infinity, which a decimal cannot", rows) from None


def _bools(text: pa.Array, _: pa.DataType) -> pa.Array:
    """`t` of the log; `true` of a copy in a log, which is a cast to text."""
    return pc.starts_with(text, "t")


def _bytes(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """`\\x` and two hex digits per byte."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    letters = np.frombuffer(text.buffers()[2] or b"", np.uint8)[int(offsets[0]) : int(offsets[-1])]
    lengths = np.diff(offsets)
    kept = np.ones(letters.size, bool)
    heads = (offsets[:-1] - offsets[0])[lengths > 0]
    kept[heads] = kept[heads + 1] = False
    digits = _HEX[letters[kept]].reshape(-1, 2)
    packed = (digits[:, 0] << 4) | digits[:, 1]
    ends = np.zeros(len(text) + 1, np.int32)
    np.cumsum(np.maximum(lengths - 2, 0) // 2, out=ends[1:])
    valid = text.is_valid().to_numpy(zero_copy_only=False)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if text.null_count else None
    return pa.Array.from_buffers(type_, len(text), [bitmap, pa.py_buffer(ends), pa.py_buffer(packed)], text.null_count)


_HEX = np.zeros(256, np.uint8)
for _value, _letter in enumerate(b"0123456789abcdef"):
    _HEX[_letter] = _value


def _timestamps(text: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return text_timestamp(text, type_)
    except pa.ArrowInvalid:
        years = pc.cast(pc.struct_field(pc.extract_regex(text, "^(?P<year>[0-9]+)-"), 0), pa.int64())
        late = np.flatnonzero(pc.fill_null(pc.greater(years, 294_246), False).to_numpy(zero_copy_only=False))
        if late.size == 0:
            raise
        raise _Beyond("a timestamp lies after 294247-01-10, beyond 64 bits of microseconds", late) from None


_PARSERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]], ...] = (
    (pa.types.is_boolean, _bools),
    (pa.types.is_binary, _bytes),
    (pa.types.is_date32, lambda text, _: text_date(text)),
    (pa.types.is_time, text_time),
    (pa.types.is_timestamp, _timestamps),
    (lambda type_: isinstance(type_, pa.UuidType), lambda text, _: text_uuid(text)[0]),
)


# ---------------------------------------------------------------- arrays


def _lists(text: pa.Array, type_: pa.ListType) -> pa.Array:
    """`{1,NULL,"a, \\"b\\""}`: elements cut at the commas that stand outside of quotes, all rows at once."""
    text = text.cast(pa.large_string())
    shaped = pc.fill_null(pc.match_substring_regex(text, r"^(\{\{|\[)"), False)
    odd = np.flatnonzero(shaped.to_numpy(zero_copy_only=False))
    if odd.size:
        raise _Beyond("it has more than one dimension, or its lower bound is not 1", odd)
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[int(offsets[0]) : int(offsets[-1])]
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    lengths = ends - starts
    escaped = _escaped(data)
    quotes = (data == _QUOTE) & ~escaped
    inside = np.cumsum(quotes) % 2 == 1  # every row closes its quotes, so that each begins outside
    commas = np.flatnonzero((data == _COMMA) & ~inside)
    filled = lengths > 2  # not NULL, not {}
    # Each element begins behind its row's brace or a comma, and ends before the next one or the row's end.
    firsts = np.sort(np.concatenate([starts[filled], commas])) + 1
    lasts = np.sort(np.concatenate([commas, ends[filled] - 1]))
    quoted = data[firsts] == _QUOTE if firsts.size else np.zeros(0, bool)
    kept = ~((data == _ESCAPE) & ~escaped) & ~quotes
    running = np.concatenate([[0], np.cumsum(kept)])
    element_lengths = running[lasts] - running[firsts]
    within = np.zeros(data.size + 1, np.int64)
    np.add.at(within, firsts, 1)
    np.add.at(within, lasts, -1)
    letters = data[kept & (np.cumsum(within)[:-1] > 0)]
    edges = np.concatenate([[0], np.cumsum(element_lengths)])
    flat = pa.Array.from_buffers(pa.large_string(), firsts.size, [None, pa.py_buffer(edges), pa.py_buffer(letters)])
    missing = pc.and_(pc.equal(flat, "NULL"), pa.array(~quoted))
    elements = pc.if_else(missing, pa.scalar(None, pa.large_string()), flat)
    counts = np.zeros(len(text), np.int64)
    np.add.at(counts, np.searchsorted(ends, firsts, side="right"), 1)
    places = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    try:
        made = _values(elements, type_.value_type)
    except _Beyond as beyond:
        rows = np.unique(np.searchsorted(places[1:], beyond.rows, side="right"))
        raise _Beyond(beyond.why, rows) from None
    mask = pc.is_null(text) if text.null_count else None
    return pa.ListArray.from_arrays(pa.array(places), made, type_, mask=mask)


def _escaped(data: np.ndarray) -> np.ndarray:
    """Which bytes stand behind a backslash that is not itself escaped."""
    slashes = data == _ESCAPE
    if not slashes.any():
        return np.zeros(data.size, bool)
    numbers = np.arange(data.size)
    # How many backslashes stand right before each byte: an odd number escapes it.
    last_other = np.maximum.accumulate(np.where(slashes, -1, numbers))
    before = np.concatenate([[0], (numbers - last_other)[:-1]])
    found: np.ndarray = before % 2 == 1
    return found
