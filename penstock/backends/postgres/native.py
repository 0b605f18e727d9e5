"""Canonical column → the type that holds it in a Postgres target, with the verdict.

Pure: what only the server knows (which types exist, how it spells them) is asked by `write.py` and
handed in. Templates hold `{}` for the staged column, several times where they must, and are
filled by replacing the text `{}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.backends.base import Native, Verdict
from penstock.backends.postgres.casts import checked, input_valid
from penstock.backends.postgres.spelling import Spelling
from penstock.backends.postgres.wireforms import ELEMENT_OIDS
from penstock.schema import Column, Ddl
from penstock.schema.columns import ENUM, INTERVAL, JSON, NATIVE, NUMERIC, OPAQUE, TIME, UUID

TEXT = "text"
TIMESTAMP = "timestamp without time zone"
TIMESTAMPTZ = "timestamp with time zone"
TIME_OF_DAY = "time without time zone"

_NATURAL: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): TIME_OF_DAY,
    pa.time64("ns"): TIME_OF_DAY,
    pa.uuid(): "uuid",
    pa.json_(): "json",
}
_WIDENED = frozenset({pa.int8(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()})
_BY_LOGICAL = {NUMERIC: "numeric", INTERVAL: "interval", JSON: "json", UUID: "uuid", TIME: TIME_OF_DAY}

# Types whose binary form is their text, so that a string can be copied into them.
_STRING_DIRECT = frozenset({TEXT, "character varying", "character", "bpchar", "name", "json", "jsonb", "xml"})

# Values that types have got since the oldest server: since when, what older ones hold, and what the plan says.
_NEWER_VALUES = {
    "interval": (
        170_000,
        "{}::text !~ 'infinity'",
        "the server has no infinite intervals (they come with version 17)",
    ),
}

# Types whose values are other things of the same database: their text is a name, to be found in the target.
_NAMES = frozenset(
    {"regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator"}
    | {"regproc", "regprocedure", "regrole", "regtype", "aclitem"}
)
# A cast from text to this one, unlike its input, takes no number, as which a thing that is gone is printed.
_REGCLASS = (
    "(case when {} ~ '^(-|[0-9]+)$' then pg_catalog.replace({}, '-', '0')::oid::regclass else {}::regclass end)"
    "::regclass"
)
# Types of the server's own catalogs, which it prints and does not read.
_PRINTED = frozenset(
    {"gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"}
    | {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}
)


@dataclass(frozen=True, slots=True)
class Held:
    """A type that the target has, or can be given."""

    sql: str
    labels: tuple[str, ...] | None = None  # of an enum
    ddl: tuple[Ddl, ...] = ()  # what makes it
    missing: str = ""  # the source's type that the target lacks or does not read; `sql` is text then


_TEXT = Spelling(TEXT)


def is_printed_only(sql: str) -> bool:
    return Spelling.parse(sql).base in _PRINTED


def natural(type_: pa.DataType) -> str | None:
    """The type for an Arrow type, None if Postgres has none."""
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is None else TIMESTAMPTZ
    if pa.types.is_list(type_):
        element = natural(type_.value_type)
        return None if element is None or pa.types.is_list(type_.value_type) else f"{element}[]"
    return _NATURAL.get(type_)


def own_type(column: Column) -> str | None:
    """The type that a column without a Postgres past gets."""
    if column.logical is not None:
        return _BY_LOGICAL.get(column.logical.kind, TEXT)
    return natural(column.type)


def staging_type(column: Column, native: Native) -> str:
    """What the staging table has for the column."""
    if native.direct:
        return native.sql
    return natural(column.type) or TEXT


def plan(column: Column, own: Held | None, want: Held | None, *, asked: bool, server: int) -> Native:
    """How the column is held.

    `own` is the type it has by itself, `want` the type of an existing column or, when `asked`, of
    the user's cast.
    """
    planned = _plan(column, own, want, asked=asked, server=server)
    base = Spelling.parse(planned.sql).base
    if planned.valid or planned.verdict is Verdict.REFUSED:
        return planned
    if base in _NAMES:
        known = f"({{}} is null or {input_valid('{}', planned.sql, server)})"
        return replace(planned, verdict=Verdict.CHECKED, valid=known, note="names are looked up in the target")
    since, valid, note = _NEWER_VALUES.get(base, (0, "", ""))
    if server >= since:
        return planned
    return replace(planned, verdict=Verdict.CHECKED, valid=valid, note=planned.note or note)


def _plan(column: Column, own: Held | None, want: Held | None, *, asked: bool, server: int) -> Native:
    if own is None:
        return refusal(column, f"Postgres has no type for {column.type}", "text")
    target = want or own
    if column.logical is not None and column.logical.kind == OPAQUE and not asked:
        return refusal(column, f"the text of {column.describe()} does not tell the whole value", "text")
    if _nanoseconds(column.type):
        if not asked or Spelling.parse(target.sql).base != natural(column.type):
            return refusal(column, "Postgres keeps microseconds, the column has nanoseconds", own.sql)
        if not Spelling.parse(target.sql).mods:  # fewer digits are checked below like those of any other column
            return Native(target.sql, Verdict.CHECKED, note="nanoseconds are refused while staging")
    if want is None or want.sql == own.sql:
        return _same(column, own, want)
    if own.labels is not None and want.labels is not None:
        return _enum(column, own.labels, want)
    as_is = column.logical is not None and column.logical.kind in (NATIVE, ENUM)
    if (
        want.sql == TEXT
        and pa.types.is_string(column.type)
        and (asked or as_is or widens(Spelling.parse(own.sql), _TEXT))
    ):
        return Native(TEXT, Verdict.WIDENED, note=f"{own.sql} as its text")
    if widens(Spelling.parse(own.sql), Spelling.parse(want.sql)):
        return Native(
            want.sql, Verdict.WIDENED, decode=f"{_decode(column, own.sql)}::{want.sql}", direct=False,
            note=f"{own.sql} fits in {want.sql}", fallback=_fallback(column),
        )  # fmt: skip
    if not asked:
        back = widens(Spelling.parse(want.sql), Spelling.parse(own.sql)) and not own.missing
        refused = refusal(column, f"{own.sql} does not always fit in {want.sql}", want.sql)
        return replace(refused, sql=want.sql, widen_to=own.sql if back else "")
    made = checked(_decode(column, own.sql), own.sql, want.sql, server)
    if made is None:
        return refusal(column, f"there is no checked cast from {own.sql} to {want.sql}", "text")
    decode, valid = made
    verdict = Verdict.CHECKED if valid else Verdict.WIDENED
    return Native(want.sql, verdict, decode=decode, valid=valid, direct=False, fallback=_fallback(column))


def _same(column: Column, own: Held, want: Held | None) -> Native:
    """The column's own type, in a new table or an existing one."""
    if want is not None and own.labels is not None and want.labels is not None:
        return _enum(column, own.labels, want)
    if own.missing:
        return Native(
            TEXT, Verdict.WIDENED, fallback=_fallback(column),
            note=f"the target takes no {own.missing}: kept as its text",
        )  # fmt: skip
    direct = not own.ddl and _is_direct(column, own)
    widened = column.type in _WIDENED or (pa.types.is_timestamp(column.type) and column.type.unit in ("s", "ms"))
    note = ""
    if column.logical is not None and own.sql == TEXT and column.native_in("postgres") is None:
        note = "an enum kept as text" if column.logical.kind == ENUM else "kept as its text"
    return Native(
        own.sql,
        Verdict.WIDENED if widened else Verdict.EXACT,
        decode="{}" if direct else _typed(column, own.sql),
        direct=direct,
        note=note,
        fallback=_fallback(column),
        ddl=own.ddl,
    )


