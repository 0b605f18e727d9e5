"""`penstock connections`: what the project can reach, and whether it answers. Never shows a secret."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.project import Project

app = typer.Typer(help="The project's connections.", rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """A configured connection."""

    name: str
    type: str
    places: tuple[str, ...]  # where it is defined
    used_by: tuple[str, ...]  # pipelines


@dataclass(frozen=True, slots=True)
class ConnectionTest:
    """What a connection answered."""

    name: str
    type: str
    ok: bool
    answer: str
    seconds: float
    remedy: str


@app.callback(invoke_without_command=True)
def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_connections(ctx)


@app.command("list")
def list_connections(ctx: typer.Context, output: OutputOption = Output.TEXT) -> None:
    """List connections and the pipelines that use them. Opens none."""
    from penstock.cli.views import connections as view

    view.show_list(records(context.of(ctx).project()), output)


@app.command("test")
def try_connections(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="All without.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Connect and say what answered."""
    from penstock.cli.views import connections as view

    project = context.of(ctx).project()
    for name in names or ():
        project.connections.type_of(name)  # raises for one that does not exist: the command line is wrong
    tests = [attempt(project, name) for name in names or project.connections]
    view.show_tests(tests, output)
    if not all(one.ok for one in tests):
        raise typer.Exit(1)


def records(project: Project) -> list[ConnectionRecord]:
    """Every connection, without loading a driver or reading a secret."""
    users: dict[str, list[str]] = {}
    for pipeline in project.pipelines.values():
        for name in dict.fromkeys(pipeline.connections):
            users.setdefault(name, []).append(pipeline.name)
    return [
        ConnectionRecord(entry.name, entry.type, entry.places, tuple(users.get(entry.name, ())))
        for entry in project.connections.entries()
    ]


def attempt(project: Project, name: str) -> ConnectionTest:
    """One connection's answer; a wrong configuration is an answer too, so that all are told at once."""
    from penstock.backends import registry

    began = time.monotonic()
    type_ = ""
    try:
        type_ = project.connections.type_of(name)
        answer, remedy, ok = registry.backend(type_).test(project.connection(name)), "", True
    except PenstockError as error:
        answer, remedy, ok = str(error), error.remedy, False
    return ConnectionTest(name, type_, ok, answer, round(time.monotonic() - began, 3), remedy)
