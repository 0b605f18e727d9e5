"""DDL as data: what should exist, rendered by each target in its own dialect."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.schema.names import TableName


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column as the target will have it; `type_sql` is in the target's own spelling."""

    name: str
    type_sql: str
    nullable: bool = True
    default_sql: str = ""


@dataclass(frozen=True, slots=True)
class CreateSchema:
    schema: str


@dataclass(frozen=True, slots=True)
class CreateEnum:
    name: str  # as the target spells it, quoted where it must be
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableName
    columns: tuple[ColumnDef, ...]
    primary_key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddColumn:
    table: TableName
    column: ColumnDef


@dataclass(frozen=True, slots=True)
class WidenColumn:
    table: TableName
    column: str
    type_sql: str


@dataclass(frozen=True, slots=True)
class AddKey:
    """Make `columns` the key of a table that already holds rows."""

    table: TableName
    columns: tuple[str, ...]


Ddl = CreateSchema | CreateEnum | CreateTable | AddColumn | WidenColumn | AddKey
