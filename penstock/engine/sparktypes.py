"""Canonical columns as Spark types and back, with what Spark has no word for as a tag.

The tag rides in `StructField.metadata`: it survives select, alias, join, union and group-by keys,
and is gone after an expression, where the result is a plain value of its Spark type. Never turns
a value into a neighbouring one: what Spark cannot hold exactly is refused before a row moves.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.backends.moments import clock_at
from penstock.errors import PlanRefused, TransformError
from penstock.schema import Column, Logical, Schema
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY, text_kind

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

TAG = "penstock"
UTC = "UTC"
UINT64_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Tag:
    """What a column was before Spark: enough to make it that again."""

    native: str
    logical: Logical | None
    type: pa.DataType

    def to_json(self) -> str:
        logical = None if self.logical is None else self.logical.to_record()
        return json.dumps({"native": self.native, "logical": logical, "arrow": _dump(self.type)})

    @staticmethod
    def from_json(text: str) -> Tag:
        record = json.loads(text)
        logical = None if record["logical"] is None else Logical.from_record(record["logical"])
        return Tag(record["native"], logical, _load(record["arrow"]))


def _dump(type_: pa.DataType) -> str:
    return base64.b64encode(pa.schema([pa.field("x", type_)]).serialize()).decode()


def _load(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type


# ---------------------------------------------------------------- canonical → Spark


def carried(type_: pa.DataType) -> pa.DataType | None:
    """The Arrow type in which a canonical type travels through Spark; None where it cannot."""
    if type_ == pa.time64("ns"):
        return None  # as text it would look like a time in microseconds, to which targets round it
    if isinstance(type_, (pa.UuidType, pa.JsonType)) or pa.types.is_time(type_) or pa.types.is_string(type_):
        return pa.string()
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    if type_ in unsigned:
        return unsigned[type_]
    if type_ == pa.uint64():
        return pa.decimal128(UINT64_DIGITS, 0)
    if pa.types.is_timestamp(type_):
        return None if type_.unit == "ns" or type_.tz not in (None, UTC) else pa.timestamp("us", type_.tz)
    if pa.types.is_decimal128(type_):
        return type_ if 0 <= type_.scale <= type_.precision else None
    simple = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_binary, pa.types.is_date32)
    if any(test(type_) for test in simple) or type_ in (pa.float32(), pa.float64()):
        return type_
    return _carried_nested(type_)


def _carried_nested(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(type_):
        inner = carried(type_.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(type_):
        fields = [(field.name, carried(field.type)) for field in type_]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    if pa.types.is_map(type_):
        same = carried(type_.key_type) == type_.key_type and carried(type_.item_type) == type_.item_type
        return type_ if same else None
    return None


def to_spark(schema: Schema) -> StructType:
    """The schema as Spark sees it; PlanRefused names every column that cannot go through Spark."""
    from pyspark.sql.types import StructField, StructType

    refused = [column for column in schema if carried(column.type) is None]
    if refused:
        first = refused[0]
        raise PlanRefused(
            f"{_listed(refused)} cannot go through a transform",
            why="Spark has no type that holds every value of it",
            kept="nothing was touched",
            remedy=f"cast {first.name} to text in the pipeline's query",
        )
    fields = []
    for column in schema:
        tag = Tag(column.native, column.logical, column.type)
        fields.append(StructField(column.name, spark_type(carried(column.type)), True, {TAG: tag.to_json()}))
    return StructType(fields)


def as_frame(frame: DataFrame, schema: Schema, names: Sequence[str] | None = None) -> DataFrame:
    """A frame's columns under the schema's names and with its tags; `names` says how they are named so far.

    A frame of other types is refused: Spark would cast, and what a cast loses nobody would be told.
    """
    from pyspark.sql import functions as f

    fields = to_spark(schema).fields
    came = list(names or schema.names)
    # By their names, which say nothing of NULL: every column may hold it here.
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    for name, field in zip(came, fields, strict=True):
        if types.get(name) != field.dataType.simpleString():
            raise PlanRefused(
                f"column {field.name} is {types.get(name, 'missing')} in Spark",
                why=f"the plan says {field.dataType.simpleString()}",
                kept="nothing was touched",
                remedy="run again: the source may have changed since the run was planned",
            )
    chosen = [
        f.col(f"`{name.replace('`', '``')}`").alias(field.name, metadata=field.metadata)
        for name, field in zip(came, fields, strict=True)
    ]
    return frame.select(*chosen)


def _listed(columns: Sequence[Column]) -> str:
    return ", ".join(f"column {column.name} ({column.describe()})" for column in columns)


def spark_type(type_: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(type_, prefer_timestamp_ntz=True)


# ---------------------------------------------------------------- Spark → canonical


def from_spark(schema: StructType) -> Schema:
    """The canonical schema of a transform's result, known before a row moves."""
    names = [field.name for field in schema.fields]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise TransformError(
            f"the transform gives {', '.join(double)} more than once",
            why="columns are matched by name",
            kept="nothing was touched",
            remedy="name every column of its result once: select a.id, b.id as other_id",
        )
    return Schema.of([_column(field) for field in schema.fields])


