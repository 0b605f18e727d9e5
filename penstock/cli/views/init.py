"""A new project: what was made, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.scaffold.start import Started


def show(started: Started, form: Output) -> None:
    if form is Output.JSON:
        out.print_json(started)
        return
    console = out.out()
    console.print(out.cell(f"a project in {started.folder}", "green"))
    for name in started.files:
        console.print(out.cell(f"  {name}", "dim"))
    console.print(out.cell("\nwhat to try next", "bold"))
    for step in started.next:
        console.print(out.spans((f"  {step.command:<32}", "cyan"), (f"  {step.meaning}", "dim")), soft_wrap=True)
