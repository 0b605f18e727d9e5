"""`penstock jars`: what Spark needs beyond its own jars, by feature."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Jars that Spark features need.", rich_markup_mode=None)


@app.command("list")
def a() -> None: ...
@app.command("fetch")
def b() -> None: ...
