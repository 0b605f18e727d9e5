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
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the shop's server running until Ctrl-C, to try more.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a Postgres of its own, fill a shop, load it into DuckDB, change it, load it again."""
    from penstock.cli import progress
    from penstock.cli.views import demo as view
    from penstock.demo import runner

    def hold(result: Result) -> None:
        view.show(result, output, serving=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            view.stage("stopping the shop")

    watcher = runner.Watcher(view.stage, progress.reporter, hold if serve else None)
    result = runner.demo(folder, orders, watcher)
    if not serve:
        view.show(result, output)
