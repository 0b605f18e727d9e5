"""A plan, laid out so that every decision stands beside its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output
from penstock.observe.redact import redact

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.run.pipeline import PipelinePlan

VERDICTS = {"exact": "green", "widened": "cyan", "checked": "yellow", "refused": "bold red"}
LABEL = 10


def show(plans: Sequence[PipelinePlan], form: Output, *, dry_run: bool = False) -> None:
    if form is Output.JSON:
        out.print_json(plans)
        return
    console = out.out()
    for number, plan in enumerate(plans):
        if number:
            console.rule(style="dim")
        _show_one(console, plan)
    if dry_run:
        console.print(out.cell("dry run: nothing was moved", "dim"))


def _show_one(console: Console, plan: PipelinePlan) -> None:
    console.print(out.spans((plan.pipeline, "bold"), (f"  {plan.table} → {plan.target}", "")))
    _facts(console, plan)
    console.print()
    console.print(_columns(plan))
    for column in plan.columns:
        if column.note:
            _indented(console, f"{column.source}:", column.note)
    _statements(console, "DDL", plan.ddl, "none: the target has all it needs")
    _statements(console, "load SQL", plan.sql, "")
    if plan.refusals:
        console.print(out.cell("\nrefused: this pipeline cannot run as it is", "bold red"))
        for refusal in plan.refusals:
            _indented(console, "-", refusal)
    if plan.notes:
        console.print(out.cell("\nnotes", "bold"))
        for note in plan.notes:
            _indented(console, "-", note)
    console.print()


def _facts(console: Console, plan: PipelinePlan) -> None:
    _fact(console, "mode", plan.mode, "")
    _fact(console, "path", plan.path, plan.path_reason)
    _fact(console, "partitions", str(plan.partitions), plan.partition_reason)
    for view in plan.inputs:
        how = "broadcast" if view.broadcast else "not broadcast"
        said = f"{how}: {view.broadcast_reason}; partitions: {view.partitions}, {view.partition_reason}"
        _fact(console, "input", f"{view.name} = {view.connection}.{view.table}", said)
    if plan.watermark_to is not None:
        lower = plan.watermark_from if plan.watermark_from is not None else "the beginning"
        _fact(console, "window", f"[{lower}, {plan.watermark_to})", "")
    changes = "yes" if plan.changes else "no"
    _fact(console, "changes", changes, "DDL or types of the target" if plan.changes else "")


def _fact(console: Console, label: str, value: str, reason: str) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=LABEL + 2)
    grid.add_column(overflow="fold")
    text = out.spans((value, "cyan" if reason else ""), (f"  {reason}" if reason else "", "dim"))
    grid.add_row(out.cell(f"  {label}", "dim"), text)
    console.print(grid)


def _columns(plan: PipelinePlan) -> object:
    made = out.table("", "column", "type", "canonical", "target type", "verdict")
    for column in plan.columns:
        renamed = column.source != column.target
        made.add_row(
            out.cell(f"{column.source} → {column.target}" if renamed else column.source),
            out.cell(column.source_type),
            out.cell(column.canonical, "dim"),
            out.cell(column.target_type),
            out.cell(column.verdict, VERDICTS.get(column.verdict, "")),
        )
    return made


def _statements(console: Console, title: str, statements: Sequence[str], empty: str) -> None:
    if not statements and not empty:
        return
    console.print(out.cell(f"\n{title}", "bold"))
    if not statements:
        console.print(out.cell(f"  {empty}", "dim"))
    for number, statement in enumerate(statements):
        if number:
            console.print()
        for line in _dedented(redact(statement)):
            # Whole lines: what is printed here may be copied into a SQL prompt.
            console.print(out.cell(f"  {line}"), soft_wrap=True)


def _dedented(statement: str) -> list[str]:
    import textwrap

    first, *rest = statement.strip("\n").splitlines() or [""]
    return [first.strip(), *textwrap.dedent("\n".join(rest)).splitlines()]


def _indented(console: Console, sign: str, text: str) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_row("", out.cell(sign, "dim"), out.cell(text))
    console.print(grid)
