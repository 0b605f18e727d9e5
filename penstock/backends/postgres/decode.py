"""ADBC's batches made canonical: decimals, infinities, exact fields. Vectorised, per batch.

ADBC wraps `infinity` and timestamps near the year 294276 around to negative numbers; both are
found by exact comparison, and what is neither a sentinel nor a legal value is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.sql import KEYS_SHOWN
from penstock.errors import BeyondArrow, PenstockError, SourceError, SourceMoved
from penstock.schema import Column
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000
WRAPPED_DATE_PLUS = -(2**31) + EPOCH_DAYS - 1
WRAPPED_DATE_MINUS = -(2**31) + EPOCH_DAYS
WRAPPED_PLUS = -(2**63) + EPOCH_MICROS - 1
WRAPPED_MINUS = -(2**63) + EPOCH_MICROS
FIRST_TIMESTAMP = -210_866_803_200_000_000  # 4713-11-24 BC


def decode_batch(batch: pa.RecordBatch, columns: Sequence[Column], keys: Sequence[str]) -> pa.RecordBatch:
    """The batch with exactly the requested fields."""
    arrays = []
    for column in columns:
        array = batch.column(column.name)
        try:
            arrays.append(_decode(array, column.type))
        except _Beyond as beyond:
            raise _beyond(column, beyond, batch, keys) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise _unexpected(column, array.type) from error
        except pa.ArrowNotImplementedError as error:
            # Not a table that moved: another attempt would meet the same.
            raise _unreadable(column, array.type) from error
    schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Beyond(Exception):  # becomes a BeyondArrow where the column is known
    def __init__(self, why: str, rows: np.ndarray) -> None:
        super().__init__(why)
        self.why = why
        self.rows = rows


def _decode(array: pa.Array, want: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(want):
        return _decimals(array, want)
    if pa.types.is_date32(want):
        return _dates(array)
    if pa.types.is_timestamp(want):
        return _timestamps(array, want)
    if pa.types.is_list(want):
        return _lists(array, want)
    if array.type == want:
        return array
    if isinstance(want, pa.BaseExtensionType):
        storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        return pa.ExtensionArray.from_storage(want, storage.cast(want.storage_type))
    return array.cast(want)


def _decimals(array: pa.Array, want: pa.DataType) -> pa.Array:
    text = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    try:
        return pc.cast(text, want)
    except pa.ArrowInvalid:
        special = pc.fill_null(pc.match_substring_regex(text, "^-?(nan|inf|infinity)$", ignore_case=True), False)
        rows = np.flatnonzero(special.to_numpy(zero_copy_only=False))
        if rows.size == 0:
            raise
        raise _Beyond("it holds NaN or Infinity, which a decimal cannot", rows) from None


def _numbers(array: pa.Array, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The raw numbers and where they are not null (a null slot may hold anything)."""
    width = pa.int32() if dtype == "int32" else pa.int64()
    raw = array.view(width)
    valid = pc.is_valid(raw).to_numpy(zero_copy_only=False)
    return pc.fill_null(raw, 0).to_numpy(zero_copy_only=False), valid


def _dates(array: pa.Array) -> pa.Array:
    numbers, valid = _numbers(array, "int32")
    plus, minus = numbers == WRAPPED_DATE_PLUS, numbers == WRAPPED_DATE_MINUS
    if not (plus.any() or minus.any()):
        return array
    fixed = np.where(plus, DATE_INFINITY, np.where(minus, -DATE_INFINITY, numbers)).astype("int32")
    return pa.array(fixed, pa.int32(), mask=~valid).view(pa.date32())


def _timestamps(array: pa.Array, want: pa.DataType) -> pa.Array:
    if array.type != want:
        raise pa.ArrowTypeError(f"{array.type} is not {want}")
    numbers, valid = _numbers(array, "int64")
    low = numbers < FIRST_TIMESTAMP
    if not low.any():
        return array
    plus, minus = numbers == WRAPPED_PLUS, numbers == WRAPPED_MINUS
    wrapped = low & ~plus & ~minus
    if wrapped.any():
        raise _Beyond("a timestamp lies after 294247-01-10, beyond 64 bits of microseconds", np.flatnonzero(wrapped))
    fixed = np.where(plus, TIMESTAMP_INFINITY, np.where(minus, -TIMESTAMP_INFINITY, numbers))
    return pa.array(fixed, pa.int64(), mask=~valid).view(want)


def _lists(array: pa.ListArray, want: pa.ListType) -> pa.Array:
    offsets = list_offsets(array)
    try:
        values = _decode(array.flatten(), want.value_type)
    except _Beyond as beyond:
        raise _Beyond(beyond.why, rows_of_elements(offsets, beyond.rows)) from None
    return made_list(array, offsets, values, want)


def list_offsets(array: pa.ListArray) -> np.ndarray:
    """Where each list begins in `array.flatten()`.

    A slice's own offsets begin elsewhere, and under a NULL they may hold anything.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths))).astype("int32")


def rows_of_elements(offsets: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The rows whose lists hold these elements."""
    return np.unique(np.searchsorted(offsets[1:], elements, side="right"))


def made_list(array: pa.ListArray, offsets: np.ndarray, values: pa.Array, type_: pa.ListType) -> pa.Array:
    """`array` with other `values` in it."""
    nulls = pc.is_null(array) if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=type_, mask=nulls)


def row_keys(batch: pa.RecordBatch, rows: Sequence[int], keys: Sequence[str]) -> tuple[str, ...]:
    """The keys of some rows, for an error: `id=7, region='eu'`."""
    known = [name for name in keys if name in batch.schema.names]
    if not known:
        return ()
    return tuple(", ".join(f"{name}={_shown(batch, name, int(row))}" for name in known) for row in rows[:KEYS_SHOWN])


def _shown(batch: pa.RecordBatch, name: str, row: int) -> str:
    scalar = batch.column(name)[row]
    if not scalar.is_valid:
        return "NULL"
    if pa.types.is_string(scalar.type):
        text: str = scalar.as_py()
        return "'" + text.replace("'", "''") + "'"
    try:
        return str(scalar.as_py())
    except (ValueError, OverflowError):  # a date beyond Python's
        return str(getattr(scalar, "value", "?"))


def _beyond(column: Column, beyond: _Beyond, batch: pa.RecordBatch, keys: Sequence[str]) -> BeyondArrow:
    return BeyondArrow(
        f"column {column.name!r} holds a value that {column.type} cannot carry",
        why=beyond.why,
        remedy=f'columns.{column.name} = "text"',
        keys=row_keys(batch, [int(row) for row in beyond.rows], keys),
        columns=(column.name,),
    )


def _unexpected(column: Column, found: pa.DataType) -> PenstockError:
    return SourceMoved(
        f"column {column.name!r} is not what it was when the run was planned",
        why=f"{column.type} was planned, {found} arrived",
        remedy="run it again",
    )


def _unreadable(column: Column, found: pa.DataType) -> PenstockError:
    return SourceError(
        f"column {column.name!r} cannot be read as {column.type}",
        why=f"the driver gives {found}",
        remedy=f'columns.{column.name} = "text"',
    )
