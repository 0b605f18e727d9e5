"""`penstock add`: pipelines written into penstock.toml by looking at the tables they read."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption


def add(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The connection to read from.")],
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE", help="schema.table, or patterns: 'public.*' '!public.audit_*'.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="NAME",
            help="A connection, or connection.schema.table with {schema} and {table}; the only other one by default.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="MODE", help="merge by default, or truncate where there is no key to merge by."),
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="A,B", help="Instead of the table's primary key.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the pipeline; the table's by default.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be added, and write nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write pipelines into penstock.toml by looking at the tables they read. Moves nothing."""
    from penstock.cli.views import add as view
    from penstock.errors import ConfigError
    from penstock.project.append import append
    from penstock.project.load import FILE, find_file
    from penstock.run.drafts import Wish, drafts

    invocation = context.of(ctx)
    project = invocation.project()
    file = find_file(invocation.path)
    if file is None:
        raise ConfigError(f"there is no {FILE} to write to", remedy="penstock init FOLDER makes one")
    wish = Wish(
        source, tuple(tables), target, mode, tuple(one.strip() for one in keys.split(",")) if keys else (), name
    )
    made = drafts(project, wish)
    append(file, [block for _, block in made], dry_run=dry_run)
    view.show([draft for draft, _ in made], file, output, dry_run=dry_run)
