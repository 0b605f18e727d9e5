"""What a run moved, how fast and by which path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.cli.run import Outcome

NUMBERS = ("rows", "inserted", "updated", "deleted", "seconds", "rows/s")
STATES = {"done": ("✓", "green"), "failed": ("✗", "red")}


def show(outcomes: Sequence[Outcome], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(outcomes)
        return
    out.out().print(table(outcomes))


def table(outcomes: Sequence[Outcome], title: str = "") -> Table:
    """One line per table."""
    made = out.table(title, "", "pipeline", "mode", "path", *NUMBERS, right=NUMBERS)
    for outcome in outcomes:
        sign, colour = STATES.get(outcome.state, ("–", "yellow"))
        name = outcome.pipeline if outcome.table is None else f"{outcome.pipeline} {outcome.table}"
        done = outcome.state == "done"
        made.add_row(
            out.cell(sign, colour),
            out.cell(name),
            out.cell(outcome.mode),
            out.cell(outcome.path or "", "cyan"),
            *(
                out.cell(out.count(number) if done else "", "" if number else "dim")
                for number in (outcome.rows, outcome.inserted, outcome.updated, outcome.deleted)
            ),
            out.cell(f"{outcome.seconds:.2f}"),
            out.cell(out.per_second(outcome.rows, outcome.seconds)),
        )
    return made
