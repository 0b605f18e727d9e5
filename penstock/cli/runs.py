"""`penstock runs`: the history of runs. Starts no Spark and opens no connection of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import ConfigError
from penstock.state.base import RunState

if TYPE_CHECKING:
    from penstock.state import RunRecord, Store

SHORTEST_ID = 4  # of a run, enough to be typed

app = typer.Typer(help="The history of runs.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_runs(ctx)


@app.command("list")
def list_runs(
    ctx: typer.Context,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", metavar="NAME", help="Of this pipeline only.")
    ] = None,
    state: Annotated[
        RunState | None,
        typer.Option("--state", metavar="STATE", help="running, done, failed, cancelled or interrupted."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most this many, newest first.")] = 20,
    output: OutputOption = Output.TEXT,
) -> None:
    """List runs, newest first."""
    from penstock.cli.views import runs as view
    from penstock.project.findings import suggestion

    invocation = context.of(ctx)
    project = invocation.project()
    with invocation.store(project) as store:
        found = store.runs(pipeline=pipeline, state=state, limit=limit)
        # The history also knows pipelines that the project has no more.
        if pipeline is not None and not found and pipeline not in project.pipelines and not store.runs(pipeline):
            raise ConfigError(f"no runs of {pipeline!r}", remedy=suggestion(pipeline, project.pipelines))
    many = frozenset(name for name, one in project.pipelines.items() if one.tables)
    view.show_list(found, output, many, "no such runs" if pipeline or state else "no runs yet")


@app.command("show")
def show_run(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or how it begins or ends.")],
    output: OutputOption = Output.TEXT,
) -> None:
    """Show one run: what it did, how long it took, and why it failed."""
    from penstock.cli.views import runs as view

    invocation = context.of(ctx)
    with invocation.store(invocation.project()) as store:
        found = find(store, run_id)
        view.show_one(found, store.events(found.run_id), output)


def find(store: Store, run_id: str) -> RunRecord:
    """The run that `run_id` names, whole or in part."""
    found = store.run(run_id)
    if found is not None:
        return found
    if len(run_id) >= SHORTEST_ID:
        near = [one for one in store.runs(limit=1000) if one.run_id.startswith(run_id) or one.run_id.endswith(run_id)]
        if len(near) == 1:
            return near[0]
        if near:
            raise ConfigError(
                f"{len(near)} runs match {run_id!r}", remedy=f"more of the id is needed: {', '.join(_ids(near))}"
            )
    raise ConfigError(f"there is no run {run_id!r}", remedy="penstock runs list shows the runs that are kept")


def _ids(records: list[RunRecord]) -> list[str]:
    return [record.run_id for record in records[:3]]
