"""Casts that the user asks for, and the condition under which they lose nothing.

A condition never raises: PostgreSQL's own casts stop at the first bad value without naming its
row, and `insert … select` rounds, cuts and shifts without a word.
"""

from __future__ import annotations

import re

from penstock.backends.postgres.spelling import Spelling

INPUT_VALID_SINCE = 160_000
INPUT_VALID = "_penstock.input_is_valid"  # made by the load on servers that lack pg_input_is_valid

# Types with a grammar of their own (jsonpath, tsquery) or names in them (regclass) call a bad value a
# fault of the statement, and one that is too long (tsvector) a limit of the program.
INPUT_VALID_DDL = """
create function _penstock.input_is_valid(value text, type_name text) returns boolean
language plpgsql stable strict as $body$
begin
  execute pg_catalog.format('select %L::%s', value, type_name);
  return true;
exception when data_exception or syntax_error_or_access_rule_violation or program_limit_exceeded then
  return false;
end $body$
"""

_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}
_FLOATS = ("real", "double precision")
_TEXTS = ("text", "character varying", "character", "bpchar")
# Numbers as they are printed: 007, +7 and 1e2 are texts of another kind, which a number would not give back.
_INTEGER_TEXT = r"-?(0|[1-9]\d*)(\.\d*)?"
_NUMERIC_TEXT = rf"({_INTEGER_TEXT}|NaN|-?Infinity)"
_FLOAT_TEXT = rf"({_INTEGER_TEXT}([eE][-+]?\d+)?|NaN|nan|-?(Infinity|inf))"
_MINUS_ZERO = r"-0(\.0*)?"
_TIMES = re.compile(r"(timestamp|time)(\(\d\))? (without|with) time zone")


def checked(value: str, own: str, want: str, server: int) -> tuple[str, str] | None:
    """`(decode, valid)` from the expression `value` of type `own`; None if there is no such cast.

    An empty `valid` means that the cast cannot lose anything.
    """
    base = _parts(want)[0]
    valid = _valid(value, own, want, server)
    if base == "text":
        return f"{value}::text", ""
    if valid is None:
        return None
    # A float's own numeric cast keeps 15 digits; its text keeps all.
    through = f"{value}::text" if _parts(own)[0] in _FLOATS and base == "numeric" else value
    through = f"{through}::text" if base in _TEXTS and _parts(own)[0] not in _TEXTS else through
    # An integer's own input takes no `1.0`.
    through = f"{value}::numeric" if base in _RANGES and _parts(own)[0] in _TEXTS else through
    return f"{through}::{want}", f"({value} is null or {valid})" if valid else ""


def _valid(value: str, own: str, want: str, server: int) -> str | None:
    have, base, mods = _parts(own)[0], *_parts(want)
    if base in _TEXTS:
        return f"pg_catalog.char_length({value}::text) <= {mods[0]}" if mods else ""
    if have in _TEXTS:
        return _from_text(value, have, want, server)
    if have in _RANGES or have == "numeric":
        return _from_exact(value, base, mods)
    if have in _FLOATS:
        return _from_float(value, base, mods)
    return _between_times(value, own, want)


def _from_exact(value: str, base: str, mods: tuple[int, ...]) -> str | None:
    number = f"{value}::numeric"
    if base in _RANGES:
        bits = _RANGES[base]
        return f"({number} = pg_catalog.trunc({number}) and {number} between {-(2**bits)} and {2**bits - 1})"
    if base == "numeric":
        return _fits_numeric(number, mods)
    if base in _FLOATS:
        short = "real" if base == "real" else "float8"
        limit = "1e38" if base == "real" else "1e308"
        tiny = "1e-37" if base == "real" else "1e-300"
        return (
            f"case when {number} = 0 then true when pg_catalog.abs({number}) between {tiny} and {limit}"
            f" then {number}::{short}::text::numeric = {number} else false end"
        )
    if base == "boolean":
        return f"{number} in (0, 1)"
    return None


def _fits_numeric(number: str, mods: tuple[int, ...]) -> str:
    if not mods:
        return ""
    precision, scale = mods[0], mods[1] if len(mods) > 1 else 0
    bound = f"1e{precision - scale}::numeric"
    return (
        f"({number} = 'NaN'::numeric or (pg_catalog.abs({number}) < {bound}"
        f" and {number} = pg_catalog.round({number}, {scale})))"
    )