def _typed(column: Column, sql: str) -> str:
    inner = _decode(column, sql)
    return inner if inner.endswith(f"::{sql}") or sql == TEXT else f"{inner}::{sql}"


def _enum(column: Column, labels: tuple[str, ...], want: Held) -> Native:
    lost = [label for label in labels if label not in (want.labels or ())]
    if lost:
        return refusal(column, f"the target's enum {want.sql} lacks {len(lost)} of the source's labels", "text")
    exact = labels == want.labels
    return Native(want.sql, Verdict.EXACT if exact else Verdict.WIDENED)


def _is_direct(column: Column, own: Held) -> bool:
    held = Spelling.parse(own.sql)
    if pa.types.is_list(column.type):
        element = Spelling(held.base, held.mods)
        staged = Spelling.parse(staging_type(column, Native(own.sql, direct=False)).removesuffix("[]"))
        return held.array and element == staged and held.base in ELEMENT_OIDS
    if held.array:
        return False
    if pa.types.is_string(column.type):
        return own.labels is not None or held.base in _STRING_DIRECT or held.base.endswith(".citext")
    if isinstance(column.type, pa.JsonType):
        return held.base in ("json", "jsonb")
    staged = Spelling.parse(natural(column.type) or TEXT)
    # A typmod of time types only cuts digits that a value of that very type does not have.
    times = pa.types.is_timestamp(column.type) or pa.types.is_time(column.type)
    return held == staged or (times and held.base == staged.base)


