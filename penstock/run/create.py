"""Declared tables made and evolved by themselves, without a row: the same planner, locks and transaction as a load."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.backends.base import NOBODY
from penstock.backends.memory.types import field_of
from penstock.errors import ConfigError
from penstock.project.findings import suggestion
from penstock.project.load import build_one, find_declared
from penstock.project.model import Pipeline, Project
from penstock.project.tables import ManagedTable
from penstock.run.current import project_of
from penstock.run.handed import NAME, TABLE, HandedTable
from penstock.run.pipeline import begun, context_of
from penstock.run.prepare import Prepared, prepare
from penstock.run.records import RunOptions
from penstock.schema.ddl import PartitionField
from penstock.schema.declared import DeclaredTable
from penstock.schema.words import parse


def create(
    table: type[ManagedTable] | str, *, dry_run: bool = False, project: Project | Path | str | None = None
) -> tuple[str, ...]:
    """Make the table that a class declares, or let it follow its class; the statements that were run.

    With `dry_run`, those that would be. None, if the table is as the class says.
    """
    found = project_of(project)
    declared = _declared(found, table)
    options: dict[str, Any] = {
        "name": NOBODY,
        "place": declared.place,
        "source": NAME,
        "table": TABLE,
        "target": table if isinstance(table, type) else str(declared),
        "mode": "append",
    }
    loader = _loader(found, declared)
    options |= _shape(loader, declared) if loader is not None else {}
    with closing(_planned(found, declared, options)) as prepared:
        if not (prepared.planned.created and loader is not None and loader.deletes == "soft"):
            return _carried_out(prepared, declared, dry_run=dry_run)
    # Only of a table that is not there: in one with rows, no row at all would count as their loss.
    with closing(_planned(found, declared, options | {"deletes": "soft"})) as prepared:
        return _carried_out(prepared, declared, dry_run=dry_run)


def _planned(project: Project, declared: DeclaredTable, options: Mapping[str, Any]) -> Prepared:
    rows = pa.schema([field_of(parse(one.word).column(one.name)) for one in declared.columns]).empty_table()
    pipeline = build_one(project, options, handed=True).model_copy(update={"handed": HandedTable(rows)})
    return prepare(project, pipeline, TABLE, context_of(project, pipeline), RunOptions())


def _loader(project: Project, declared: DeclaredTable) -> Pipeline | None:
    """The pipeline that wants more of the table than the class says, if there is one."""
    loaders = [one for one in project.pipelines.values() if one.declared and one.declared.title == declared.title]
    return next((one for one in loaders if one.mode == "scd2" or one.deletes == "soft" or one.partition_by), None)


def _shape(loader: Pipeline, declared: DeclaredTable) -> dict[str, Any]:
    """What it makes of the table: a history has more columns, and another key. By the names in the target."""
    named = {name: option.rename or name for name, option in loader.columns.items()}
    fields = [PartitionField.parse(text) for text in loader.partition_by]
    shape: dict[str, Any] = {
        "partition_by": [str(replace(field, column=named.get(field.column, field.column))) for field in fields]
    }
    if loader.mode == "scd2" or loader.deletes == "soft":
        shape |= {"mode": loader.mode, "keys": [named.get(key, key) for key in loader.keys] or list(declared.keys)}
    return shape


def _carried_out(prepared: Prepared, declared: DeclaredTable, *, dry_run: bool) -> tuple[str, ...]:
    prepared.planned.require(declared.place)
    if prepared.planned.changes and not dry_run:
        with begun(prepared) as load:
            load.commit([])
    return prepared.planned.ddl


def _declared(project: Project, table: type[ManagedTable] | str) -> DeclaredTable:
    if isinstance(table, type):
        return find_declared(table)
    if table not in project.tables:
        raise ConfigError(f"no class {table!r} declares a table", remedy=suggestion(table, project.tables))
    return project.tables[table]
