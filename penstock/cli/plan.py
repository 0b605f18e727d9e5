"""`penstock plan`: what a run would do and why, before a row moves."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import PenstockError

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
    from penstock.cli import errors, selection
    from penstock.cli.views import plans as view
    from penstock.run import pipeline as runner

    project = context.of(ctx).project()
    options = runner.RunOptions(full_refresh=full_refresh)
    plans: list[runner.PipelinePlan] = []
    failed = False
    for pipeline in selection.select(project.pipelines, names, []):
        try:
            plans += runner.plan(project, pipeline, options)
        except PenstockError as error:
            errors.show_error(error, pipeline=pipeline.name, show_keys=pipeline.show_keys)
            failed = True
    view.show(plans, output)
    if failed or any(one.refusals for one in plans):
        raise typer.Exit(1)
    if diff and any(one.changes for one in plans):
        raise typer.Exit(WOULD_CHANGE)
