"""Schemas, names and DDL as data: the words every other package speaks.

Names and DDL are plain; columns bring pyarrow, so they are loaded when first asked for: commands
that only read the project file stay quick.
"""

from typing import TYPE_CHECKING, Any

from penstock.schema.ddl import (
    AddColumn,
    AddKey,
    ColumnDef,
    CreateEnum,
    CreateSchema,
    CreateTable,
    Ddl,
    PartitionField,
    WidenColumn,
)
from penstock.schema.names import TableName

if TYPE_CHECKING:
    from penstock.schema.columns import Column, Logical, Schema

__all__ = [
    "AddColumn",
    "AddKey",
    "Column",
    "ColumnDef",
    "CreateEnum",
    "CreateSchema",
    "CreateTable",
    "Ddl",
    "Logical",
    "PartitionField",
    "Schema",
    "TableName",
    "WidenColumn",
]


def __getattr__(name: str) -> Any:
    if name in {"Column", "Logical", "Schema"}:
        from penstock.schema import columns

        return getattr(columns, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
