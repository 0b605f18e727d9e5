"""Spark's start, before anything else is imported: the JVM needs seconds, and nothing of what a plan needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.project.model import Pipeline, Project


def prewarm(project: Project, pipelines: Iterable[Pipeline]) -> None:
    """Let the session start in the background if one of the pipelines surely needs it."""
    if any(_needs_spark(project, pipeline) for pipeline in pipelines):
        from penstock.engine import session

        session.prewarm(project.spark, project.root)


def _needs_spark(project: Project, pipeline: Pipeline) -> bool:
    if pipeline.transform is not None or pipeline.transform_function is not None:
        return True
    if pipeline.handed is not None:
        return bool(pipeline.handed.staged)  # a frame goes on in its own session, and no other is started
    try:
        types = {project.connections.type_of(name) for name in (pipeline.source, pipeline.target_connection)}
    except PenstockError:
        return False  # the run itself tells what is wrong with it
    return len(types) > 1 or pipeline.path in ("fused", "spark")
