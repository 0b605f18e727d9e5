"""`penstock replicate`: one replication in the foreground, until Ctrl-C or until it has caught up."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import context, lasting

if TYPE_CHECKING:
    from penstock.replicate.agent import Agent


def replicate(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The replication's name.")],
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up",
            help="End when the target has all that is committed now; with exit code 1 if a table has failed.",
        ),
    ] = False,
) -> None:
    """Copy the tables of a database, then keep them up to date, transaction by transaction."""
    from penstock.cli.views import replications as view
    from penstock.replicate.agent import Agent

    invocation = context.of(ctx)
    project = invocation.project()
    replication = project.replication(name)
    lasting.require_lasting_target(project, replication.target, replication.place, "replication")
    with invocation.store(project) as store, view.live(name) as told:
        agent = Agent(
            project,
            replication,
            told,
            store=store,
            reload=lambda: invocation.project().replication(name),
        )
        with _stopped_by_signals(agent):
            agent.run(until_caught_up=until_caught_up)


class _stopped_by_signals:  # noqa: N801  used as a function
    """Ctrl-C and SIGTERM let the flush that is on its way end; what is not applied is in the buffer."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what was there before

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._agent.stop()
