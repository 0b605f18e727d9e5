"""Native type → canonical column: how a source's types are read without losing anything.

What ADBC reads as proper Arrow is read so; everything else is read as the server's own text.
A type that is not listed here is text, never a guess. The way back is in `native.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.backends.postgres.connect import literal
from penstock.errors import PlanRefused
from penstock.schema import Column, Logical
from penstock.schema.columns import ENUM, INTERVAL, NATIVE, NUMERIC

BACKEND = "postgres"
SHAPE_MARK = "penstock-shape"  # stands in the error of an array that a list cannot carry
DECIMAL_DIGITS = 38

# Types that ADBC reads exactly, by their name in pg_catalog.
SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    "jsonb": pa.json_(),
}
# Strings whose binary form is not their text: "char" sends a zero byte for the empty string.
STRINGS_BY_TEXT = frozenset({"name", "char", "citext"})
LIST_ELEMENTS = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "bytea", "uuid"}
    | {"date", "timestamp", "timestamptz", "numeric"}
)
# Types whose `::text` is for people in some locale; these are the exact texts.
TEXT_FORMS = {"money": "({}::pg_catalog.numeric)::pg_catalog.text"}
# `::text` would cut a char(n)'s padding, which is part of what is stored.
TEXT_AS_IS = frozenset({"text", "varchar", "bpchar"})


@dataclass(frozen=True, slots=True)
class PgType:
    """A type as the catalog describes it; a domain is described by its base type."""

    name: str  # pg_type.typname: "int4"
    schema: str  # of the type
    spelling: str  # format_type with typmod, user types qualified: "numeric(38,12)"
    typmod: int = -1
    kind: str = "b"  # pg_type.typtype
    element: PgType | None = None  # of a true array
    labels: tuple[str, ...] = ()  # of an enum

    @property
    def built_in(self) -> bool:
        return self.schema == "pg_catalog"

    @property
    def precision(self) -> tuple[int, int] | None:
        """Of a numeric with a typmod: `(precision, scale)`; the scale may be negative."""
        if self.typmod < 4:
            return None
        packed = self.typmod - 4
        scale = packed & 0x7FF
        return (packed >> 16) & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def canonical(name: str, type_: PgType, *, dims: int = 0, nullable: bool = True) -> Column:
    """The column in canonical form. `dims` is the declared number of dimensions of an array."""
    arrow, logical = _form(type_, dims)
    return Column(name, arrow, logical, f"{BACKEND}:{type_.spelling}", nullable)


def _form(type_: PgType, dims: int) -> tuple[pa.DataType, Logical | None]:
    if type_.kind == "e":
        return pa.string(), Logical(ENUM, type_.labels)
    if type_.name == "citext":
        return pa.string(), None
    if not type_.built_in:
        return pa.string(), Logical(NATIVE)
    if type_.element is not None:
        element = _element(type_) if dims <= 1 else None
        return (pa.string(), Logical(NATIVE)) if element is None else (pa.list_(element), None)
    if type_.name == "numeric":
        decimal = _decimal(type_)
        return (pa.string(), Logical(NUMERIC)) if decimal is None else (decimal, None)
    if type_.name == "interval":
        return pa.string(), Logical(INTERVAL)
    if type_.name == "oid":
        return pa.int64(), None
    if type_.name in STRINGS_BY_TEXT:
        return pa.string(), None
    if type_.name in SCALARS:
        return SCALARS[type_.name], None
    return pa.string(), Logical(NATIVE)


def _element(array: PgType) -> pa.DataType | None:
    element = array.element
    if element is None or not element.built_in or element.name not in LIST_ELEMENTS:
        return None
    if element.name == "numeric":
        return _decimal(array)  # the typmod of an array is that of its elements
    return SCALARS[element.name]


def _decimal(type_: PgType) -> pa.DataType | None:
    bounds = type_.precision
    if bounds is None:
        return None
    precision, scale = bounds
    if not (1 <= precision <= DECIMAL_DIGITS and 0 <= scale <= precision):
        return None
    return pa.decimal128(precision, scale)


def read_expression(type_: PgType, column: Column, value: str, shape_error: str) -> str:
    """The SQL that gives `column`, canonical or as text, from the quoted `value`.

    `shape_error` is a text expression that names the column and the row's key.
    """
    own = canonical(column.name, type_)
    plain = own.type if not pa.types.is_list(own.type) else None
    if pa.types.is_list(column.type):
        if own.type != column.type:
            raise _no_form(type_, column)
        # ADBC flattens a matrix and refuses a lower bound other than 1, both without naming a row:
        # any other shape stops the read here, with an error that does.
        return (
            f"case when coalesce(pg_catalog.array_ndims({value}), 1) = 1"
            f" and coalesce(pg_catalog.array_lower({value}, 1), 1) = 1 then {value}"
            f" else ({shape_error})::{type_.spelling} end"
        )
    if pa.types.is_string(column.type):
        return _text_expression(type_, value)
    if plain != column.type:
        raise _no_form(type_, column)
    if pa.types.is_decimal(column.type):
        # The server prints digits faster than ADBC makes them from the binary form.
        return f"{value}::pg_catalog.text"
    return f"{value}::pg_catalog.int8" if type_.name == "oid" else value


def shape_error(position: int, keys: list[tuple[str, str]]) -> str:
    """A text expression that a cast to an array refuses, with the column and the key in the error."""
    parts = [literal(f"{SHAPE_MARK}:{position}:")]
    for name, value in keys:
        parts.append(f"{literal(name + '=')} || coalesce({value}::pg_catalog.text, 'NULL')")
    if not keys:
        parts.append("pg_catalog.left(pg_catalog.now()::pg_catalog.text, 0)")  # or it is folded at planning
    head, *rest = parts
    return f"{head} || " + " || ', ' || ".join(rest)


def _text_expression(type_: PgType, value: str) -> str:
    if type_.built_in and type_.name in TEXT_AS_IS:
        return value
    if type_.built_in and type_.name in TEXT_FORMS:
        return TEXT_FORMS[type_.name].replace("{}", value)
    return f"{value}::pg_catalog.text"


def _no_form(type_: PgType, column: Column) -> PlanRefused:
    return PlanRefused(
        f"column {column.name!r} cannot be read as {column.type}",
        why=f"it is {type_.spelling} at the source",
        remedy=f'columns.{column.name} = "text"',
    )