def _decode(column: Column, sql: str) -> str:
    """From what is staged (not directly) to the column's own type."""
    if pa.types.is_list(column.type):
        return f"{{}}::{sql}"
    if pa.types.is_string(column.type) and Spelling.parse(sql).base not in (TEXT, "character varying", "character"):
        return _REGCLASS if sql == "regclass" else "{}::" + sql
    return "{}"


_INTEGER_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_ORDER = ("smallint", "integer", "bigint")
_LENGTHS = ("character varying",)


def widens(own: Spelling, want: Spelling) -> bool:
    """Every value of `own` is a value of `want`, and means the same there."""
    if own.array or want.array:
        return own.array and want.array and widens(Spelling(own.base, own.mods), Spelling(want.base, want.mods))
    if own == want or {own, want} == {_TEXT, Spelling("character varying")}:
        return True
    if own.base in _ORDER:
        if want.base in _ORDER:
            return _ORDER.index(own.base) < _ORDER.index(want.base)
        if want.base == "numeric":
            return not want.mods or (want.mods[1] >= 0 and want.mods[0] - want.mods[1] >= _INTEGER_DIGITS[own.base])
        return want.base == "double precision" and own.base != "bigint"
    if own.base == "real":
        return want.base == "double precision"
    if own.base == "numeric" and want.base == "numeric":
        if not want.mods or not own.mods:
            return not want.mods
        return want.mods[1] >= own.mods[1] and want.mods[0] - want.mods[1] >= own.mods[0] - own.mods[1]
    if want.base == TEXT:
        return own.base in ("character varying", "character", "bpchar", "name") or own.base.endswith(".citext")
    if own.base == want.base and own.base in (*_LENGTHS, TIMESTAMP, TIMESTAMPTZ, TIME_OF_DAY, "interval"):
        return not want.mods or (bool(own.mods) and own.mods[0] <= want.mods[0])
    return own.base == "jsonb" and want.base == "json"


def _fallback(column: Column) -> bool:
    """Postgres itself has values here that the Arrow form lacks, and its text form is loadable."""
    if column.native_in("postgres") is None:
        return False
    tests = (pa.types.is_decimal, pa.types.is_list, pa.types.is_timestamp)
    return any(test(column.type) for test in tests)


def _nanoseconds(type_: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(type_) or pa.types.is_time(type_)) and type_.unit == "ns")


def refusal(column: Column, why: str, cast: str) -> Native:
    key = column.name if re.fullmatch(r"[A-Za-z0-9_-]+", column.name) else f'"{column.name}"'
    return Native(TEXT, Verdict.REFUSED, note=why, remedy=f'columns.{key} = "{cast}"')
