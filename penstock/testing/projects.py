"""A project for a test: pipelines of the real one, or of the test's own, between databases of the test's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.project.load import load
from penstock.project.model import Project, StateConfig
from penstock.run import calls

if TYPE_CHECKING:
    from penstock.backends.base import ConnectionConfig
    from penstock.project.decorators import PipelineFunction
    from penstock.project.model import Pipeline
    from penstock.run.results import RunResult


def project(
    folder: Path | str,
    connections: Mapping[str, ConnectionConfig | Mapping[str, Any]],
    pipelines: Sequence[Pipeline | Mapping[str, Any]] = (),
    *,
    of: Project | Path | str | None = None,
) -> Project:
    """A project in a temporary folder, its history in memory.

    With `of`, it has the pipelines, tables and functions of that project, and these connections in the
    place of its own: none of the real ones can be reached.
    """
    found = of if isinstance(of, Project) or of is None else load(of)
    theirs = list(found.pipelines.values()) if found is not None else []
    state = StateConfig(url="memory:")
    made = Project.from_objects(Path(folder), connections, [*theirs, *pipelines], state=state)
    if found is None:
        return made
    return replace(made, spark=found.spark, tables={**found.tables, **made.tables}, functions=found.functions)


def without_spark() -> AbstractContextManager[None]:
    """Inside, `ps.run`, `ps.sync` and `ps.write` move their rows in this process."""
    from penstock.testing.stage import stage_here

    return calls.staging_by(stage_here)


def run(project: Project, pipeline: str | PipelineFunction, *, full_refresh: bool = False) -> RunResult:
    """Run a pipeline in this process; what it raises is what a user would see."""
    with without_spark():
        return calls.run(pipeline, full_refresh=full_refresh, project=project)
