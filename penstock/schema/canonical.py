"""Arrow types from anywhere and the canonical ones that hold their values."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.schema.words import MAX_PRECISION, spell_type


def canonical_type(type_: pa.DataType, *, storage: bool = False) -> pa.DataType | None:
    """The canonical type that holds every value of an Arrow type as it is; None where there is none.

    With `storage`, what somebody has called by a name of their own counts as what it is kept as.
    """
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return canonical_type(type_.value_type, storage=storage)
    if pa.types.is_null(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_float16(type_):
        return pa.float32()
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_time32(type_):
        return pa.time64("us")
    if pa.types.is_timestamp(type_):
        return pa.timestamp(type_.unit, None if type_.tz is None else "UTC")  # the same instants
    if pa.types.is_decimal(type_):
        precision, scale = type_.precision, type_.scale
        if scale < 0:
            precision, scale = precision - scale, 0
        precision = max(precision, scale)
        return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else None
    if _is_list(type_):
        child = canonical_type(type_.value_type, storage=storage)
        return None if child is None else pa.list_(child)
    if pa.types.is_map(type_):
        key, value = canonical_type(type_.key_type, storage=storage), canonical_type(type_.item_type, storage=storage)
        return None if key is None or value is None else pa.map_(key, value)
    if pa.types.is_struct(type_):
        fields = [(field.name, canonical_type(field.type, storage=storage)) for field in type_]
        return pa.struct(fields) if fields and all(child is not None for _, child in fields) else None
    try:
        spell_type(type_)
    except ConfigError:
        own = storage and isinstance(type_, pa.BaseExtensionType)
        return canonical_type(type_.storage_type, storage=True) if own else None
    return type_


def _is_list(type_: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    views = (pa.types.is_list_view, pa.types.is_large_list_view)
    return any(test(type_) for test in (*tests, *views))
