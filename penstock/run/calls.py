"""What a script or a notebook calls: `ps.run`, `ps.plan`, `ps.sync` and the like.

Each call is one run of one pipeline by the same code as on the command line: the same checks, plan,
commit and history. Nothing is kept open between two calls but the Spark session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.project.decorators import PipelineFunction, caller, name_of
from penstock.project.discover import place_of
from penstock.project.findings import suggestion
from penstock.project.load import build_one
from penstock.project.model import Pipeline, Project
from penstock.run import pipeline as runner
from penstock.run.current import project_of
from penstock.run.handed import NAME, TABLE, HandedFrame, handed
from penstock.run.pipeline import Stage, stage_with_spark
from penstock.run.records import ProgressEvent, RunOptions
from penstock.run.results import Findings, Plans, RunResult
from penstock.state import open_store

Where = Project | Path | str | None
Report = Callable[[ProgressEvent], None]

# How rows are moved; another one than Spark's is for tests that need no JVM.
_stage: ContextVar[Stage] = ContextVar("penstock_stage", default=stage_with_spark)


@contextmanager
def staging_by(stage: Stage) -> Iterator[None]:
    """Calls inside move their rows in another way than by Spark."""
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


@dataclass(frozen=True, slots=True)
class From:
    """What a sync reads: a table or a query of a connection. Nothing is opened until it runs."""

    connection: str
    query: str | None = None
    table: str | None = None

    def __repr__(self) -> str:
        return f"<query of {self.connection!r}>" if self.query else f"<table {self.table} of {self.connection!r}>"

    def options(self) -> dict[str, Any]:
        # SQL made by Python is final: `${…}` in it is not a reference.
        asked = {"query": self.query.replace("${", "$${")} if self.query is not None else {"table": self.table}
        return {"source": self.connection, **asked}


def query(connection: Any, sql: str) -> From:
    """A query to be run on a connection, for `ps.sync` and `ps.plan`."""
    return From(name_of(connection), query=sql)


def source(connection: Any, *, table: str) -> From:
    """A table of a connection, for `ps.sync` and `ps.plan`."""
    return From(name_of(connection), table=table)


def run(
    pipeline: str | PipelineFunction,
    *,
    full_refresh: bool = False,
    limit: int | None = None,
    project: Where = None,
    progress: Report | None = None,
) -> RunResult:
    """Run a pipeline of the project, by its name or its function."""
    found = project_of(project)
    options = RunOptions(full_refresh=full_refresh, limit=limit)
    return _carry_out(found, _named(found, pipeline), options, progress)


def sync(
    source: From,
    target: Any,
    *,
    mode: str,
    name: str | None = None,
    project: Where = None,
    progress: Report | None = None,
    **options: Any,
) -> RunResult:
    """Run one pipeline that is written nowhere else; `options` are those of a pipeline.

    `name` is what the target remembers it by: its watermark, its columns, who deletes. Without one
    it is made of the target, so that the same sync is the same pipeline again.
    """
    found = project_of(project)
    made = _adhoc(found, source, target, mode, name, options, sys._getframe(1))
    return _carry_out(found, made, RunOptions(), progress)


def write(
    data: Any,
    target: Any,
    *,
    mode: str,
    keys: Sequence[str] = (),
    name: str | None = None,
    project: Where = None,
    progress: Report | None = None,
    **options: Any,
) -> RunResult:
    """Load rows of the caller's: an Arrow table or reader, a pandas or a Spark frame; in any mode.

    `options` are those of a pipeline. A reader is read once, to its end. Of a pandas frame the index is
    left out; what pandas calls missing is NULL.
    """
    found = project_of(project)
    rows = {"source": NAME, "table": TABLE, "keys": list(keys)}
    given = adhoc_options("write", rows, target, mode, name, options, sys._getframe(1))
    made = build_one(found, given, handed=True)
    with handed(data, runner.staging_folder(found)) as backend:
        if isinstance(backend, HandedFrame):
            _check_frame(made)
        return _carry_out(found, made.model_copy(update={"handed": backend}), RunOptions(), progress)


def plan(
    pipeline: str | PipelineFunction | From,
    target: Any = None,
    *,
    mode: str | None = None,
    name: str | None = None,
    full_refresh: bool = False,
    limit: int | None = None,
    project: Where = None,
    **options: Any,
) -> Plans:
    """What a run, or a sync of the same arguments, would do. Opens both ends and moves nothing."""
    found = project_of(project)
    if isinstance(pipeline, From):
        made = _adhoc(found, pipeline, target, mode, name, options, sys._getframe(1))
    elif target is not None or mode is not None or options:
        given = [key for key, value in (("target", target), ("mode", mode)) if value is not None] + sorted(options)
        raise ConfigError(
            f"{', '.join(given)}: a pipeline of the project has its own",
            remedy="leave it out, or plan a query: ps.plan(ps.query(…), target, mode=…)",
        )
    else:
        made = _named(found, pipeline)
    return Plans(runner.plan(found, made, RunOptions(full_refresh=full_refresh, limit=limit)))


def validate(*names: str, project: Where = None) -> Findings:
    """Every pipeline against both ends, or those that are named; moves nothing."""
    found = project_of(project)
    for name in names:
        found.pipeline(name)
    return Findings(runner.validate(found, names or None))


def use_spark(spark: Any) -> None:
    """Move rows in a Spark session of your own, classic or Connect, from now on; it is never stopped here.

    `ps.use_spark(None)` lets go of it.
    """
    from penstock.engine import session

    session.use(spark)


# ---------------------------------------------------------------- inside


def _named(project: Project, pipeline: Any) -> Pipeline:
    name = pipeline.name if isinstance(pipeline, PipelineFunction) else pipeline
    if not isinstance(name, str):
        raise ConfigError(
            f"{type(name).__name__} is no pipeline",
            remedy="the name of one, its decorated function, or for a query: ps.sync",
        )
    if name not in project.pipelines:
        raise ConfigError(
            f"there is no pipeline {name!r}",
            why=f"the project at {project.root} has none of that name",
            remedy=suggestion(name, project.pipelines) or "ps.load_project(folder) chooses another project",
        )
    return project.pipelines[name]


def _adhoc(
    project: Project,
    source: Any,
    target: Any,
    mode: str | None,
    name: str | None,
    options: Mapping[str, Any],
    frame: FrameType,
) -> Pipeline:
    if not isinstance(source, From):
        raise ConfigError(
            f"a sync reads a query or a table, not {type(source).__name__}",
            remedy='ps.query("shop", "select …") or ps.source("shop", table="…"); rows of your own: ps.write',
        )
    return build_one(project, adhoc_options("sync", source.options(), target, mode, name, options, frame))


def adhoc_options(
    kind: str,
    source: Mapping[str, Any],
    target: Any,
    mode: str | None,
    name: str | None,
    options: Mapping[str, Any],
    frame: FrameType,
) -> dict[str, Any]:
    """A pipeline of one call, as a decorator would have noted it."""
    for key in ("source", "query", "table", "tables"):
        if key in options:
            raise ConfigError(f"{key} stands in the source of a {kind} already", remedy=f"leave {key} out")
    where = getattr(target, "__penstock_table__", target)
    given: dict[str, Any] = {**source, **options, "name": name or f"{kind}:{where}", "place": place_of(caller(frame))}
    given |= {key: value for key, value in (("target", target), ("mode", mode)) if value is not None}
    if callable(given.get("transform")):  # a function of a frame, as `@customers.transform` takes it
        given["transform_function"] = given.pop("transform")
    return given


def _check_frame(pipeline: Pipeline) -> None:
    meant = {
        "transform": pipeline.transform is not None or pipeline.transform_function is not None,
        "inputs": bool(pipeline.inputs),
        "path": pipeline.path in ("native", "fused"),
    }
    for key, given in meant.items():
        if given:
            raise ConfigError(
                f"{key} has no meaning for a Spark frame",
                remedy=f"do it with the frame itself, and leave {key} out",
                place=pipeline.place,
            )


def _carry_out(project: Project, pipeline: Pipeline, options: RunOptions, progress: Report | None) -> RunResult:
    try:
        with open_store(project.state_location) as store:
            records = runner.run(project, pipeline, store, options, progress, _stage.get())
    except PenstockError as error:
        error.pipeline = pipeline.name
        if not pipeline.show_keys:
            error.keys = ()
        raise
    return RunResult.of(pipeline.name, records)
