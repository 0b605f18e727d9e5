"""DuckDB's types and the canonical ones: two tables, and a verdict for every pair.

What DuckDB has no word for is kept as text and remembered beside the table. A type whose text
form says less than the value (UNION and VARIANT lose their tags) is refused, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import duckdb
import pyarrow as pa

from penstock.backends.base import Native, TargetColumn, Verdict
from penstock.errors import PlanRefused
from penstock.schema import Column, Logical
from penstock.schema.columns import ENUM, INTERVAL, JSON, NATIVE, NUMERIC, OPAQUE, TIME, UUID

TEXT = "VARCHAR"

# ---------------------------------------------------------------- DuckDB → canonical

_UTC_US = pa.timestamp("us", "UTC")
_UTC_NS = pa.timestamp("ns", "UTC")

# Held by Arrow as they are. TIMESTAMP_S and TIMESTAMP_MS reach exactly as far as TIMESTAMP does
# (their casts pass through it), so they travel as microseconds, which every target knows.
ARROW: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": _UTC_US,
    "TIMESTAMPTZ_NS": _UTC_NS,
    "UUID": pa.uuid(),
    "JSON": pa.json_(),
}
AS_TIMESTAMP = frozenset({"TIMESTAMP_S", "TIMESTAMP_MS"})

# Read as text: Arrow has no word for them, or DuckDB's export cuts them (HUGEINT at 38 digits,
# TIME WITH TIME ZONE without its offset).
AS_TEXT: dict[str, str] = {
    "hugeint": NUMERIC,
    "uhugeint": NUMERIC,
    "bignum": NUMERIC,
    "bit": NATIVE,
    "time with time zone": NATIVE,
    "interval": INTERVAL,
    "union": OPAQUE,
    "variant": OPAQUE,
    "geometry": OPAQUE,
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a DuckDB type travels: its Arrow type, and the DuckDB type that exports as that."""

    arrow: pa.DataType
    wire: str
    logical: Logical | None = None
    lossy: bool = False


@cache
def form_of(spelling: str) -> Form:
    """The canonical form of a type in DuckDB's own spelling."""
    return _form(parse(spelling))


def _form(type_: duckdb.DuckDBPyType) -> Form:
    spelling, family = str(type_), type_.id
    if spelling in ARROW:
        return Form(ARROW[spelling], spelling)
    if spelling in AS_TIMESTAMP:
        return Form(ARROW["TIMESTAMP"], "TIMESTAMP")
    if family in AS_TEXT:
        return Form(pa.string(), TEXT, Logical(AS_TEXT[family]), lossy=AS_TEXT[family] == OPAQUE)
    if family == "decimal":
        sizes = dict(type_.children)
        return Form(pa.decimal128(sizes["precision"], sizes["scale"]), spelling)
    if family == "enum":
        return Form(pa.string(), TEXT, Logical(ENUM, tuple(dict(type_.children)["values"])))
    if family == "null":
        return Form(pa.string(), TEXT)  # a bare NULL in a query: no value that could be of any other type
    if family in {"list", "array"}:
        child = _form(dict(type_.children)["child"])
        return Form(pa.list_(child.arrow), f"{child.wire}[]", lossy=child.lossy)
    if family == "map":
        key, value = (_form(child) for _, child in type_.children)
        wire = f"MAP({key.wire}, {value.wire})"
        return Form(pa.map_(key.arrow, value.arrow), wire, lossy=key.lossy or value.lossy)
    if family == "struct" and all(name for name, _ in type_.children):
        fields = [(name, _form(child)) for name, child in type_.children]
        wire = ", ".join(f"{quote(name)} {child.wire}" for name, child in fields)
        arrow = pa.struct([(name, child.arrow) for name, child in fields])
        return Form(arrow, f"STRUCT({wire})", lossy=any(child.lossy for _, child in fields))
    return Form(pa.string(), TEXT, Logical(OPAQUE), lossy=True)


def canonical(name: str, spelling: str, *, nullable: bool = True) -> Column:
    """The canonical column of a DuckDB column."""
    form = form_of(spelling)
    native = "" if spelling == '"NULL"' else f"duckdb:{spelling}"
    return Column(name, form.arrow, form.logical, native, nullable)


