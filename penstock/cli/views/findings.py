"""All findings of a validation, errors first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.run.pipeline import Finding

COLOURS = {"error": "bold red", "warning": "yellow"}


def show(findings: Sequence[Finding], checked: int, form: Output) -> None:
    if form is Output.JSON:
        out.print_json(findings)
        return
    console = out.out()
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    if ordered:
        made = out.table("", "pipeline", "severity", "what", "remedy")
        for finding in ordered:
            what = ": ".join(part for part in (finding.place, finding.what, finding.why) if part)
            made.add_row(
                out.cell(finding.pipeline),
                out.cell(finding.severity, COLOURS.get(finding.severity, "")),
                out.cell(what),
                out.cell(finding.remedy, "dim"),
            )
        console.print(made)
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    summary = f"{_many(checked, 'pipeline')} checked: {_many(errors, 'error')}, {_many(warnings, 'warning')}"
    console.print(out.cell(summary, "red" if errors else "green"))


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
