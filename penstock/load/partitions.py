"""How a target is partitioned: the fields of `partition_by`, held against what is loaded."""

from __future__ import annotations

from dataclasses import replace

from penstock.backends.base import Capabilities, Dialect, PartitionField
from penstock.errors import Unsupported
from penstock.load.columns import ColumnsPlan
from penstock.load.times import time_kind
from penstock.project.model import Pipeline


def partition_fields(pipeline: Pipeline, columns: ColumnsPlan) -> tuple[PartitionField, ...]:
    """The pipeline's fields, by the columns' names in the target."""
    fields = [PartitionField.parse(text) for text in pipeline.partition_by]
    names = columns.named([field.column for field in fields])
    return tuple(replace(field, column=name) for field, name in zip(fields, names, strict=True))


def require_partitions(pipeline: Pipeline, capabilities: Capabilities) -> None:
    """Refuse what the target cannot be partitioned by."""
    if not pipeline.partition_by:
        return
    title, most = capabilities.title, capabilities.max_partition_fields
    if not capabilities.partition_by:
        raise _unable(pipeline, f"{title} has no partitions", "leave partition_by out")
    for field in pipeline.partition_by:
        if PartitionField.parse(field).form not in capabilities.partition_by:
            forms = ", ".join(sorted(capabilities.partition_by))
            raise _unable(pipeline, f"{title} is not partitioned by {field}", f"it takes: {forms}")
    if most is not None and len(pipeline.partition_by) > most:
        fields = ", ".join(pipeline.partition_by)
        raise _unable(pipeline, f"{title} is partitioned by {most} column, not by {fields}", "name one of them")


def partition_refusals(fields: tuple[PartitionField, ...], columns: ColumnsPlan, dialect: Dialect | None) -> list[str]:
    """Fields that are no columns of the load, or times that are none."""
    loaded = {staged.column.name: staged for staged in columns.columns}
    known = {*loaded, *(staged.column.name for staged in columns.refused)}
    findings = []
    for field in fields:
        if field.column not in known:
            findings.append(f"partition_by names {field.column}, which is no column that is loaded")
        elif field.transform and field.column in loaded:
            kind = time_kind(loaded[field.column], dialect)
            if not kind:
                shown = loaded[field.column].native.sql
                findings.append(
                    f"partition_by = {str(field)!r} needs a date or timestamp, and {field.column} is {shown}"
                )
            elif kind == "date" and field.transform == "hour":
                findings.append(f"partition_by = {str(field)!r}: a date has no hours")
    return findings


def _unable(pipeline: Pipeline, what: str, remedy: str) -> Unsupported:
    return Unsupported(what, kept="nothing was touched", remedy=remedy, place=pipeline.place)
