"""Tables of a connection, and one table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.cli.tables import CreatedRecord, TableDetail, TableRecord


def show_list(records: Sequence[TableRecord], absent: Sequence[str], form: Output) -> None:
    """`absent` are connections whose database its first load will make: they have no tables yet."""
    if form is Output.JSON:
        out.print_json(records)
        return
    if records:
        _show_records(records)
    elif not absent:
        out.out().print(out.cell("no such tables", "dim"))
    for name in absent:
        out.out().print(out.cell(f"{name} is not there yet: the first load makes it", "dim"))


def _show_records(records: Sequence[TableRecord]) -> None:
    made = out.table("", "connection", "table", "kind", "rows", "size", "key", right=("rows", "size"))
    for record in records:
        made.add_row(
            out.cell(record.connection, "dim"),
            out.cell(record.table),
            out.cell(record.kind, "dim"),
            out.cell("" if record.rows is None else f"~{record.rows:,}"),
            out.cell(out.size(record.bytes)),
            out.cell(", ".join(record.primary_key)),
        )
    out.out().print(made)


def show_one(table: TableDetail, form: Output) -> None:
    if form is Output.JSON:
        out.print_json(table)
        return
    made = out.table(f"{table.connection} {table.table}", "column", "type", "travels as", "null", "key")
    for column in table.columns:
        made.add_row(
            out.cell(column.column),
            out.cell(column.type),
            out.cell(column.canonical, "cyan"),
            out.cell("" if column.nullable else "not null", "dim"),
            out.cell("key" if column.key else "", "yellow"),
        )
    out.out().print(made)
    for note in table.notes:
        out.out().print(out.cell(f"- {note}", "dim"))


def show_created(records: Sequence[CreatedRecord], form: Output, *, dry_run: bool) -> None:
    if form is Output.JSON:
        out.print_json(records)
        return
    console = out.out()
    if not records:
        console.print(out.cell("no class declares a table", "dim"))
    for record in records:
        said = "would run" if dry_run else "ran"
        state = f"{said} {len(record.statements)} statements" if record.statements else "is as the class says"
        console.print(out.spans((record.name, "bold"), (f"  {record.table} {state}", "")))
        for statement in record.statements:
            # Whole lines: what is printed here may be copied into a SQL prompt.
            console.print(out.cell(statement), soft_wrap=True)
