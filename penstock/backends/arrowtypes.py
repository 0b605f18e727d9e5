"""Types of targets that hold Arrow's own: no SQL casts there, so values are cast, and checked, in the sink.

A cast that changes a value is never made: forth and back it must be the same, or the load ends with
the column and the keys of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.arrowtext import as_text, plain_number, text_time, text_uuid
from penstock.backends.base import Native, StagedColumn, TargetColumn, Verdict
from penstock.errors import ConfigError, DataError
from penstock.schema import Column
from penstock.schema.columns import DATE_INFINITY, JSON, NATIVE, NUMERIC, OPAQUE, TIME, TIMESTAMP_INFINITY, UUID
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
    if there.logical is None and holds_more(column.type, there.type):
        return Native(wanted, Verdict.WIDENED, direct=False)
    if wanted == "text" and pa.types.is_string(column.type):
        return Native(wanted, Verdict.WIDENED, direct=False, note="the text stays, its meaning is not kept")
    fits = there.logical is None and _castable(column, there.type)
    if asked and fits:
        return Native(wanted, Verdict.CHECKED, direct=False)
    widen_to = spell(column) if column.logical is None and holds_more(there.type, column.type) else ""
    remedy = f'columns.{column.name} = "{wanted}"' if fits and not asked else f'columns.{column.name} = "text"'
    note = f"the target's column is {wanted}" if not asked else "there is no exact cast"
    return Native(wanted, Verdict.REFUSED, direct=False, note=note, remedy=remedy, widen_to=widen_to)


def holds_more(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other, and looks the same."""
    for family in (_INTEGERS, _UNSIGNED):
        if narrow in family and wide in family:
            return family.index(narrow) < family.index(wide)
    if narrow in _UNSIGNED and wide in _INTEGERS:
        return _UNSIGNED.index(narrow) < _INTEGERS.index(wide)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(narrow != wide and whole and wide.scale >= narrow.scale)
    if pa.types.is_integer(narrow):
        bits = narrow.bit_width - pa.types.is_signed_integer(narrow)
        if pa.types.is_decimal(wide):
            return bool(wide.precision - wide.scale >= len(str(2**bits)))
        return bool(bits <= _MANTISSA.get(wide, 0))
    if pa.types.is_timestamp(narrow) and pa.types.is_timestamp(wide) and narrow.tz == wide.tz:
        # Not up to nanoseconds: those reach to the year 2262 only.
        return (narrow.unit, wide.unit) in {("s", "ms"), ("s", "us"), ("ms", "us")}
    return (narrow, wide) in {(pa.float32(), pa.float64()), (pa.time64("us"), pa.time64("ns"))}


def widens(narrow: str, wide: str) -> bool:
    """Whether a column of one type may become one of the other, both by name."""
    one, other = parse(narrow), parse(wide)
    return one.logical is None and other.logical is None and holds_more(one.type, other.type)


_MANTISSA = {pa.float32(): 24, pa.float64(): 53}


def _castable(column: Column, there: pa.DataType) -> bool:
    """Whether a cast has one meaning. Whether it loses nothing is checked value by value.

    Arrow casts more than this: a number into a moment, a naive time into UTC.
    """
    kind = column.logical.kind if column.logical is not None else ""
    here = column.type
    if pa.types.is_string(here):
        if isinstance(there, pa.JsonType):
            return kind == JSON  # nothing here could tell whether another text is one
        scalar = pa.types.is_primitive(there) or pa.types.is_decimal(there) or isinstance(there, pa.UuidType)
        return kind in ("", NUMERIC, NATIVE, UUID, TIME) and scalar
    if _is_number(here) or pa.types.is_boolean(here):
        return _is_number(there)
    if pa.types.is_timestamp(here):
        return (pa.types.is_timestamp(there) and here.tz == there.tz) or (here.tz is None and pa.types.is_date32(there))
    if pa.types.is_date32(here):
        return bool(pa.types.is_timestamp(there) and there.tz is None)
    return bool(pa.types.is_time64(here) and pa.types.is_time64(there))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


# ---------------------------------------------------------------- in the target


def held_type(staged: StagedColumn) -> pa.DataType:
    return parse(staged.native.sql).type


def held(staged: StagedColumn) -> Column:
    """The column as the target keeps it, with what the source called its type."""
    word, column = parse(staged.native.sql), staged.column
    if staged.native.verdict is not Verdict.EXACT:
        return word.column(column.name)
    # A uuid that came as text is one here.
    logical = column.logical if column.type == word.type else word.logical
    return Column(column.name, word.type, logical, column.native)


