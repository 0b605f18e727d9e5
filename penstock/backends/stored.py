"""What a staging file holds for each canonical type: never a neighbouring value.

Parquet has no word for some of them; what it would change is refused before a file is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, Unsupported
from penstock.schema import Column
from penstock.schema.columns import TIMESTAMP_INFINITY


def stored_type(type_: pa.DataType) -> pa.DataType | None:
    """The type a Parquet file holds for a canonical type, None where it cannot hold it exactly."""
    if pa.types.is_timestamp(type_):
        # Parquet has no seconds; infinity would overflow on the way to a finer unit.
        return pa.timestamp("us", type_.tz) if type_.unit in {"s", "ms"} else type_
    if pa.types.is_decimal128(type_):
        return type_ if 0 <= type_.scale <= type_.precision else None
    if pa.types.is_list(type_):
        child = stored_type(type_.value_type)
        return None if child is None else pa.list_(child)
    if pa.types.is_map(type_):
        key, value = stored_type(type_.key_type), stored_type(type_.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if pa.types.is_struct(type_):
        fields = [(field.name, stored_type(field.type)) for field in type_]
        return pa.struct(fields) if fields and all(child is not None for _, child in fields) else None
    return type_ if type_ in _AS_THEY_ARE else None


_AS_THEY_ARE = frozenset(
    {
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.uuid(), pa.json_()),
        *(pa.date32(), pa.time64("us"), pa.time64("ns")),
    }
)


def stored_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a staging file; refuses what Parquet would change (durations, intervals)."""
    fields = []
    for column in columns:
        stored = stored_type(column.type)
        if stored is None:
            raise Unsupported(
                f"column {column.name!r} cannot be staged exactly",
                why=f"Parquet does not hold {column.type} as it is",
                remedy=f'columns.{column.name} = "text"',
            )
        fields.append(pa.field(column.name, stored))
    return pa.schema(fields)


def to_stored(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array as the file holds it."""
    if array.type == type_:
        return array
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(type_):
        return _finer(array, type_)
    return array.cast(type_)


def _finer(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Seconds or milliseconds as microseconds, infinities staying what they are."""
    numbers = array.cast(pa.int64())
    infinite = pc.equal(pc.abs(numbers), TIMESTAMP_INFINITY)
    factor = 1_000_000 if array.type.unit == "s" else 1_000
    try:
        scaled = pc.multiply_checked(pc.if_else(infinite, 0, numbers), factor)
    except pa.ArrowInvalid as error:
        raise DataError(
            "a timestamp is out of range",
            why=f"{array.type} reaches further than {type_}",
            kept="nothing was committed",
        ) from error
    return pc.if_else(infinite, numbers, scaled).cast(type_)
