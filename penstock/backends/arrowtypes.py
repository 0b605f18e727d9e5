"""Types of targets that hold Arrow's own: no SQL casts there, so values are cast, and checked, in the sink.

A cast that changes a value is never made: forth and back it must be the same, or the load ends with
the column and the keys of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.base import Native, StagedColumn, TargetColumn, Verdict
from penstock.errors import ConfigError, DataError
from penstock.schema import Column
from penstock.schema.columns import NATIVE, NUMERIC, OPAQUE
from penstock.schema.words import parse, spell

KEYS_SHOWN = 3
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


def native(column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
    """How an Arrow target holds a column: as itself, in the existing column, or as the user's cast."""
    own = spell(column)
    if cast is not None:
        try:
            wanted = spell(parse(cast).column(column.name))
        except ConfigError as error:
            return Native(cast, Verdict.REFUSED, note=error.why or error.what, remedy=error.remedy)
        if existing is not None and existing.type_sql != wanted:
            note = f"the target's column is {existing.type_sql}"
            return Native(wanted, Verdict.REFUSED, note=note, remedy=f'columns.{column.name} = "{existing.type_sql}"')
        return _into(column, wanted, asked=True)
    if existing is None or existing.type_sql == own:
        if column.logical is not None and column.logical.kind == OPAQUE:
            remedy = f'columns.{column.name} = "text"'
            return Native(own, Verdict.REFUSED, note="its text says less than its value", remedy=remedy)
        return Native(own)
    return _into(column, existing.type_sql, asked=False)


def _into(column: Column, wanted: str, *, asked: bool) -> Native:
    if spell(column) == wanted:
        return Native(wanted)
    there = parse(wanted)
    if there.logical is None and _holds_more(column.type, there.type):
        return Native(wanted, Verdict.WIDENED, direct=False)
    if wanted == "text" and pa.types.is_string(column.type):
        return Native(wanted, Verdict.WIDENED, direct=False, note="the text stays, its meaning is not kept")
    if asked and _castable(column, there.type) and there.logical is None:
        return Native(wanted, Verdict.CHECKED, direct=False)
    widen_to = spell(column) if _holds_more(there.type, column.type) and column.logical is None else ""
    remedy = f'columns.{column.name} = "{wanted}"' if _castable(column, there.type) and not asked else ""
    return Native(wanted, Verdict.REFUSED, direct=False, remedy=remedy, widen_to=widen_to)


def _holds_more(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    for family in (_INTEGERS, _UNSIGNED):
        if narrow in family and wide in family:
            return family.index(narrow) < family.index(wide)
    if narrow in _UNSIGNED and wide in _INTEGERS:
        return _UNSIGNED.index(narrow) < _INTEGERS.index(wide)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(narrow != wide and whole and wide.scale >= narrow.scale)
    if pa.types.is_integer(narrow) and pa.types.is_decimal(wide):
        return bool(wide.precision - wide.scale >= len(str(2**narrow.bit_width)))
    return (narrow, wide) == (pa.float32(), pa.float64())


def _castable(column: Column, there: pa.DataType) -> bool:
    if column.logical is not None and column.logical.kind not in (NUMERIC, NATIVE):
        return False
    try:
        pa.array([], column.type).cast(there)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def held_type(staged: StagedColumn) -> pa.DataType:
    return parse(staged.native.sql).type


def held(staged: StagedColumn) -> Column:
    """The column as the target keeps it, with what the source called its type."""
    word = parse(staged.native.sql)
    if staged.native.verdict is Verdict.EXACT:
        return staged.column
    return word.column(staged.column.name, nullable=staged.column.nullable)


def cast_batch(batch: pa.RecordBatch, columns: Sequence[StagedColumn], keys: Sequence[str]) -> pa.RecordBatch:
    """The batch in the target's types, columns found by name; a value that would change is an error."""
    arrays = []
    for staged in columns:
        array = batch.column(staged.column.name)
        there = held_type(staged)
        arrays.append(array if array.type == there else _cast(array, there, staged, batch, keys))
    fields = [pa.field(staged.column.name, array.type) for staged, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _cast(
    array: pa.Array, there: pa.DataType, staged: StagedColumn, batch: pa.RecordBatch, keys: Sequence[str]
) -> pa.Array:
    try:
        made = array.cast(there)
        kept = _same(made.cast(array.type), array) if _comparable(array, there) else None
        if kept is None or pc.all(kept).as_py() is not False:
            return made
        wrong = pc.indices_nonzero(pc.invert(kept))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        wrong = _failing(array, there)
    raise DataError(
        f"column {staged.column.name} has a value that its target type cannot hold",
        why=f"cast to {staged.native.sql} and back, the value is another one",
        kept="nothing was committed",
        remedy="change the value at the source, or the cast in `columns`",
        keys=tuple(_key(batch, keys, place) for place in wrong[:KEYS_SHOWN].to_pylist()) if keys else (),
    )


def _same(left: pa.Array, right: pa.Array) -> pa.Array:
    same = pc.equal(left, right)
    if pa.types.is_floating(right.type):
        same = pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return pc.fill_null(same, True)  # NULL stays NULL in every type


def _comparable(array: pa.Array, there: pa.DataType) -> bool:
    """A text has many spellings of one number; Arrow itself refuses one that does not fit."""
    return not (pa.types.is_string(array.type) and pa.types.is_decimal(there))


def _failing(array: pa.Array, there: pa.DataType) -> pa.Array:
    """The places that fail, found by halves: a batch is cast a few dozen times at most."""
    places: list[int] = []
    pending = [(0, len(array))]
    while pending and len(places) < KEYS_SHOWN:
        start, end = pending.pop()
        try:
            array.slice(start, end - start).cast(there)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if end - start == 1:
                places.append(start)
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
    return pa.array(sorted(places), pa.int64())


def _key(batch: pa.RecordBatch, keys: Sequence[str], place: int) -> str:
    return ", ".join(f"{key}={batch.column(key)[place].as_py()!r}" for key in keys if key in batch.schema.names)
