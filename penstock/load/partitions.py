"""How a target is partitioned: the fields of `partition_by`, held against what is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.backends.base import Dialect, PartitionField, Step, TargetTable
from penstock.load.columns import ColumnsPlan
from penstock.load.times import time_kind
from penstock.project.model import Pipeline
from penstock.schema import TableName


def partition_fields(pipeline: Pipeline, columns: ColumnsPlan) -> tuple[PartitionField, ...]:
    """The pipeline's fields, by the columns' names in the target."""
    fields = [PartitionField.parse(text) for text in pipeline.partition_by]
    names = columns.named([field.column for field in fields])
    return tuple(replace(field, column=name) for field, name in zip(fields, names, strict=True))


def partition_refusals(fields: tuple[PartitionField, ...], columns: ColumnsPlan, *, sql: bool) -> list[str]:
    """Fields that are no columns of the load, or times that are none."""
    loaded = {staged.column.name: staged for staged in columns.columns}
    known = {*loaded, *(staged.column.name for staged in columns.refused)}
    findings = []
    for field in fields:
        if field.column not in known:
            findings.append(f"partition_by names {field.column}, which is no column that is loaded")
        elif field.transform and field.column in loaded:
            kind = time_kind(loaded[field.column], sql=sql)
            if not kind:
                shown = loaded[field.column].native.sql
                findings.append(
                    f"partition_by = {str(field)!r} needs a date or timestamp, and {field.column} is {shown}"
                )
            elif kind == "date" and field.transform == "hour":
                findings.append(f"partition_by = {str(field)!r}: a date has no hours")
    if not sql and fields and loaded.keys() <= {field.column for field in fields}:
        # Its values stand in the folders' names: a file without a column has no rows.
        findings.append("partition_by names every column, so that the files would hold none: leave one out")
    return findings


def existing_refusals(fields: Sequence[PartitionField], existing: TargetTable | None) -> list[str]:
    """A table is partitioned once and for all: one that is there must be so as it is asked for."""
    if not fields or existing is None:
        return []
    asked = " and ".join(map(str, fields))
    if not existing.partitioned:
        return [f"{existing.name} is there without partitions: leave partition_by out, or load into a new table"]
    wanted = "range" if fields[0].transform else "list"
    if existing.partitioned != wanted or existing.partition_columns != tuple(field.column for field in fields):
        return [
            f"{existing.name} is partitioned by {_shown(existing)}, not by {wanted} as partition_by = {asked!r} is:"
            " set it to what the table has, or leave it out"
        ]
    return []


def _shown(existing: TargetTable) -> str:
    columns = ", ".join(name or "an expression" for name in existing.partition_columns)
    return f"{existing.partitioned} ({columns})"


def partition_notes(
    fields: Sequence[PartitionField], existing: TargetTable | None, key: Sequence[str], *, declared: bool
) -> list[str]:
    """What a reader of the plan should know; `key` is what the table would have without partitions."""
    if not fields:
        if existing is None or not existing.partitioned:
            return []
        return [
            f"it is partitioned by {_shown(existing)}: a row without a partition stops the load;"
            " partition_by makes them as they are needed"
        ]
    asked = " and ".join(map(str, fields))
    notes = [f"partitions by {asked} are made as the rows need them, in the load's own transaction"]
    if existing is None and key and not declared:
        notes.append(
            f"no primary key ({', '.join(key)}) is declared: of a partitioned table it must hold"
            f" {', '.join(field.column for field in fields)}; the load's own checks keep keys unique"
        )
    return notes


def partition_steps(
    fields: Sequence[PartitionField], columns: ColumnsPlan, dialect: Dialect, table: TableName, key_text: str
) -> list[Step]:
    """Before the first row goes in: the partitions that it needs."""
    kinds = {staged.column.name: time_kind(staged, sql=True) for staged in columns.columns}
    return [
        step
        for field in fields
        if field.column in kinds
        for step in dialect.make_partitions(table, field, kinds[field.column], key_text)
    ]
