"""What `doctor` found, with what to do about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.cli.doctor import Checked

SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def show(checks: Sequence[Checked], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(checks)
        return
    made = out.table("", "", "check", "found", "what to do")
    for one in checks:
        sign, colour = SIGNS[one.status]
        made.add_row(out.cell(sign, colour), out.cell(one.check), out.cell(one.found), out.cell(one.remedy, "dim"))
    console = out.out()
    console.print(made)
    failed = sum(one.status == "failed" for one in checks)
    warned = sum(one.status == "warning" for one in checks)
    if failed:
        console.print(out.cell(f"{failed} of {len(checks)} checks failed", "red"))
    elif warned:
        console.print(out.cell("ready; the marked parts are optional", "green"))
    else:
        console.print(out.cell("everything is ready", "green"))