def select(column: Column, spelling: str) -> str:
    """The expression that reads a column of DuckDB type `spelling` in the form that is asked for."""
    name, form = quote(column.name), form_of(spelling)
    if form.logical is not None and form.logical.kind == INTERVAL:
        return interval_text(name)
    if column.type != form.arrow:  # `as_text()`
        return f"cast({name} as {TEXT})"
    return name if form.wire == spelling else f"cast({name} as {form.wire})"


# ---------------------------------------------------------------- canonical → DuckDB

_NATIVE: dict[pa.DataType, str] = {arrow: spelling for spelling, arrow in ARROW.items()} | {
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("s", "UTC"): "TIMESTAMP WITH TIME ZONE",
    pa.timestamp("ms", "UTC"): "TIMESTAMP WITH TIME ZONE",
}
# Text whose meaning DuckDB has a type for.
_TYPED_TEXT = {UUID: "UUID", JSON: "JSON", TIME: "TIME", INTERVAL: "INTERVAL"}


# What DuckDB reads out of a staging file: Parquet has no seconds, and its milliseconds come as
# microseconds.
_STAGED = _NATIVE | {pa.timestamp("s"): "TIMESTAMP", pa.timestamp("ms"): "TIMESTAMP"}


def native_type(type_: pa.DataType) -> str | None:
    """DuckDB's type for a canonical Arrow type, None where it has none."""
    return _spell(type_, _NATIVE)


def staged_type(type_: pa.DataType) -> str | None:
    """The type that DuckDB sees when it reads the staged form."""
    return _spell(type_, _STAGED)


def _spell(type_: pa.DataType, table: dict[pa.DataType, str]) -> str | None:
    if type_ in table:
        return table[type_]
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        child = _spell(type_.value_type, table)
        return None if child is None else f"{child}[]"
    if pa.types.is_map(type_):
        key, value = _spell(type_.key_type, table), _spell(type_.item_type, table)
        return None if key is None or value is None else f"MAP({key}, {value})"
    if pa.types.is_struct(type_) and type_.num_fields:
        fields = [(field.name, _spell(field.type, table)) for field in type_]
        if all(name and child is not None for name, child in fields):
            return str(parse("STRUCT(" + ", ".join(f"{quote(name)} {child}" for name, child in fields) + ")"))
    return None


