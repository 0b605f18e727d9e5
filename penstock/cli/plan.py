"""`penstock plan`: what a run would do and why, before a row moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.project import Pipeline, Project
    from penstock.run.pipeline import PipelinePlan, RunOptions

WOULD_CHANGE = 3  # exit code of --diff


def plan(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Pipelines by name, glob or tag:NAME.")],
    diff: Annotated[
        bool, typer.Option("--diff", help="Exit with 3 if the target's tables or types would change.")
    ] = False,
    full_refresh: Annotated[bool, typer.Option("--full-refresh", help="Plan as if there were no watermark.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a pipeline's path, partitions, column types, DDL and load SQL. Moves nothing."""
    from penstock.cli import selection
    from penstock.cli.views import plans as view
    from penstock.run.pipeline import RunOptions

    project = context.of(ctx).project()
    chosen = selection.select(project.pipelines, names, [])
    plans, code = plan_all(project, chosen, RunOptions(full_refresh=full_refresh))
    view.show(plans, output)
    if code:
        raise typer.Exit(code)
    if diff and any(one.changes for one in plans):
        raise typer.Exit(WOULD_CHANGE)


def plan_all(project: Project, pipelines: Sequence[Pipeline], options: RunOptions) -> tuple[list[PipelinePlan], int]:
    """Every plan that could be made, failures printed; and the exit code they ask for."""
    from penstock.cli import errors, lasting
    from penstock.run import pipeline as runner

    plans: list[PipelinePlan] = []
    failures: list[PenstockError] = []
    for pipeline in pipelines:
        found: list[PipelinePlan | PenstockError] = []
        try:
            lasting.require_lasting(project, pipeline)
            found += runner.plan_each(project, pipeline, options)
        except PenstockError as error:
            found.append(error)
        for one in found:
            if isinstance(one, PenstockError):
                errors.show_error(one, pipeline=pipeline.name, show_keys=pipeline.show_keys)
                failures.append(one)
            else:
                plans.append(one)
    refused = any(one.refusals for one in plans)
    return plans, 1 if refused else errors.exit_code(failures)
