"""`penstock jars`: what Spark features need beyond Spark's own jars, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.cli.context import Output, OutputOption

app = typer.Typer(help="Jars that Spark features need.", rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class JarRecord:
    feature: str
    coordinates: str
    cached: bool
    path: str | None


@app.callback(invoke_without_command=True)
def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_jars()


@app.command("list")
def list_jars(output: OutputOption = Output.TEXT) -> None:
    """List the jars by feature and whether they are in the cache."""
    from penstock.cli.views import jars as view

    view.show(records(), output)


@app.command("fetch")
def fetch_jars(
    features: Annotated[list[str] | None, typer.Argument(metavar="FEATURE", help="All without.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fetch jars into the cache, once, and check them against the lock."""
    from penstock.cli.views import jars as view
    from penstock.engine import jars

    wanted = [jar for feature in features for jar in jars.of_feature(feature)] if features else jars.locked()
    for jar in wanted:
        if jars.cached(jar) is None:
            view.fetching(jar.coordinates)
            jars.fetch(jar)
    view.show([record for record in records() if not features or record.feature in features], output)


def records() -> list[JarRecord]:
    from penstock.engine import jars

    found = [(jar, jars.cached(jar)) for jar in jars.locked()]
    return [
        JarRecord(jar.feature, jar.coordinates, path is not None, str(path) if path else None) for jar, path in found
    ]
