"""DuckDB's wording of what SQL targets word differently."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase

from penstock.backends.base import Dialect, StagedColumn
from penstock.backends.duckdb.types import BY_TEXT, TEXT, quote
from penstock.backends.sorting import text_order
from penstock.schema import AddColumn, AddKey, ColumnDef, CreateEnum, CreateSchema, CreateTable, Ddl, WidenColumn


class DuckDBDialect(Dialect):
    sqlglot = "duckdb"
    # A MERGE that changed every row of 4M took 884 MB; delete and insert stay under the limit.
    update_form = "delete_insert"
    declares_keys = False
    savepoints = False
    timestamp_type = "TIMESTAMP WITH TIME ZONE"
    text_type = "VARCHAR"
    bool_type = "BOOLEAN"

    def quote(self, name: str) -> str:
        return quote(name)

    def differs(self, columns: Sequence[tuple[str, str]], left: str, right: str) -> str:
        tests = [
            _differs(f"{left}.{quote(name)}", f"{right}.{quote(name)}", type_sql.upper()) for name, type_sql in columns
        ]
        return "(" + " or ".join(tests) + ")" if tests else "false"

    def key_text(self, columns: Sequence[str]) -> str:
        return " || ', ' || ".join(_key_part(name) for name in columns)

    def now(self) -> str:
        return "now()"

    def sortable(self, value: str, staged: StagedColumn) -> str:
        return text_order(value, staged.column) if staged.native.sql.upper() == TEXT else value


def _differs(left: str, right: str, type_sql: str) -> str:
    """True where two values are not represented alike, which for some types is more than unequal."""
    unequal = f"{left} is distinct from {right}"
    if type_sql in {"FLOAT", "DOUBLE"}:
        return f"({unequal} or signbit({left}) is distinct from signbit({right}))"  # -0.0 = 0.0
    if " COLLATE " in type_sql:
        return f"encode({left}) is distinct from encode({right})"  # 'a' = 'A' under nocase
    if any(word in type_sql for word in BY_TEXT):
        return f"cast({left} as varchar) is distinct from cast({right} as varchar)"
    return unequal


def _key_part(name: str) -> str:
    label = literal(f"{name}=")
    text = f"cast({quote(name)} as varchar)"
    quoted = f"case when typeof({quote(name)}) = 'VARCHAR' then '''' || {text} || '''' else {text} end"
    return f"{label} || coalesce({quoted}, 'null')"


def same_name(column: str) -> str:
    """That a name in the catalog is the bound one, as DuckDB compares names; `lower` would also fold É."""
    return f"translate({column}, {_UPPER}, {_LOWER}) = translate(?, {_UPPER}, {_LOWER})"


_UPPER, _LOWER = f"'{ascii_uppercase}'", f"'{ascii_lowercase}'"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ---------------------------------------------------------------- DDL


def render(ddl: Ddl) -> list[str]:
    if isinstance(ddl, CreateSchema):
        return [f"create schema if not exists {quote(ddl.schema)}"]
    if isinstance(ddl, CreateTable):
        # No key is declared: DuckDB checks keys by an index that must fit into memory as a whole,
        # and loads into an indexed table are several times slower. The load's own checks keep
        # keys unique, and only a load writes the table.
        columns = ",\n  ".join(_column(column) for column in ddl.columns)
        return [f"create table {_relation(ddl.table.parts)} (\n  {columns}\n)"]
    if isinstance(ddl, AddColumn):
        return [f"alter table {_relation(ddl.table.parts)} add column {_added(ddl.column)}"]
    if isinstance(ddl, WidenColumn):
        return [
            f"alter table {_relation(ddl.table.parts)} alter column {quote(ddl.column)} set data type {ddl.type_sql}"
        ]
    if isinstance(ddl, AddKey | CreateEnum):
        return []  # keys: see above; an enum's labels stand in the column's own type
    raise TypeError(ddl)


def _column(column: ColumnDef) -> str:
    default = f" default {column.default_sql}" if column.default_sql else ""
    return f"{quote(column.name)} {column.type_sql}{default}{'' if column.nullable else ' not null'}"


def _added(column: ColumnDef) -> str:
    # DuckDB adds no column with a constraint: rows that exist would have nothing in it anyway.
    default = f" default {column.default_sql}" if column.default_sql else ""
    return f"{quote(column.name)} {column.type_sql}{default}"


def _relation(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)
