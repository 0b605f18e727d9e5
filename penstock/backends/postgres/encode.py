"""Canonical batches as COPY BINARY takes them: the numbers the server stores, under its own names.

An int64 of microseconds since 2000 is a timestamp there, infinities included. The server's own
receive functions check every value. Vectorised, per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.postgres.decode import (
    EPOCH_DAYS,
    EPOCH_MICROS,
    FIRST_TIMESTAMP,
    list_offsets,
    row_keys,
    rows_of_elements,
)
from penstock.backends.postgres.spelling import Spelling
from penstock.backends.postgres.wireforms import decimals, lists
from penstock.errors import DataError, TargetError
from penstock.schema import Column
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

_SMALLER = {
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_OF_ANY_LENGTH = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.json_()})
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Wire:
    """A column on its way into staging."""

    column: Column
    staged: str  # the staging column's type, as the server spells it

    @property
    def fixed(self) -> bool:
        """Whether every value has as many bytes."""
        return self.column.type not in _OF_ANY_LENGTH and not pa.types.is_list(self.column.type)


class Unfit(Exception):
    """Some rows hold a value that the server cannot."""

    def __init__(self, why: str, rows: np.ndarray) -> None:
        super().__init__(why)
        self.why = why
        self.rows = rows


def encode_batch(batch: pa.RecordBatch, wires: Sequence[Wire], keys: Sequence[str], place: str) -> list[pa.Array]:
    """The columns of `wires` as they are copied, found by name."""
    arrays: list[pa.Array] = []
    for wire in wires:
        name = wire.column.name
        index = batch.schema.get_field_index(name)
        if index < 0 or batch.schema.field(index).type != wire.column.type:
            raise TargetError(
                f"a batch does not have column {name!r} as planned",
                why=f"{wire.column.type} was planned, {batch.schema.field(index).type if index >= 0 else 'none'} came",
                place=place,
            )
        try:
            arrays.append(_encode(batch.column(index), wire.column.type, wire.staged))
        except Unfit as unfit:
            raise DataError(
                f"column {name!r} holds a value that the target cannot",
                why=unfit.why,
                kept="nothing was committed",
                remedy="clean it in the source's query or with a transform",
                place=place,
                keys=row_keys(batch, [int(row) for row in unfit.rows], keys),
            ) from None
    return arrays


def _encode(array: pa.Array, type_: pa.DataType, staged: str) -> pa.Array:
    if pa.types.is_list(type_):
        return _list(array, type_, staged)
    if pa.types.is_timestamp(type_):
        return _timestamp(array, type_)
    if pa.types.is_date32(type_):
        return _date(array)
    if pa.types.is_time(type_):
        return _time(array, type_)
    if isinstance(type_, pa.BaseExtensionType):
        array = array.storage
    if type_ in _SMALLER:
        array = array.cast(_SMALLER[type_])
    if pa.types.is_decimal(array.type):
        return decimals(array)
    if pa.types.is_string(array.type):
        _refuse_zero_bytes(array)
        if staged == "jsonb":
            # The first byte of jsonb's binary form is its version.
            return pc.binary_join_element_wise("\x01", array, "")
    return array


def _refuse_zero_bytes(array: pa.Array) -> None:
    found = pc.match_substring(array, "\x00")
    if pc.any(found, min_count=0).as_py():
        rows = np.flatnonzero(pc.fill_null(found, False).to_numpy(zero_copy_only=False))
        raise Unfit("a text holds a zero byte, which Postgres cannot store", rows)


def _masked(numbers: np.ndarray, type_: pa.DataType, valid: np.ndarray) -> pa.Array:
    return pa.array(numbers, type_, mask=None if valid.all() else ~valid)


def _numbers(array: pa.Array, width: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
    raw = array.view(width)
    valid = pc.is_valid(raw).to_numpy(zero_copy_only=False)
    return (pc.fill_null(raw, 0) if raw.null_count else raw).to_numpy(zero_copy_only=False), valid


def _timestamp(array: pa.Array, type_: pa.DataType) -> pa.Array:
    numbers, valid = _numbers(array, pa.int64())
    plus, minus = numbers == TIMESTAMP_INFINITY, numbers == -TIMESTAMP_INFINITY
    finite = np.where(plus | minus, 0, numbers)
    if type_.unit == "ns":
        _refuse_rest(finite)
        micros = finite // 1000
    else:
        factor = _PER_UNIT[type_.unit]
        limit = TIMESTAMP_INFINITY // factor
        beyond = (finite > limit) | (finite < -limit)
        if beyond.any():
            raise Unfit("a timestamp lies outside the server's range", np.flatnonzero(beyond))
        micros = finite * factor
    low = micros < FIRST_TIMESTAMP
    if low.any():
        raise Unfit("a timestamp lies before 4713-11-24 BC, the server's first", np.flatnonzero(low))
    fixed = np.where(plus, 2**63 - 1, np.where(minus, -(2**63), micros - EPOCH_MICROS))
    return _masked(fixed.astype("int64"), pa.int64(), valid)


def _refuse_rest(numbers: np.ndarray) -> None:
    rest = numbers % 1000 != 0
    if rest.any():
        raise Unfit("a time has nanoseconds, the server keeps microseconds", np.flatnonzero(rest))


def _date(array: pa.Array) -> pa.Array:
    numbers, valid = _numbers(array, pa.int32())
    plus, minus = numbers == DATE_INFINITY, numbers == -DATE_INFINITY
    days = numbers.astype("int64") - EPOCH_DAYS
    low = (days <= -(2**31)) & ~minus  # the lowest number is the server's -infinity
    if low.any():
        raise Unfit("a date lies before 4713-11-24 BC, the server's first", np.flatnonzero(low))
    fixed = np.where(plus, 2**31 - 1, np.where(minus, -(2**31), days))
    return _masked(fixed.astype("int32"), pa.int32(), valid)


def _time(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if type_.unit != "ns":
        return array.view(pa.int64())
    numbers, valid = _numbers(array, pa.int64())
    _refuse_rest(numbers)
    return _masked(numbers // 1000, pa.int64(), valid)


def _list(array: pa.ListArray, type_: pa.ListType, staged: str) -> pa.Array:
    offsets = list_offsets(array)
    element = Spelling.parse(staged.removesuffix("[]"))
    try:
        values = _encode(array.flatten(), type_.value_type, element.base)
    except Unfit as unfit:
        raise Unfit(unfit.why, rows_of_elements(offsets, unfit.rows)) from None
    return lists(array, offsets, values, element.base)
