"""Connections: where they lead, and what they answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.cli.connections import ConnectionRecord, ConnectionTest


def show_list(records: Sequence[ConnectionRecord], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(records)
        return
    if not records:
        out.out().print(out.cell("the project has no connections", "dim"))
        return
    made = out.table("", "connection", "type", "defined in", "used by")
    for record in records:
        made.add_row(
            out.cell(record.name),
            out.cell(record.type, "cyan"),
            out.cell(", ".join(record.places)),
            out.cell(", ".join(record.used_by), "dim"),
        )
    out.out().print(made)


def show_tests(tests: Sequence[ConnectionTest], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(tests)
        return
    made = out.table("", "", "connection", "type", "answer", "seconds", "remedy", right=("seconds",))
    for one in tests:
        made.add_row(
            out.cell("✓", "green") if one.ok else out.cell("✗", "red"),
            out.cell(one.name),
            out.cell(one.type, "cyan"),
            out.cell(one.answer, "" if one.ok else "red"),
            out.cell(f"{one.seconds:.2f}"),
            out.cell(one.remedy, "dim"),
        )
    out.out().print(made)