def _column(field: StructField) -> Column:
    type_ = _arrow_type(field)
    plain = Column(field.name, type_, nullable=field.nullable)
    text = (field.metadata or {}).get(TAG)
    if text is None:
        return plain
    tag = Tag.from_json(text)
    if carried(tag.type) != type_:
        return plain  # the metadata came along, but the value is of another type now
    return replace(plain, type=restored(tag.type), logical=_logical(tag), native=tag.native)


def _logical(tag: Tag) -> Logical | None:
    if tag.logical is not None:
        return tag.logical
    return Logical(text_kind(tag.type)) if _travels_as_text(tag.type) else None


def _travels_as_text(type_: pa.DataType) -> bool:
    return isinstance(type_, (pa.UuidType, pa.JsonType)) or pa.types.is_time(type_)


def restored(type_: pa.DataType) -> pa.DataType:
    """What a tagged column of `type_` is after the transform: itself, or its text form."""
    return pa.string() if _travels_as_text(type_) else type_


def _arrow_type(field: StructField) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        type_ = to_arrow_type(field.dataType, timestamp_utc=True)
    except Exception as error:  # pyspark has several kinds for a type that Arrow lacks
        raise _unsupported(field) from error
    canonical = _canonical(type_)
    if canonical is None:
        raise _unsupported(field)
    return canonical


def _canonical(type_: pa.DataType) -> pa.DataType | None:
    """Spark's Arrow type with plain field names; None where no canonical type is."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", UTC if type_.tz else None)
    if pa.types.is_list(type_):
        inner = _canonical(type_.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(type_):
        fields = [(field.name, _canonical(field.type)) for field in type_]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    if pa.types.is_map(type_):
        key, item = _canonical(type_.key_type), _canonical(type_.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return type_ if carried(type_) == type_ else None


# ---------------------------------------------------------------- text


def has_text(type_: pa.DataType) -> bool:
    """Whether `as_text` tells every value of the type: Spark prints bytes and nested values without their limits."""
    numbers = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(type_) for test in (*numbers, pa.types.is_date, pa.types.is_timestamp))


def as_text(name: str, type_: pa.DataType) -> SparkColumn:
    """A column of a result as text, as databases write it: Spark knows no infinity, and leaves the zone out."""
    from pyspark.sql import functions as f

    column = f.col(name)
    text = column.cast("string")
    if pa.types.is_date(type_):
        ends = [f.date_from_unix_date(f.lit(sign * DATE_INFINITY)) for sign in (1, -1)]
    elif pa.types.is_timestamp(type_):
        # By microseconds: in a user's own session a cast would go by the zone of that.
        at = f.timestamp_micros if type_.tz else clock_at
        ends = [at(f.lit(sign * TIMESTAMP_INFINITY)) for sign in (1, -1)]
        text = f.concat(clock_at(f.unix_micros(column)).cast("string"), f.lit("+00")) if type_.tz else text
    else:
        return text
    return f.when(column == ends[0], "infinity").when(column == ends[1], "-infinity").otherwise(text)


def _unsupported(field: StructField) -> TransformError:
    return TransformError(
        f"column {field.name} of the transform's result is of Spark's type {field.dataType.simpleString()}",
        why="no target holds that type",
        kept="nothing was touched",
        remedy=f"cast it: cast({field.name} as string) as {field.name}",
    )
