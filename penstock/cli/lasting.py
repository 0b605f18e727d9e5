"""Targets that end with the command: nobody could read them afterwards, so a command refuses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Unsupported

if TYPE_CHECKING:
    from penstock.project import Pipeline, Project
    from penstock.run.records import Finding


def require_lasting(project: Project, pipeline: Pipeline) -> None:
    """Refuse a pipeline whose target lives in this process only. In Python, the process is the user's own."""
    require_lasting_target(project, pipeline.target_connection, pipeline.place, "pipeline")


def require_lasting_target(project: Project, connection: str, place: str, what: str) -> None:
    try:
        target = project.connection(connection)
    except PenstockError:
        return  # told by whoever opens it, and kept in the run's history
    if target.in_process:
        raise Unsupported(
            f"{connection} cannot be the target of a command",
            why=f"this {target.type} connection keeps its tables in the memory of the process, which ends with the"
            " command: nobody could read them afterwards",
            remedy=f"give it a file or a server, or run the {what} from Python",
            place=place,
        )


def findings(project: Project, pipelines: Iterable[Pipeline]) -> list[Finding]:
    """The same as findings of `validate`."""
    from penstock.run.records import Finding

    found = []
    for pipeline in pipelines:
        try:
            require_lasting(project, pipeline)
        except Unsupported as error:
            found.append(Finding(pipeline.name, "error", error.what, error.why, error.remedy, error.place))
    return found
