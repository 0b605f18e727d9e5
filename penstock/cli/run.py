"""`penstock run`: pipelines one after the other; one that fails does not stop the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import Cancelled, PenstockError

if TYPE_CHECKING:
    from penstock.project import Pipeline, Project
    from penstock.run.records import RunOptions
    from penstock.state import RunRecord, Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one table of a pipeline: a line of the table, an entry of the JSON."""

    pipeline: str
    table: str | None  # of a pipeline that has many
    run_id: str | None
    state: str
    mode: str
    path: str | None
    source: str | None
    target: str | None
    rows: int
    inserted: int
    updated: int
    deleted: int
    bytes: int
    partitions: int | None
    seconds: float
    rows_per_second: float | None
    error: dict[str, Any] | None


def run(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Pipelines by name or glob.")] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", "-s", metavar="SELECTOR", help="tag:NAME or a name glob; may be repeated."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every pipeline of the project.")] = False,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Read everything again, as if there were no watermark.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan and check; move nothing.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Read at most this many rows.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run pipelines: copy their rows and load them, each in one transaction."""
    from penstock.cli import errors, lasting, selection
    from penstock.cli.views import outcomes as view
    from penstock.project import abilities
    from penstock.run.records import RunOptions
    from penstock.run.warm import prewarm

    if not (names or select or everything):
        raise typer.BadParameter("name a pipeline, or use --select or --all", ctx=ctx)
    invocation = context.of(ctx)
    project = invocation.project()
    chosen = selection.select(project.pipelines, names or [], select or [], everything=everything)
    refused = {finding.pipeline for finding in lasting.findings(project, chosen)}  # each is told of by its own run
    abilities.check(project, [pipeline for pipeline in chosen if pipeline.name not in refused])
    options = RunOptions(full_refresh=full_refresh, limit=limit)
    if dry_run:
        _dry_run(project, chosen, options, output)
        return
    failures: list[Exception] = []
    prewarm(project, chosen)
    with invocation.store(project) as store:
        outcomes = [outcome for pipeline in chosen for outcome in run_one(project, pipeline, store, options, failures)]
    view.show(outcomes, output)
    if failures:
        raise typer.Exit(errors.exit_code(failures))


def run_one(
    project: Project, pipeline: Pipeline, store: Store, options: RunOptions, failures: list[Exception]
) -> list[Outcome]:
    """Run one pipeline with its progress shown; a failure is printed, noted and becomes an outcome."""
    from penstock.cli import lasting, progress
    from penstock.run import pipeline as runner

    outcomes: list[Outcome] = []
    began = datetime.now(UTC)
    try:
        lasting.require_lasting(project, pipeline)
        with progress.reporter(pipeline.name) as report:
            for one in runner.run_each(project, pipeline, store, options, report):
                outcome = replace(of_record(one.record), table=one.table if pipeline.tables else None)
                if one.error is not None:
                    outcome = replace(outcome, error=_told(one.error, pipeline))
                    failures.append(one.error)
                outcomes.append(outcome)
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001  a bug in one pipeline must not keep the others from running
        failures.append(error)
        outcomes.append(_unstarted(pipeline, _told(error, pipeline), began))
    return outcomes


def _told(error: Exception, pipeline: Pipeline) -> dict[str, Any]:
    """Print the error; its record."""
    from penstock.cli import errors

    shown = errors.foreseen(error)
    if shown is None:
        errors.show(error)
        return PenstockError(f"unexpected {type(error).__name__}").to_record()
    errors.show_error(shown, pipeline=pipeline.name, show_keys=pipeline.show_keys)
    told = shown.to_record()
    return told if pipeline.show_keys else told | {"keys": []}


def of_record(record: RunRecord) -> Outcome:
    """The outcome that the run history holds."""
    seconds = record.seconds or 0.0
    return Outcome(
        pipeline=record.pipeline,
        table=None,
        run_id=record.run_id,
        state=record.state,
        mode=record.mode or "",
        path=record.path,
        source=record.source,
        target=record.target,
        rows=record.rows or 0,
        inserted=record.inserted or 0,
        updated=record.updated or 0,
        deleted=record.deleted or 0,
        bytes=record.bytes or 0,
        partitions=record.partitions,
        seconds=round(seconds, 3),
        rows_per_second=round(record.rows / seconds, 1) if record.rows and seconds > 0 else None,
        error=None,
    )


def _unstarted(pipeline: Pipeline, error: dict[str, Any], began: datetime) -> Outcome:
    """A pipeline that failed before the history knew of it: a connection that is not there, say."""
    return Outcome(
        pipeline=pipeline.name,
        table=None,
        run_id=None,
        state="failed",
        mode=pipeline.mode,
        path=None,
        source=pipeline.source,
        target=str(pipeline.target),
        rows=0,
        inserted=0,
        updated=0,
        deleted=0,
        bytes=0,
        partitions=None,
        seconds=round((datetime.now(UTC) - began).total_seconds(), 3),
        rows_per_second=None,
        error=error,
    )


def _dry_run(project: Project, chosen: list[Pipeline], options: RunOptions, output: Output) -> None:
    from penstock.cli.plan import plan_all
    from penstock.cli.views import plans as view

    plans, code = plan_all(project, chosen, options)
    view.show(plans, output, dry_run=True)
    if code:
        raise typer.Exit(code)
