"""`penstock tables`: what a connection holds, and how Penstock would read it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption
from penstock.errors import NotThereYet, PenstockError

if TYPE_CHECKING:
    from penstock.backends.base import Backend, ConnectionConfig
    from penstock.schema import Column

app = typer.Typer(help="Tables of a connection.", rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class TableRecord:
    connection: str
    table: str
    kind: str
    rows: int | None  # an estimate
    bytes: int | None
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    column: str
    type: str  # as the connection spells it
    canonical: str  # as it travels
    nullable: bool
    key: bool


@dataclass(frozen=True, slots=True)
class TableDetail:
    connection: str
    table: str
    primary_key: tuple[str, ...]
    columns: tuple[ColumnRecord, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreatedRecord:
    name: str  # of the class
    table: str
    statements: tuple[str, ...]


@app.callback(invoke_without_command=True)
def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_tables(ctx)


@app.command("list")
def list_tables(
    ctx: typer.Context,
    connection: Annotated[str | None, typer.Argument(metavar="CONNECTION", help="All without.")] = None,
    pattern: Annotated[str, typer.Argument(metavar="GLOB", help="Of schema.table.")] = "*",
    output: OutputOption = Output.TEXT,
) -> None:
    """List the tables of a connection, or of all."""
    from penstock.cli import errors
    from penstock.cli.views import tables as view

    project = context.of(ctx).project()
    found: list[TableRecord] = []
    absent: list[str] = []
    failures: list[PenstockError] = []
    for name in [connection] if connection is not None else project.connections:
        try:
            found += records(project.connection(name), pattern)
        except NotThereYet:
            absent.append(name)
        except PenstockError as error:
            errors.show_error(error)
            failures.append(error)
    if found or not failures:
        view.show_list(found, absent, output)
    if failures:
        raise typer.Exit(errors.exit_code(failures))


@app.command("show")
def show_table(
    ctx: typer.Context,
    connection: Annotated[str, typer.Argument(metavar="CONNECTION")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, parts quoted as in SQL.")],
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a table's columns with the types they travel as."""
    from penstock.cli.views import tables as view

    config = context.of(ctx).project().connection(connection)
    view.show_one(detail(config, table), output)


@app.command("create")
def create_tables(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="CLASS", help="Declared tables; all without.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the statements and run none.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make the tables that classes declare, or let them follow their classes. Loads nothing."""
    from penstock.cli import errors
    from penstock.cli.views import tables as view
    from penstock.run.create import create

    project = context.of(ctx).project()
    made: list[CreatedRecord] = []
    failures: list[PenstockError] = []
    for name in names or sorted(project.tables):
        try:
            statements = create(name, dry_run=dry_run, project=project)
            made.append(CreatedRecord(name, str(project.tables[name]), statements))
        except PenstockError as error:
            errors.show_error(error)
            failures.append(error)
    if made or not failures:
        view.show_created(made, output, dry_run=dry_run)
    if failures:
        raise typer.Exit(errors.exit_code(failures))


def records(config: ConnectionConfig, pattern: str = "*") -> list[TableRecord]:
    from fnmatch import fnmatchcase

    found = [
        TableRecord(config.name, str(info.name), info.kind, info.rows, info.bytes, info.primary_key)
        for info in _backend(config).tables(config)
    ]
    return [record for record in found if fnmatchcase(record.table, pattern)]


def detail(config: ConnectionConfig, table: str) -> TableDetail:
    from penstock.backends.base import ReadRequest, RunContext
    from penstock.schema import TableName

    name = TableName.parse(table)
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        run = RunContext(run_id="0" * 32, pipeline="tables", staging=Path(folder))
        source = _backend(config).source(config, ReadRequest(table=name), run)
        try:
            key = source.primary_key()
            columns = tuple(
                ColumnRecord(c.name, c.describe(), _canonical(c), c.nullable, c.name in key) for c in source.schema()
            )
            return TableDetail(config.name, str(name), key, columns, source.notes())
        finally:
            source.close()


def _canonical(column: Column) -> str:
    """Arrow's word for the type, `arrow.uuid` for `extension<arrow.uuid>`, with the logical word beside it."""
    text = str(column.type)
    if text.startswith("extension<"):
        text = text.removeprefix("extension<").removesuffix(">")
    return text if column.logical is None else f"{text} ({column.logical.kind})"


def _backend(config: ConnectionConfig) -> Backend:
    from penstock.backends import registry

    return registry.backend(config.type)
