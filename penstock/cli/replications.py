"""`penstock replications`: what replications there are, how their agents are, and what is asked of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.state import AgentRecord

ANSWER_SECONDS = 10.0  # an agent looks every half second; a flush may keep it a little
POLL_SECONDS = 0.05

app = typer.Typer(help="Replications, and what their agents do.", rich_markup_mode=None)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The replication's name.")]


@dataclass(frozen=True, slots=True)
class ReplicationRecord:
    """One replication: a line of the list, an entry of the JSON."""

    name: str
    source: str
    target: str
    tables: tuple[str, ...]
    state: str
    lag_bytes: int | None
    lag_seconds: float | None
    status: dict[str, Any]


@app.callback(invoke_without_command=True)
def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_replications(ctx)


@app.command("list")
def list_replications(ctx: typer.Context, output: OutputOption = Output.TEXT) -> None:
    """List the project's replications and how their agents are."""
    from penstock.cli.views import replications as view

    view.show_list(_records(ctx), output)


@app.command("show")
def show_replication(ctx: typer.Context, name: NameArgument, output: OutputOption = Output.TEXT) -> None:
    """Show every table of a replication: its phase, what was moved, and why it failed."""
    from penstock.cli.views import replications as view

    context.of(ctx).project().replication(name)
    view.show_one(next(record for record in _records(ctx) if record.name == name), output)


@app.command("pause")
def pause(ctx: typer.Context, name: NameArgument) -> None:
    """Let the target rest; changes are captured all the while."""
    _ask(ctx, name, "pause")


@app.command("resume")
def resume(ctx: typer.Context, name: NameArgument) -> None:
    """Go on after a pause."""
    _ask(ctx, name, "resume")


@app.command("reload")
def reload(ctx: typer.Context, name: NameArgument) -> None:
    """Read the options anew: copy tables that are new, let go of those that are gone; the others go on."""
    _ask(ctx, name, "reload")


@app.command("resync")
def resync(
    ctx: typer.Context,
    name: NameArgument,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="schema.table; all without.")] = None,
) -> None:
    """Copy a table, or all of them, again, while the others stream; without an agent, when it is started next."""
    from penstock.cli import output as out
    from penstock.replicate.resync import mark_for_copy

    invocation = context.of(ctx)
    project = invocation.project()
    replication = project.replication(name)
    with invocation.store(project) as store:
        known = store.agent(name)
        runs = known is not None and known.hears
    if runs:
        _ask(ctx, name, "resync", table or "")
        return
    count = mark_for_copy(project, replication, table or "")
    out.out().print(
        out.cell(f"{name}: {count} table{'s' if count > 1 else ''} will be copied again: penstock replicate {name}")
    )


@app.command("prepare")
def prepare(
    ctx: typer.Context,
    name: NameArgument,
    only_print: Annotated[bool, typer.Option("--print", help="Print the statements, for a DBA to run.")] = False,
) -> None:
    """Check both ends, and print what must be run at the source; without --print, run it."""
    from penstock.cli.views import replications as view
    from penstock.replicate.reacting import prepared
    from penstock.replicate.tables import ends_of, requests

    project = context.of(ctx).project()
    replication = project.replication(name)
    ends = ends_of(project, replication)
    source = ends.change_source(replication, requests(project, replication, ends))
    try:
        refused, warned = prepared(project, replication, ends, source)
        found = source.findings() + refused
        statements = source.prepare()
        view.show_prepared(found, [*warned, *source.advice()], statements, printed=only_print)
        if not only_print and not found:
            source.publish()
    finally:
        source.close()
    if found:
        raise typer.Exit(1)


@app.command("remove")
def remove(
    ctx: typer.Context,
    name: NameArgument,
    without_source: Annotated[
        bool, typer.Option("--without-source", help="The source is gone for ever: print what would be left there.")
    ] = False,
    without_target: Annotated[
        bool, typer.Option("--without-target", help="The target is gone for ever: print what would be left there.")
    ] = False,
    without_agent: Annotated[
        bool, typer.Option("--without-agent", help="The machine that its agent was last heard of on is gone for ever.")
    ] = False,
) -> None:
    """Take back the slot and the publications, and forget the position; the tables stay, and a log with copied rows."""
    from penstock.cli.views import replications as view
    from penstock.replicate.removal import remove as remove_it

    invocation = context.of(ctx)
    project = invocation.project()
    replication = project.replication(name)
    with invocation.store(project) as store:
        known = store.agent(name)
        if known is not None and known.hears and not (without_agent and known.elsewhere):
            raise PenstockError(
                f"the agent of {name} runs",
                why=f"process {known.pid} on {known.host}, last heard of at {known.at:%Y-%m-%d %H:%M:%S %Z}",
                kept="nothing was touched",
                remedy="stop it first" + (_if_gone(name, known.host) if known.elsewhere else ""),
            )
        left = remove_it(project, replication, source=not without_source, target=not without_target)
        # Last: if we die before, the next remove finds nothing at the ends, and forgets it.
        store.forget_agent(name)
    view.show_removed(replication, left)


def _if_gone(name: str, host: str) -> str:
    return f"; if {host} is gone for ever, `penstock replications remove {name} --without-agent`"


def _records(ctx: typer.Context) -> list[ReplicationRecord]:
    invocation = context.of(ctx)
    project = invocation.project()
    with invocation.store(project) as store:
        agents = {record.name: record for record in store.agents()}
    return [
        ReplicationRecord(
            name,
            one.source,
            one.target,
            one.tables,
            _state(agents.get(name)),
            agents[name].status.get("lag_bytes") if name in agents else None,
            agents[name].status.get("lag_seconds") if name in agents else None,
            dict(agents[name].status) if name in agents else {},
        )
        for name, one in project.replications.items()
    ]


def _state(agent: AgentRecord | None) -> str:
    if agent is None:
        return "never started"
    return "stopped" if agent.works and agent.gone else agent.state


def _ask(ctx: typer.Context, name: str, word: str, table: str = "") -> None:
    """Ask a running agent, and wait for what it says."""
    from penstock.cli import output as out

    invocation = context.of(ctx)
    project = invocation.project()
    project.replication(name)
    with invocation.store(project) as store:
        known = store.agent(name)
        if known is None or not known.hears:
            raise PenstockError(
                f"no agent runs {name}",
                kept="nothing was asked",
                remedy=f"start it: penstock replicate {name}",
            )
        number = store.ask(name, word, table)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            found = store.command(number)
            if found is not None and found.answer is not None:
                if found.answer.startswith("refused: "):
                    raise PenstockError(
                        f"{word} was refused", why=found.answer.removeprefix("refused: "), kept="nothing was changed"
                    )
                out.out().print(out.cell(f"{name}: {found.answer}"))
                return
            time.sleep(POLL_SECONDS)
    raise PenstockError(
        f"the agent of {name} has not answered",
        why=f"for {ANSWER_SECONDS:.0f} s; it may be busy with a large flush",
        kept="it will do it when it next looks",
        remedy=f"penstock replications show {name}",
    )
