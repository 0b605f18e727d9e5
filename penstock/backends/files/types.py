"""Types of files and the canonical ones: every Arrow type that a file may hold, with its form or its refusal.

Written files hold canonical types as themselves. What was written by others is brought to the nearest
canonical type that holds every value: an instant stays the same instant, digits stay the same digits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends import arrowtypes
from penstock.backends.base import Native, TargetColumn, Verdict
from penstock.backends.files.texts import parts, text_of, value_of
from penstock.backends.stored import stored_type
from penstock.schema import Column, Logical
from penstock.schema import canonical as arrow_canonical
from penstock.schema.columns import NATIVE, NUMERIC

canonical_type = partial(arrow_canonical.canonical_type, storage=True)


def canonical(name: str, type_: pa.DataType, *, nullable: bool = True) -> Column | None:
    """The canonical column of one in a file; None where there is no form for its values."""
    found = canonical_type(type_)
    if found is not None:
        return Column(name, found, nullable=nullable)
    if pa.types.is_decimal(type_):
        return Column(name, pa.string(), Logical(NUMERIC), nullable=nullable)  # digits beyond Arrow's 38
    return None


def convert(array: pa.Array, wanted: pa.DataType, *, own: bool = False) -> pa.Array:
    """An array of a file in the form that is asked for.

    Raises `ArrowInvalid` or `Unreadable` where a value would change, or has no such form.
    """
    if array.type == wanted:
        return array
    if isinstance(array, pa.ExtensionArray) and not isinstance(array.type, pa.UuidType | pa.JsonType):
        return convert(array.storage, wanted)
    if pa.types.is_dictionary(array.type):
        return convert(array.dictionary_decode(), wanted)
    if pa.types.is_run_end_encoded(array.type):
        return convert(pc.run_end_decode(array), wanted)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if _is_text(array.type):
        text = array.cast(pa.string())
        return text if pa.types.is_string(wanted) else value_of(text, wanted, own=own)
    if pa.types.is_string(wanted):
        form = canonical_type(array.type)
        return text_of(array if form is None else convert(array, form))
    if pa.types.is_nested(wanted) or pa.types.is_nested(array.type):
        return _nested(array, wanted)
    if isinstance(wanted, pa.UuidType) and array.type == pa.binary(16):
        return pa.ExtensionArray.from_storage(wanted, array)
    form = _step(array.type)
    if form is not None:
        made = array.cast(form)
        if pa.types.is_date64(array.type) and not made.cast(array.type).equals(array):
            raise pa.ArrowInvalid("a date holds a time of day")
        return convert(made, wanted)
    return arrowtypes.exact(array, wanted)


def _step(type_: pa.DataType) -> pa.DataType | None:
    """The canonical type of one that is only another way to keep its values; None for canonical ones."""
    if pa.types.is_duration(type_):
        return pa.int64()
    form = canonical_type(type_)
    return None if form == type_ else form


def _nested(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Lists, structs and maps, their values converted: Arrow's own cast drops members and fills in others."""
    here = array.type
    if canonical_type(here) == wanted:
        # Only the way to keep it differs: another kind of list, another name of its items.
        return array.cast(wanted)
    nulls = pc.is_null(array) if array.null_count else None
    if pa.types.is_struct(wanted) and pa.types.is_struct(here):
        if {field.name for field in here} == {field.name for field in wanted}:
            children = [convert(child, wanted.field(here[n].name).type) for n, child in enumerate(array.flatten())]
            named = {here[n].name: child for n, child in enumerate(children)}
            return pa.StructArray.from_arrays([named[f.name] for f in wanted], fields=list(wanted), mask=nulls)
    elif pa.types.is_map(wanted) and pa.types.is_map(here):
        offsets, pairs = parts(array)
        made = pa.MapArray.from_arrays(
            offsets, convert(pairs.field(0), wanted.key_type), convert(pairs.field(1), wanted.item_type), type=wanted
        )
        return made if nulls is None else pc.if_else(nulls, pa.scalar(None, wanted), made)
    elif pa.types.is_list(wanted) and (form := canonical_type(here)) is not None and pa.types.is_list(form):
        offsets, items = parts(array.cast(pa.list_(here.value_type)))
        return pa.ListArray.from_arrays(offsets, convert(items, wanted.value_type), wanted, mask=nulls)
    raise pa.ArrowInvalid(f"{here} is not {wanted}")


def readable(here: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a file's type may be asked for in another: whether each fits is seen when it is read."""
    try:
        convert(pa.nulls(0, here), wanted)
    except (ValueError, pa.ArrowNotImplementedError):  # `ArrowInvalid` and `Unreadable` are such
        return False
    return True


def _is_text(type_: pa.DataType) -> bool:
    known = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    return bool(known or pa.types.is_null(type_))


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The one of two types that holds every value of both; None where neither does."""
    if one == other or arrowtypes.holds_more(other, one):
        return one
    return other if arrowtypes.holds_more(one, other) else None


def native(column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
    """How files hold `column`: as itself, unless the user asks for a cast."""
    kind = column.logical.kind if column.logical is not None else ""
    there = existing.type_sql if existing is not None else ""
    if cast is None and kind == NATIVE and not column.native and there.startswith("text as "):
        # Behind Spark a column has lost the size of its type, not the type: its texts are the same ones.
        return Native(there)
    made = arrowtypes.native(column, existing, cast)
    if made.verdict is Verdict.REFUSED or stored_type(column.type) is not None:
        return made
    remedy = f'columns.{column.name} = "text"'
    return replace(made, verdict=Verdict.REFUSED, note=f"files have no form for {column.type}", remedy=remedy)
