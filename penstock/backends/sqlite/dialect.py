"""SQLite's wording of what SQL targets word differently. Types are words of `schema.words`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pyarrow as pa

from penstock.backends.base import Dialect, StagedColumn, TimeKind
from penstock.backends.sorting import text_order
from penstock.backends.sqlite.moments import UTC
from penstock.backends.sqlite.types import NUMERIC, declared_class, held_class, joined, literal, quote
from penstock.schema import AddColumn, AddKey, ColumnDef, CreateEnum, CreateSchema, CreateTable, Ddl, WidenColumn
from penstock.schema.words import parse

MAIN = "main"
TEXT = parse("text")
# Of a time kept as text and another one after the year 1: a year after 9999 begins with a smaller digit.
EARLIER = "(({0} < {1} and (substr({0}, 5, 1) = '-' or {0} = '-infinity')) or {0} glob '* BC')"
LAST_YEAR = 10**12 - 1  # of twelve digits; 64 bits of seconds reach less far


class SQLiteDialect(Dialect):
    sqlglot = "sqlite"
    update_form = "update_from"
    savepoints = True
    # Otherwise `on conflict replace` or `ignore` of the target's own would remove or leave out rows without a word.
    insert = "insert or abort"
    update = "update or abort"
    timestamp_type = "timestamptz"
    text_type = "text"
    bool_type = "bool"
    hashes = False
    joins_exists = False
    truncates = False

    def quote(self, name: str) -> str:
        return quote(name)

    def cast(self, value: str, type_sql: str) -> str:  # noqa: ARG002  every type is its class
        """A cell of the file itself is of its class already; a cast to anything else is made by the sink."""
        return value

    def differs(self, columns: Sequence[tuple[str, str]], left: str, right: str) -> str:
        tests = [_differs(f"{left}.{quote(name)}", f"{right}.{quote(name)}", type_sql) for name, type_sql in columns]
        return f"({joined(tests, 'or')})" if tests else "false"

    def alike(self, columns: Sequence[tuple[str, str]], alias: str) -> str:
        """The values themselves, one after the other: there is nothing to hash them with."""
        texts = [_alike(f"{alias}.{quote(name)}", type_sql) for name, type_sql in columns]
        return f"({joined(texts, '||')})" if texts else "''"

    def key_text(self, columns: Sequence[str]) -> str:
        return key_text(columns, quote)

    def row_hash(self, columns: Sequence[str], alias: str) -> str:  # noqa: ARG002  nothing to hash them with
        """SQLite has no MD5; the hash is information only."""
        return "cast(null as text)"

    def now(self) -> str:
        return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '+00:00')"

    def instant(self, value: str, kind: TimeKind, zone: str) -> str:  # noqa: ARG002  there is none but UTC
        """As text: only the years 1 to 9999 sort as they follow each other."""
        tail = {"zoned": "", "naive": f" || '{UTC}'", "date": f" || ' 00:00:00{UTC}'"}[kind]
        plain = f"{value} glob '[0-9][0-9][0-9][0-9]-*' and {value} not like '% BC'"
        return f"case when {value} in ('infinity', '-infinity') then {value} when {plain} then {value}{tail} end"

    def sortable(self, value: str, staged: StagedColumn) -> str:
        word = parse(staged.native.sql)
        # In a column that is no more than text, the text of another type still means what it was.
        column = staged.column if word == TEXT else word.column(staged.column.name)
        if held_class(staged.native.sql) != "TEXT":
            return value
        if pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type):
            return moment_order(value)
        return text_order(value, column)

    def earlier(self, value: str, bound: str) -> str:
        return EARLIER.format(value, bound)

    def age_limit(self, keep: str, kind: TimeKind, zone: str) -> str:  # noqa: ARG002  there is none but UTC
        count, unit = keep.split()
        back = f"-{timedelta(**{unit: int(count)}).total_seconds():.6f} seconds"
        if kind == "date":
            return f"date('now', '{back}')"
        moment = f"strftime('%Y-%m-%d %H:%M:%f', 'now', '{back}')"
        return f"({moment} || '{UTC}')" if kind == "zoned" else moment


def moment_order(value: str) -> str:
    """By the year's number: its text sorts in the years 1 to 9999 only. Of those BC the higher one is the earlier."""
    year, rest = f"cast({value} as integer)", f"substr({value}, instr({value}, '-'))"
    return (
        f"case when {value} = '-infinity' then '0'"
        f" when {value} glob '* BC' then '1' || printf('%012d', {LAST_YEAR} - {year}) || {rest}"
        f" when {value} = 'infinity' then '3' else '2' || printf('%012d', {year}) || {rest} end"
    )


def _differs(left: str, right: str, type_sql: str) -> str:
    # A collation may call 'a' and 'A' equal; a loose column may hold 1 and 1.0.
    if type_sql == NUMERIC or held_class(type_sql) == "REAL":
        return f"({left} is not {right} or typeof({left}) is not typeof({right}))"
    return f"({left} collate binary) is not {right}"


def _alike(value: str, type_sql: str) -> str:
    kind = type_sql if type_sql == NUMERIC else held_class(type_sql)
    if kind == "TEXT":
        shown = value
    elif kind == "BLOB":
        shown = f"hex({value})"  # as a text it could end at its first zero
    else:
        # 1 and 1.0 are equal in a column that says no more, and so are 0.0 and -0.0: both as the integer.
        shown = f"iif({value} = cast({value} as integer), cast({value} as integer), {value})"
    return f"ifnull({shown} || ',', ';')"


def key_text(names: Sequence[str], column_of: Callable[[str], str]) -> str:
    """The key columns of a row for people, each by the name that the statement has for it."""
    return " || ', ' || ".join(_key_part(name, column_of(name)) for name in names)


def _key_part(name: str, column: str) -> str:
    shown = (
        f"case typeof({column}) when 'text' then '''' || {column} || '''' when 'blob' then 'x''' || hex({column}) ||"
        f" '''' when 'null' then 'null' else cast({column} as text) end"
    )
    return f"{literal(f'{name}=')} || {shown}"


# ---------------------------------------------------------------- DDL


def render(ddl: Ddl) -> list[str]:
    if isinstance(ddl, CreateTable):
        lines = [_column(column) for column in ddl.columns]
        if ddl.primary_key:
            lines.append(f"primary key ({', '.join(quote(name) for name in ddl.primary_key)})")
        body = ",\n  ".join(lines)
        return [f"create table {_relation(ddl.table.parts)} (\n  {body}\n) strict"]
    if isinstance(ddl, AddColumn):
        return [f"alter table {_relation(ddl.table.parts)} add column {_column(ddl.column)}"]
    if isinstance(ddl, WidenColumn):
        # See rebuild.py: what it takes depends on the table that is there.
        held = f"{ddl.type_sql}, kept as {declared_class(ddl.type_sql)}"
        return [f"-- {_relation(ddl.table.parts)}: {quote(ddl.column)} becomes {held}"]
    if isinstance(ddl, AddKey | CreateEnum | CreateSchema):
        return []  # a key is declared with its table; there are neither enums nor schemas
    raise TypeError(ddl)


def _column(column: ColumnDef) -> str:
    default = f" default {column.default_sql}" if column.default_sql else ""
    required = "" if column.nullable else " not null"
    return f"{quote(column.name)} {declared_class(column.type_sql)}{default}{required}"


def _relation(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)
