"""What was added to a project, as it stands there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.run.drafts import Draft


def show(drafts: Sequence[Draft], file: Path, form: Output, *, dry_run: bool) -> None:
    if form is Output.JSON:
        out.print_json(drafts)
        return
    typer.echo("\n".join(draft.toml for draft in drafts), nl=False)  # as it is, not folded to a width
    if dry_run:
        out.err().print(out.cell(f"dry run: nothing was written to {file.name}", "dim"))
        return
    names = shlex.join(draft.pipeline for draft in drafts)
    out.err().print(out.cell(f"added to {file.name}", "green"))
    out.err().print(out.spans((f"  penstock plan {names}", "cyan")), soft_wrap=True)