def native(column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
    """How a DuckDB table holds `column`; `cast` is the user's wish, in any spelling DuckDB reads."""
    if cast is not None:
        return _as_asked(column, existing, cast)
    fresh = _fresh(column)
    if existing is None or fresh.verdict is Verdict.REFUSED:
        return fresh
    have = uncollated(existing.type_sql)
    if have == fresh.sql:
        return replace(fresh, sql=existing.type_sql)
    if holds(have, fresh.sql):
        decode = f"cast({fresh.decode} as {have})"
        return replace(fresh, sql=existing.type_sql, verdict=Verdict.WIDENED, decode=decode, direct=False)
    return Native(
        existing.type_sql,
        Verdict.REFUSED,
        note=f"the column holds {have}, the source gives {fresh.sql}",
        remedy=f'columns.{toml_key(column.name)} = "{have.lower()}"',
        widen_to=fresh.sql if holds(fresh.sql, have) else "",
    )


def _fresh(column: Column) -> Native:
    staged = staged_type(column.type)
    if staged is None:
        return Native(
            str(column.type),
            Verdict.REFUSED,
            note=f"DuckDB has no type for {column.describe()}",
            remedy=f'columns.{toml_key(column.name)} = "text"',
        )
    own = column.native_in("duckdb")
    if own is not None and _is_own_spelling(own):
        return _own(column, staged, own)
    kind = column.logical.kind if column.logical is not None and pa.types.is_string(column.type) else ""
    if kind in _TYPED_TEXT:
        return _typed_text(kind)
    sql = native_type(column.type) or TEXT
    if sql != staged:
        return Native(sql, decode=f"cast({{}} as {sql})", direct=False)
    note = ""
    if kind == NUMERIC:
        note = (
            "numbers without a limit are kept as text; to compute with them declare "
            f'columns.{toml_key(column.name)} = "decimal(38,9)", which is checked for every value'
        )
    return Native(sql, note=note)


def _is_own_spelling(text: str) -> bool:
    """A spelling may be remembered in a table that others can write to: it goes into our SQL only if
    it is, letter for letter, how DuckDB prints a type."""
    try:
        return str(parse(text)) == text
    except duckdb.Error:
        return False


def _own(column: Column, staged: str, own: str) -> Native:
    """A column that comes from a DuckDB: that very type."""
    if own == staged:
        return Native(own)
    if form_of(own).lossy or "{}" in own:  # a label that reads like our own place-holder
        return Native(
            own,
            Verdict.REFUSED,
            note=f"{own} does not come back from its text",
            remedy=f'columns.{toml_key(column.name)} = "text"',
        )
    if own == "INTERVAL":
        return _typed_text(INTERVAL)
    return Native(own, decode=f"cast({{}} as {own})", direct=False)


def _typed_text(kind: str) -> Native:
    sql = _TYPED_TEXT[kind]
    if kind == INTERVAL:
        # The parser takes every interval that Postgres prints, except the infinite ones.
        valid = f"({{}} is null or try_{interval_of('{}')} is not null)"
        return Native(sql, decode=interval_of("{}"), valid=valid, direct=False)
    return Native(sql, decode=f"cast({{}} as {sql})", valid=f"({{}} is null or {_reads(kind)})", direct=False)


def _reads(kind: str) -> str:
    return "json_valid(cast({} as varchar))" if kind == JSON else f"try_cast({{}} as {_TYPED_TEXT[kind]}) is not null"


# ---------------------------------------------------------------- casts that the user asks for


def _as_asked(column: Column, existing: TargetColumn | None, cast: str) -> Native:
    sql = normalise(cast, column.name)
    have = sql if existing is None else uncollated(existing.type_sql)
    final = sql if existing is None else existing.type_sql
    if not (have == sql or holds(have, sql)):
        return Native(
            final,
            Verdict.REFUSED,
            note=f"the column holds {have}, not {sql}",
            remedy=f'columns.{toml_key(column.name)} = "{have.lower()}"',
        )
    fresh = _fresh(column)
    if fresh.sql == sql and fresh.verdict is not Verdict.REFUSED:
        made = replace(fresh, sql=sql)
    else:
        staged = staged_type(column.type)
        if staged is None:
            return fresh
        made = Native(sql, Verdict.CHECKED, f"cast({{}} as {sql})", _survives(staged, sql), direct=staged == sql)
    if have != sql:
        made = replace(made, decode=f"cast({made.decode} as {have})", direct=False)
    if sql == TEXT and re.search(r"\(\s*\d+\s*\)", cast):
        made = replace(made, note="DuckDB keeps no length with text")
    return replace(made, sql=final)


def _survives(staged: str, sql: str) -> str:
    """True where the value, cast forth and back, is what it was."""
    back = f"try_cast(try_cast({{}} as {sql}) as {staged})"
    if staged == sql:
        return ""
    if staged == TEXT and _is_number(sql):
        # 1.5 and 1.500000000 are one number; 1.239 and 1.24, 007 and 7 are not.
        return f"{_number_text(back)} is not distinct from {_number_text('{}')}"
    if any(word in staged for word in BY_TEXT):
        return f"cast({back} as varchar) is not distinct from cast({{}} as varchar)"
    return f"{back} is not distinct from {{}}"


def _number_text(text: str) -> str:
    return rf"rtrim(regexp_replace(cast({text} as varchar), '^(-?[0-9]+\.[0-9]*?)0+$', '\1'), '.')"


def _is_number(sql: str) -> bool:
    return sql in INTEGERS or sql in {"FLOAT", "DOUBLE", "BIGNUM"} or sql.startswith("DECIMAL")


# Equality is not identity for these: -0.0 = 0.0, 1 day = 24 hours, the offset of a time.
BY_TEXT = frozenset({"FLOAT", "DOUBLE", "INTERVAL", "JSON", "TIME WITH TIME ZONE"})


# ---------------------------------------------------------------- what holds what

# Digits of the largest value, and whether it may be negative.
INTEGERS: dict[str, tuple[int, bool]] = {
    "TINYINT": (8, True),
    "SMALLINT": (16, True),
    "INTEGER": (32, True),
    "BIGINT": (64, True),
    "HUGEINT": (128, True),
    "UTINYINT": (8, False),
    "USMALLINT": (16, False),
    "UINTEGER": (32, False),
    "UBIGINT": (64, False),
    "UHUGEINT": (128, False),
}
_WIDER: frozenset[tuple[str, str]] = frozenset(  # (narrow, wide): every value, represented alike
    {
        ("FLOAT", "DOUBLE"),
        ("TIMESTAMP_S", "TIMESTAMP_MS"),
        ("TIMESTAMP_S", "TIMESTAMP"),
        ("TIMESTAMP_MS", "TIMESTAMP"),
        ("TIME", "TIME_NS"),
        ("JSON", TEXT),
    }
    | {(small, "FLOAT") for small in ("TINYINT", "SMALLINT", "UTINYINT", "USMALLINT")}
    | {(small, "DOUBLE") for small in ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")}
    | {(integer, "BIGNUM") for integer in INTEGERS}
)


def holds(wide: str, narrow: str) -> bool:
    """True where every value of `narrow` fits `wide` without change. The same type is no widening."""
    if (narrow, wide) in _WIDER:
        return True
    if narrow in INTEGERS and wide in INTEGERS:
        bits, signed = INTEGERS[narrow]
        wide_bits, wide_signed = INTEGERS[wide]
        return wide_bits > bits and (wide_signed or not signed)
    if (digits := _digits(narrow)) and (room := _digits(wide)) and wide.startswith("DECIMAL") and narrow != wide:
        return room[0] >= digits[0] and room[1] >= digits[1]
    if narrow.startswith("ENUM("):
        return wide == TEXT or (wide.startswith("ENUM(") and narrow != wide and _labels(narrow) <= _labels(wide))
    if narrow.endswith("[]") and wide.endswith("[]"):
        return holds(wide[:-2], narrow[:-2])
    return False


def _digits(sql: str) -> tuple[int, int] | None:
    """Digits before and after the point that a number of this type may have."""
    if sql in INTEGERS:
        bits, signed = INTEGERS[sql]
        return len(str(2 ** (bits - signed))), 0
    found = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", sql)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None


def _labels(sql: str) -> set[str]:
    return set(dict(parse(sql).children)["values"])


# ---------------------------------------------------------------- intervals


def interval_text(value: str) -> str:
    """Postgres' own output style of an interval: `1 year 2 mons -3 days +04:05:06.789`.

    DuckDB prints the same fields in the same order; it says months, makes -1 singular, and writes
    no plus after a negative field.
    """
    text = f"replace(cast({value} as varchar), 'month', 'mon')"
    text = rf"regexp_replace({text}, '-1 (year|mon|day)\b', '-1 \1s', 'g')"
    return rf"regexp_replace({text}, '(-[0-9]+ (?:years|mons|days)) ([0-9])', '\1 +\2', 'g')"


def interval_of(value: str) -> str:
    """Postgres' text as an interval; DuckDB's parser knows no plus sign."""
    return f"cast(replace(cast({value} as varchar), '+', '') as interval)"


# ---------------------------------------------------------------- spellings


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def uncollated(type_sql: str) -> str:
    return type_sql.partition(" COLLATE ")[0]


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@cache
def parse(spelling: str) -> duckdb.DuckDBPyType:
    """The type behind a spelling, by DuckDB's own parser. Nothing is run, whatever the text says."""
    with duckdb.connect() as connection:
        # Alone it could carry a default or a constraint; inside a STRUCT only a type is taken.
        inside = connection.sqltype(f"STRUCT(x {spelling})").children
    if len(inside) != 1:
        raise duckdb.ParserException(f"Parser Error: {spelling} is more than one type")
    return inside[0][1]


def normalise(cast: str, column: str) -> str:
    """A user's type in DuckDB's own spelling; refused if DuckDB does not know it."""
    if re.search(r"[;]|--|/\*", cast):
        raise PlanRefused(f"{cast!r} is not a type", place=f"columns.{toml_key(column)}")
    try:
        return str(parse(cast))
    except duckdb.Error as error:
        raise PlanRefused(
            f"{cast!r} is not a type that DuckDB knows",
            why=str(error).partition("\n")[0].partition(": ")[2] if isinstance(error, duckdb.CatalogException) else "",
            remedy="for example text, bigint, decimal(38,9), timestamptz",
            place=f"columns.{toml_key(column)}",
        ) from error
