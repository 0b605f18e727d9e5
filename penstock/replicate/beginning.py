"""What a replication begins with, and each table of it: a copy, or, where only changes are asked for, what is there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.backends.base import Target
from penstock.backends.change_source import ChangeSource, Finding, TableRequest
from penstock.backends.change_target import TableState
from penstock.errors import PlanRefused
from penstock.load.flush import own_columns
from penstock.project.replications import Replication
from penstock.replicate.tables import Ends, Kept, target_name
from penstock.schema import TableName


def first_state(replication: Replication, kept: Kept, target: Target | None, outline: str) -> TableState:
    """`outline` was taken before the moment that the table begins at; a log has no `target`, and begins every table."""
    state = TableState(kept.source.name, kept.replica.table, version=kept.source.version, outline=outline)
    there = target.inspect(kept.replica.table) if target is not None and replication.what == "changes" else None
    if there is None:
        return state
    wanted = (*(staged.column.name for staged in kept.replica.columns), *own_columns(kept.replica))
    lacking = [name for name in wanted if there.column(name) is None]
    if lacking:
        raise PlanRefused(
            f"{kept.replica.table} does not have {', '.join(lacking)}",
            why='what = "changes" leaves a table that is there as it is',
            remedy="add the columns; metadata_columns = false leaves those of Penstock out",
            place=replication.place,
        )
    return replace(state, phase="streaming")


def begins_empty(replication: Replication, kept: Kept, target: Target) -> bool:
    """Whether a table is only made, with no rows: one that is copied again later has a table there."""
    return replication.what == "changes" and target.inspect(kept.replica.table) is None


def end_findings(
    replication: Replication, ends: Ends, source: ChangeSource, tables: Collection[TableName], target: Target
) -> list[Finding]:
    """Tables that would be written into themselves, or into one that is replicated as well."""
    if ends.source.type != ends.target.type or not source.place():
        return []
    if source.place() != _place_of_target(replication, ends):
        return []
    going = {name: target.qualify(target_name(replication, name)) for name in tables}
    return [
        Finding(
            f"{name} would go into {into}, which is {'the table itself' if into == name else 'replicated as well'}",
            "another connection as the target, target_schema, target_name, or a target of its own for it",
        )
        for name, into in going.items()
        if into in tables
    ]


def _place_of_target(replication: Replication, ends: Ends) -> str:
    there = replace(ends, source=ends.target, copy_from=None).change_source(replication, [])
    try:
        return there.place()
    finally:
        there.close()


def dropped_at(replication: Replication, ends: Ends, names: Sequence[TableName]) -> list[TableName]:
    """Those that the source does not have any more: the others are only not asked for."""
    if not names:
        return []
    source = ends.change_source(replication, [TableRequest(name) for name in names])
    try:
        there = source.outlines()
    finally:
        source.close()
    return [name for name in names if name not in there]
