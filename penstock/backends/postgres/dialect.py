"""Postgres' wording of what loads are made of. Text only: nothing here touches a server."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.base import Dialect, PartitionField, Step, TimeKind
from penstock.backends.postgres import partitions
from penstock.backends.postgres.connect import identifier, literal
from penstock.schema import (
    AddColumn,
    AddKey,
    ColumnDef,
    CreateEnum,
    CreateSchema,
    CreateTable,
    Ddl,
    TableName,
    WidenColumn,
)

_TEXTS = "('text', 'character varying', 'character')"


class PostgresDialect(Dialect):
    sqlglot = "postgres"
    update_form = "update_from"
    row_id = "ctid"
    savepoints = True
    merges = True
    timestamp_type = "timestamp with time zone"
    text_type = "text"
    bool_type = "boolean"

    def quote(self, name: str) -> str:
        return identifier(name)

    def differs(self, columns: Sequence[tuple[str, str]], left: str, right: str) -> str:
        if not columns:
            return "false"
        # Record images: the bytes as stored, so 1.0 and 1.00, 1 day and 24 h are not the same.
        # They must be of the very same types: a domain is none of its base type.
        lefts = ", ".join(f"{left}.{identifier(name)}::{type_sql}" for name, type_sql in columns)
        rights = ", ".join(f"{right}.{identifier(name)}::{type_sql}" for name, type_sql in columns)
        return f"row({lefts})::record *<> row({rights})::record"

    def key_text(self, columns: Sequence[str]) -> str:
        parts = []
        for name in columns:
            column = identifier(name)
            shown = (
                f"case when {column} is null then 'NULL'"
                f" when pg_catalog.pg_typeof({column})::text in {_TEXTS} then pg_catalog.quote_literal({column}::text)"
                f" else {column}::text end"
            )
            parts.append(f"{literal(name + '=')} || {shown}")
        return " || ', ' || ".join(parts) if parts else "''"

    def overriding(self) -> str:
        return "overriding system value"

    def reset_sequence(self, table: TableName, column: str) -> str:
        sequence = f"pg_catalog.pg_get_serial_sequence({literal(qualified(table))}, {literal(column)})"
        last = f"pg_catalog.pg_sequence_last_value({sequence}::pg_catalog.regclass)"
        name = identifier(column)
        # Never back: the application may have drawn further numbers than the table holds. Never out of
        # the sequence's own bounds, where it would give none of the table's numbers anyway.
        return (
            f"select pg_catalog.setval({sequence}, case when seqincrement > 0"
            f" then least(greatest(highest, coalesce({last}, highest)), seqmax)"
            f" else greatest(least(lowest, coalesce({last}, lowest)), seqmin) end)"
            f" from pg_catalog.pg_sequence, (select max({name})::pg_catalog.int8 as highest,"
            f" min({name})::pg_catalog.int8 as lowest from {qualified(table)}) as loaded"
            f" where seqrelid = {sequence}::pg_catalog.regclass"
            " and case when seqincrement > 0 then highest >= seqmin else lowest <= seqmax end"
        )

    def make_partitions(
        self, table: TableName, field: PartitionField, kind: TimeKind, key_text: str
    ) -> tuple[Step, ...]:
        return partitions.steps(table, field, kind, key_text)

    def now(self) -> str:
        # As a subquery it is read once per statement, not once per row.
        return "(select pg_catalog.clock_timestamp())"


def qualified(table: TableName) -> str:
    return ".".join(identifier(part) for part in table.parts)


def render(ddl: Ddl) -> list[str]:
    """The statements that bring `ddl` about."""
    if isinstance(ddl, CreateSchema):
        return [f"create schema if not exists {identifier(ddl.schema)}"]
    if isinstance(ddl, CreateEnum):
        return [f"create type {ddl.name} as enum ({', '.join(literal(label) for label in ddl.labels)})"]
    if isinstance(ddl, CreateTable):
        return [create_table(ddl, qualified(ddl.table))]
    if isinstance(ddl, AddColumn):
        return [f"alter table {qualified(ddl.table)} add column {_column(ddl.column)}"]
    if isinstance(ddl, WidenColumn):
        column = identifier(ddl.column)
        change = f"type {ddl.type_sql} using {column}::{ddl.type_sql}"
        return [f"alter table {qualified(ddl.table)} alter column {column} {change}"]
    return [f"alter table {qualified(ddl.table)} add {_key(ddl)}"]


def create_table(ddl: CreateTable, name: str, *, keep: bool = False) -> str:
    """CREATE TABLE under another `name`; with `keep`, one that is there stays."""
    lines = [_column(column) for column in ddl.columns]
    if ddl.primary_key:
        lines.append(f"primary key ({', '.join(identifier(column) for column in ddl.primary_key)})")
    parted = f" {partitions.clause(ddl.partition_by[0])}" if ddl.partition_by else ""
    return f"create table {'if not exists ' if keep else ''}{name} (\n  " + ",\n  ".join(lines) + f"\n){parted}"


def _key(ddl: AddKey) -> str:
    return f"primary key ({', '.join(identifier(column) for column in ddl.columns)})"


def _column(column: ColumnDef) -> str:
    default = f" default {column.default_sql}" if column.default_sql else ""
    return f"{identifier(column.name)} {column.type_sql}{default}{'' if column.nullable else ' not null'}"
