"""Declared tables made and evolved by themselves, without a row: the same planner, locks and transaction as a load."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import NOBODY
from penstock.backends.memory.types import field_of
from penstock.errors import ConfigError
from penstock.project.findings import suggestion
from penstock.project.load import build_one, find_declared
from penstock.project.model import Project
from penstock.project.tables import ManagedTable
from penstock.run.current import project_of
from penstock.run.handed import NAME, TABLE, HandedTable
from penstock.run.pipeline import begun, context_of
from penstock.run.prepare import prepare
from penstock.run.records import RunOptions
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
    options = {
        "name": NOBODY,
        "place": declared.place,
        "source": NAME,
        "table": TABLE,
        "target": table if isinstance(table, type) else str(declared),
        "mode": "append",
    }
    rows = pa.schema([field_of(parse(one.word).column(one.name)) for one in declared.columns]).empty_table()
    pipeline = build_one(found, options, handed=True).model_copy(update={"handed": HandedTable(rows)})
    with closing(prepare(found, pipeline, TABLE, context_of(found, pipeline), RunOptions())) as prepared:
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
