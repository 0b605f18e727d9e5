"""Arrow tables from anywhere in canonical types, and what a column means beyond its type.

Both ways are exact: a type that has no canonical form is refused when the table is put in, never
when it is read. What a text means (a Postgres inet, an enum) stands in its field's metadata, so it
stays with a table that is taken out and put into another store.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Unsupported
from penstock.schema.canonical import canonical_type
from penstock.schema.columns import Column, Logical

LOGICAL, NATIVE = b"penstock.logical", b"penstock.native"


def field_of(column: Column) -> pa.Field:
    """The column as a field that says all of it."""
    said = {NATIVE: column.native} if column.native else {}
    if column.logical is not None:
        said[LOGICAL] = json.dumps(column.logical.to_record())
    return pa.field(column.name, column.type, column.nullable, metadata=said or None)


def column_of(field: pa.Field) -> Column:
    said = field.metadata or {}
    logical = Logical.from_record(json.loads(said[LOGICAL])) if LOGICAL in said else None
    return Column(field.name, field.type, logical, said.get(NATIVE, b"").decode(), field.nullable)


def common(here: pa.Field, new: pa.Field) -> pa.Field:
    """What is true of rows of both, in the type of the new ones."""
    one, other = here.metadata or {}, new.metadata or {}
    said = {key: value for key, value in other.items() if one.get(key) == value}
    return pa.field(new.name, new.type, metadata=said or None)


def canonical_table(table: pa.Table) -> pa.Table:
    """The table in canonical types; without a copy where it has them already."""
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise Unsupported(f"the table has columns of one name: {', '.join(twice)}", remedy="rename them")
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        wanted = canonical_type(field.type)
        if wanted is None:
            raise Unsupported(
                f"column {field.name!r} cannot be kept",
                why=f"{field.type} has no canonical form",
                remedy="cast it before you put it in: to a number, or to text",
            )
        said = field.metadata or {}
        kept = {key: said[key] for key in (LOGICAL, NATIVE) if key in said} if wanted == field.type else {}
        fields.append(pa.field(field.name, wanted, field.nullable, metadata=kept or None))
        columns.append(column if column.type == wanted else _cast(column, wanted, field.name))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    if pa.types.is_run_end_encoded(column.type):
        column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)
    try:
        made = column.cast(wanted)
        if pa.types.is_date64(column.type) and not column.cast(pa.timestamp("ms")).equals(
            made.cast(pa.timestamp("ms"))
        ):
            raise pa.ArrowInvalid("a date with a time of day")  # noqa: TRY301  told below with the other casts
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unsupported(
            f"column {name!r} cannot be kept",
            why=f"its values do not all go from {column.type} into {wanted}",
            remedy="cast it before you put it in: to a number, or to text",
        ) from error
    return made