def cast_batch(batch: pa.RecordBatch, columns: Sequence[StagedColumn], keys: Sequence[str]) -> pa.RecordBatch:
    """The batch in the target's types, columns found by name; a value that would change is an error."""
    arrays = []
    for staged in columns:
        array = batch.column(staged.column.name)
        if staged.native.nan_null:
            array = _without_nan(array)
        there = held_type(staged)
        arrays.append(array if array.type == there else _cast(array, there, staged, batch, keys))
    fields = [pa.field(staged.column.name, array.type) for staged, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _without_nan(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if pa.types.is_string(array.type):
        return pc.if_else(pc.equal(pc.utf8_lower(array), "nan"), pa.scalar(None, array.type), array)
    return array


def _cast(
    array: pa.Array, there: pa.DataType, staged: StagedColumn, batch: pa.RecordBatch, keys: Sequence[str]
) -> pa.Array:
    try:
        made, same = _made(array, there)
        if pc.all(pc.fill_null(same, True)).as_py() is not False:
            return made
        wrong = pc.indices_nonzero(pc.fill_null(pc.invert(same), False))
    except _FAILS:
        wrong = _failing(array, there)
    raise DataError(
        f"column {staged.column.name} has a value that its target type cannot hold",
        why=f"cast to {staged.native.sql} and back, the value is another one",
        kept="nothing was committed",
        remedy="change the value at the source, or the cast in `columns`",
        keys=tuple(key_text(batch, keys, place) for place in wrong[:KEYS_SHOWN].to_pylist()) if keys else (),
    )


_FAILS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, DataError)


def exact(array: pa.Array, there: pa.DataType) -> pa.Array:
    """The same values in another type; raises `ArrowInvalid` where one would change, or a cast has several meanings."""
    if not castable(array.type, there):
        raise pa.ArrowInvalid(f"{array.type} is not {there}")
    made, same = _made(array, there)
    if pc.all(pc.fill_null(same, True)).as_py() is False:
        raise pa.ArrowInvalid(f"a value of {array.type} is another one as {there}")
    return made


def castable(here: pa.DataType, there: pa.DataType) -> bool:
    """Whether values of one type may be asked for in the other."""
    return _castable(Column("", here), there)


def _made(array: pa.Array, there: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """The values in another type, and for each whether it is still the same; NULL where there is none."""
    here = array.type
    if pa.types.is_string(here):
        return _of_text(array, there)
    if pa.types.is_temporal(here) and pa.types.is_timestamp(there):
        made = retimed(array, there)
        return made, pc.equal(retimed(made, here) if pa.types.is_timestamp(here) else made.cast(here), array)
    # Arrow's own cast of a decimal misses the nearest float by a bit, of three values in ten.
    inexact = pa.types.is_decimal(here) and pa.types.is_floating(there)
    made = (array.cast(pa.string()) if inexact else array).cast(there)
    if pa.types.is_decimal(here):
        room = pa.decimal256(76, here.scale)  # Arrow wants a place for every digit that an integer might have
        return made, pc.equal(made.cast(room), array.cast(room))
    back = made.cast(here)
    if not pa.types.is_floating(here):
        return made, pc.equal(back, array)
    # As they are written, so that -0 and 0 are two values; NaN is one.
    bits = pa.int32() if here == pa.float32() else pa.int64()
    return made, pc.or_(pc.equal(back.view(bits), array.view(bits)), pc.and_(pc.is_nan(back), pc.is_nan(array)))


def _of_text(array: pa.Array, there: pa.DataType) -> tuple[pa.Array, pa.Array]:
    if isinstance(there, pa.UuidType):
        return text_uuid(array)
    if isinstance(there, pa.JsonType):
        return pa.ExtensionArray.from_storage(there, array), pa.nulls(len(array), pa.bool_())
    if pa.types.is_time(there):
        made = text_time(array, there)
        return made, pc.equal(as_text(made), plain_number(array))  # Spark's have all six digits
    if pa.types.is_decimal(there):
        # Arrow refuses one with more digits than there are places; 007, 1e2 and -0 it reads as numbers.
        return array.cast(there), pc.and_(
            pc.match_substring_regex(array, r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"),
            pc.invert(pc.match_substring_regex(array, r"^-0(\.0+)?$")),
        )
    if pa.types.is_temporal(there):
        made = _moments(array, there)
        return made, pc.equal(as_text(made), array)
    if pa.types.is_integer(there):
        array = pc.replace_substring_regex(array, r"^(-?\d+)\.0+$", r"\1")  # 1.0 is one too
    made = array.cast(there)
    if pa.types.is_floating(there):
        return made, pc.equal(plain_number(as_text(made)), plain_number(array))
    return made, pc.equal(as_text(made), array)


def _moments(array: pa.Array, there: pa.DataType) -> pa.Array:
    """Dates and timestamps of texts, infinite ones too."""
    bare = pc.if_else(pc.match_substring(array, "infinity"), pa.scalar(None, pa.string()), array)
    numbers = pa.int32() if pa.types.is_date(there) else pa.int64()
    infinity = DATE_INFINITY if pa.types.is_date(there) else TIMESTAMP_INFINITY
    made = bare.cast(there).cast(numbers)
    for text, number in (("infinity", infinity), ("-infinity", -infinity)):
        made = pc.if_else(pc.equal(array, text), pa.scalar(number, numbers), made)
    return made.cast(there)


def retimed(array: pa.Array, there: pa.DataType) -> pa.Array:
    """Timestamps of another unit, infinite ones staying what they are: fixed numbers, the same in every unit."""
    if not pa.types.is_timestamp(array.type):
        return array.cast(there)
    numbers = array.cast(pa.int64())
    infinite = pc.equal(pc.abs(numbers), TIMESTAMP_INFINITY)
    finite = pc.if_else(infinite, 0, numbers).cast(array.type).cast(there).cast(pa.int64())
    return pc.if_else(infinite, numbers, finite).cast(there)


def _failing(array: pa.Array, there: pa.DataType) -> pa.Array:
    """The places that fail, found by halves: a batch is cast a few dozen times at most."""
    places: list[int] = []
    pending = [(0, len(array))]
    while pending and len(places) < KEYS_SHOWN:
        start, end = pending.pop()
        try:
            _, same = _made(array.slice(start, end - start), there)
            failed = pc.all(pc.fill_null(same, True)).as_py() is False
        except _FAILS:
            failed = True
        if failed and end - start == 1:
            places.append(start)
        elif failed:
            middle = (start + end) // 2
            pending += [(middle, end), (start, middle)]
    return pa.array(sorted(places), pa.int64())


def key_text(batch: pa.RecordBatch | pa.Table, keys: Sequence[str], place: int) -> str:
    """The key of a row for people: `id=7, region='eu'`."""
    shown = []
    for key in keys:
        if key in batch.schema.names:
            value = batch.column(key)[place].as_py()
            shown.append(f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}")
    return ", ".join(shown)
