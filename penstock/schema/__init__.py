"""Schemas, names and DDL as data: the words every other package speaks."""

from penstock.schema.columns import Column, Logical, Schema
from penstock.schema.ddl import AddColumn, AddKey, ColumnDef, CreateEnum, CreateSchema, CreateTable, Ddl, WidenColumn
from penstock.schema.names import TableName

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
    "Schema",
    "TableName",
    "WidenColumn",
]
