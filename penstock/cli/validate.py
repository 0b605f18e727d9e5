"""`penstock validate`: every pipeline against both its ends, all findings at once, no row moved."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import context
from penstock.cli.context import Output, OutputOption


def validate(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Pipelines by name, glob or tag:NAME; all without.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check pipelines against both ends and report everything that is wrong. Moves nothing."""
    from penstock.cli import lasting, selection
    from penstock.cli.views import findings as view
    from penstock.run import pipeline as runner

    project = context.of(ctx).project()
    chosen = selection.select(project.pipelines, names or [], [], everything=not names)
    findings = lasting.findings(project, chosen)
    findings += runner.validate(project, [pipeline.name for pipeline in chosen] if names else None)
    view.show(findings, len(chosen), output)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
