"""DDL as data: what should exist, rendered by each target in its own dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from penstock.schema.names import TableName

Transform = Literal["", "year", "month", "day", "hour"]
TRANSFORMS: tuple[Transform, ...] = ("year", "month", "day", "hour")
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """What a table is partitioned by: a column's own values, or the year, month, day or hour of a time.

    Times with a zone are cut in UTC, others as they stand.
    """

    column: str
    transform: Transform = ""

    @staticmethod
    def parse(text: str) -> PartitionField:
        """`region`, or `month(created_at)`; a ValueError says what else it is."""
        found = _CALL.fullmatch(text)
        if found is None:
            if not text:
                raise ValueError("it names no column")
            return PartitionField(text)
        for transform in TRANSFORMS:
            if found[1] == transform and found[2]:
                return PartitionField(found[2], transform)
        forms = ", ".join(f"{transform}(column)" for transform in TRANSFORMS)
        raise ValueError(f"{text!r} is no form of it: a column, or {forms}")

    @property
    def form(self) -> str:
        """As `Capabilities.partition_by` names it."""
        return self.transform or "value"

    def __str__(self) -> str:
        return f"{self.transform}({self.column})" if self.transform else self.column


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
    partition_by: tuple[PartitionField, ...] = ()


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
