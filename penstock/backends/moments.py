"""Spark's moments as the wall clock of UTC, in a session of any time zone.

A cast would give the wall clock of the session, which may be the user's own: shifted, and with the
two hours of an autumn night fallen together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def without_zone(type_: DataType) -> DataType:
    """The same type with every moment as a timestamp without a zone."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType, TimestampNTZType, TimestampType

    if isinstance(type_, TimestampType):
        return TimestampNTZType()
    if isinstance(type_, ArrayType):
        return ArrayType(without_zone(type_.elementType), type_.containsNull)
    if isinstance(type_, MapType):
        return MapType(without_zone(type_.keyType), without_zone(type_.valueType), type_.valueContainsNull)
    if isinstance(type_, StructType):
        return StructType([StructField(one.name, without_zone(one.dataType), one.nullable) for one in type_.fields])
    return type_


def utc_clock(column: Column, type_: DataType) -> Column:
    """A column of `type_` with every moment in it as the wall clock of UTC: then it is of `without_zone(type_)`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if without_zone(type_) == type_:
        return column
    if isinstance(type_, ArrayType):
        return f.transform(column, lambda one: utc_clock(one, type_.elementType))
    if isinstance(type_, MapType):
        values = f.transform_values(column, lambda _, value: utc_clock(value, type_.valueType))
        return f.transform_keys(values, lambda key, _: utc_clock(key, type_.keyType))
    if isinstance(type_, StructType):
        fields = [utc_clock(column.getField(one.name), one.dataType).alias(one.name) for one in type_.fields]
        return f.when(column.isNotNull(), f.struct(*fields))
    return clock_at(f.unix_micros(column))


def clock_at(micros: Column) -> Column:
    """The timestamp without a zone that is so many microseconds after 1970."""
    from pyspark.sql import functions as f

    return f.expr("timestamp_ntz'1970-01-01 00:00:00'") + f.expr("interval '0.000001' second") * micros
