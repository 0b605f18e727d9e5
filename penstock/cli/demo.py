"""`penstock demo`: a shop database, a warehouse file and every mode, in about a minute."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.context import Output, OutputOption

if TYPE_CHECKING:
    from penstock.demo.runner import Result


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="PATH", help="Where the demo's project and warehouse go.")
    ] = Path("penstock-demo"),
    orders: Annotated[
        int, typer.Option("--orders", metavar="N", min=1000, max=5_000_000, help="Orders in the shop; four lines each.")
    ] = 50_000,
    live: Annotated[
        float, typer.Option("--live", metavar="SECONDS", min=0, max=3600, help="Follow a bank for so long; 0: not.")
    ] = 30.0,
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the shop's server running until Ctrl-C, to try more.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a Postgres of its own, load a shop into DuckDB twice, then follow a bank at work, killed on the way."""
    from penstock.cli import progress
    from penstock.cli.views import demo as view
    from penstock.demo import runner

    def hold(result: Result) -> None:
        view.show(result, output, serving=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            view.stage("stopping the shop")

    watcher = runner.Watcher(view.stage, progress.reporter, view.moment, hold if serve else None)
    result = runner.demo(folder, orders, live, watcher)
    if not serve:
        view.show(result, output)
