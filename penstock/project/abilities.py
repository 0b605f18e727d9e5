"""What a pipeline asks of its target, held against what that says it can do. Opens no connection.

Beside the rules of the project file, because it needs the backend, whose driver is imported for it: commands that
only list names do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.backends.registry import backend
from penstock.errors import PenstockError, Unsupported
from penstock.project.findings import raise_all
from penstock.project.model import Pipeline, Project
from penstock.schema.ddl import PartitionField

if TYPE_CHECKING:
    from penstock.backends.base import Backend, Capabilities, ConnectionConfig
    from penstock.schema import TableName


def check(project: Project, pipelines: Iterable[Pipeline]) -> None:
    """Raise all that any of them asks for in vain; nothing has been touched."""
    found: list[PenstockError] = []
    for pipeline in pipelines:
        try:
            config = project.connection(pipeline.target.connection)
            kind = backend(config.type)
            found += unable(pipeline, kind.capabilities)
            if not pipeline.tables:  # which tables these are, the source knows
                found += unable_here(pipeline, kind, config, pipeline.target_table())
        except PenstockError:
            continue  # told of this pipeline alone, when it is planned: the others need not know that connection
    raise_all(found)


def unable_here(pipeline: Pipeline, kind: Backend, config: ConnectionConfig, table: TableName) -> Iterator[Unsupported]:
    """What this very target cannot do, although others of its backend can."""
    for error in kind.unable(config, table, [PartitionField.parse(field) for field in pipeline.partition_by]):
        error.place = pipeline.place
        yield error


def unable(pipeline: Pipeline, capabilities: Capabilities) -> Iterator[Unsupported]:
    """What the target cannot do, each with what can be done instead."""

    def refused(what: str, remedy: str) -> Unsupported:
        return Unsupported(what, kept="nothing was touched", remedy=remedy, place=pipeline.place)

    title = capabilities.title
    if pipeline.mode not in capabilities.modes:
        instead = f"; {capabilities.instead}" if capabilities.instead else ""
        takes = f"it takes {', '.join(sorted(capabilities.modes))}"
        yield refused(f"{title} does not take mode {pipeline.mode}", takes + instead)
    if pipeline.deletes != "none" and pipeline.deletes not in capabilities.deletes:
        yield refused(f"{title} does not take deletes = {pipeline.deletes!r}", "leave deletes out")
    if pipeline.event_time is not None and not capabilities.event_time:
        instead = "leave event_time out: versions then begin when they are loaded"
        yield refused(f"{title} does not take event_time", instead)
    if pipeline.ttl is not None and not capabilities.ttl:
        yield refused(f"{title} does not take ttl", "leave ttl out, and remove what is old by other means")
    for what, remedy in _partitions(pipeline, capabilities):
        yield refused(what, remedy)
    if capabilities.user_sql:
        return
    if pipeline.transforms_post:
        yield refused(f"{title} runs no SQL of its own", "use `transform`, or transforms_pre: Spark SQL over `staged`")
    for option in ("order_by", "delete_scope"):
        if getattr(pipeline, option) is not None:
            yield refused(f"{title} runs no SQL, and {option} is SQL", f"leave {option} out, or use `transform`")


def _partitions(pipeline: Pipeline, capabilities: Capabilities) -> Iterator[tuple[str, str]]:
    if not pipeline.partition_by:
        return
    title, most = capabilities.title, capabilities.max_partition_fields
    if not capabilities.partition_by:
        yield f"{title} has no partitions", "leave partition_by out"
        return
    for field in pipeline.partition_by:
        if PartitionField.parse(field).form not in capabilities.partition_by:
            yield f"{title} is not partitioned by {field}", f"it takes: {', '.join(sorted(capabilities.partition_by))}"
    if most is not None and len(pipeline.partition_by) > most:
        fields = ", ".join(pipeline.partition_by)
        yield f"{title} is partitioned by {most} column, not by {fields}", "name one of them"