def _from_float(value: str, base: str, mods: tuple[int, ...]) -> str | None:
    number = f"{value}::float8"
    if base in _RANGES:
        bound = 2 ** _RANGES[base]
        return (
            f"({number} = pg_catalog.trunc({number}) and {number} >= {-bound}::float8 and {number} < {bound}::float8"
            f" and {number}::text <> '-0')"
        )
    if base == "real":
        special = f"{number} in ('NaN'::float8, 'Infinity'::float8, '-Infinity'::float8, 0)"
        return (
            f"case when {special} then true when pg_catalog.abs({number}) between 1.5e-45 and 3.4028234e38"
            f" then {number}::real::float8 = {number} else false end"
        )
    if base == "double precision":
        return ""
    if base == "numeric":
        fits = _fits_numeric(f"{value}::text::numeric", mods) or "true"
        return f"case when {number}::text in ('Infinity', '-Infinity', '-0') then false else {fits} end"
    return None


def input_valid(value: str, type_sql: str, server: int) -> str:
    """True where the text `value` can be read as the type; never an error."""
    function = "pg_catalog.pg_input_is_valid" if server >= INPUT_VALID_SINCE else INPUT_VALID
    quoted = "'" + type_sql.replace("'", "''") + "'"
    return f"{function}({value}::text, {quoted})"


def _from_text(value: str, have: str, want: str, server: int) -> str:
    """What a text means as the wanted type: readable, and nothing of the meaning cut off."""
    base, mods = _parts(want)

    def readable(type_sql: str) -> str:
        return input_valid(value, type_sql, server)

    # A source's own collation may be one that knows no regular expressions.
    plain_text = f'({value})::text collate pg_catalog."C"'
    # Behind a char(n) stand spaces that are none of its own.
    number_text = f"pg_catalog.rtrim({plain_text})" if have in ("character", "bpchar") else plain_text
    if base in _RANGES or base == "numeric":
        meaning = _from_exact(f"({value})::numeric", base, mods) or "true"
        printed = f"{number_text} ~ '^{_NUMERIC_TEXT if base == 'numeric' else _INTEGER_TEXT}$'"
        fits = f"{printed} and {number_text} !~ '^{_MINUS_ZERO}$' and {readable('numeric')}"
        return f"case when {fits} then {meaning} else false end"
    if base in _FLOATS:
        same = f"({value})::{base}::text::numeric = ({value})::numeric"
        fits = f"{number_text} ~ '^{_FLOAT_TEXT}$' and {readable(base)} and {readable('numeric')}"
        return f"case when {fits} then {same} else false end"
    # These words mean another moment at every run.
    moving = f"{plain_text} ~* '(now|today|tomorrow|yesterday)'"
    if base == "date":
        same = f"({value})::timestamptz = ({value})::date::timestamptz"
        fits = f"{readable('timestamptz')} and {readable('date')}"
        return f"case when {moving} then false when {fits} then {same} else false end"
    whole = readable(want)
    if _TIMES.fullmatch(want):
        plain = _TIMES.sub(r"\1 \3 time zone", want)
        cut = f"{plain_text} ~ '\\.\\d\\d\\d\\d\\d\\d\\d*[1-9]'"
        same = f"({value})::{want} = ({value})::{plain}"
        zoned = plain.replace("without", "with")
        if zoned != plain:
            # A zone in the text is dropped without a word; in UTC, where all sessions are, it shows.
            same = f"{same} and ({value})::{zoned} = ({value})::{plain}::{zoned}"
        return f"case when {cut} or {moving} or not {whole} then false else {same} end"
    # What elements or fields have beyond the type is cut off without a word.
    if base.endswith("[]"):
        return f"case when {whole} then ({value})::{want}::text = ({value})::text else false end"
    if want.startswith("interval") and want != "interval":
        return f"case when {whole} then ({value})::{want}::text = ({value})::interval::text else false end"
    return whole


def _between_times(value: str, own: str, want: str) -> str | None:
    have, base = _parts(own)[0], _parts(want)[0]
    stamps = ("timestamp without time zone", "timestamp with time zone")
    if have in stamps and base == "date":
        return f"{value}::date::timestamp = {value}::timestamp"
    if have == "date" and base in stamps:
        return f"(not pg_catalog.isfinite({value}) or {value} <= '294276-12-31'::date)"
    if have in stamps and base in stamps:
        return f"{value}::{want}::{own} = {value}" if _parts(want)[1] else ""
    if have == base and have.startswith(("time", "interval")):
        return f"{value}::{want}::{own} = {value}"
    if have == "text[]" and base == "character varying[]":
        return f"{value}::{want}::{own} = {value}"
    if have == "json" and base == "jsonb":
        return f"{value}::text !~ '\\\\u0000'"
    if have == "boolean" and base in _RANGES:
        return "" if base == "integer" else None
    return None


def _parts(sql: str) -> tuple[str, tuple[int, ...]]:
    spelled = Spelling.parse(sql)
    return f"{spelled.base}[]" if spelled.array else spelled.base, spelled.mods
