"""`penstock init`: a project that runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.context import Output, OutputOption


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if it is not there; `.` is this one.")],
    output: OutputOption = Output.TEXT,
) -> None:
    """Write a project that runs as it stands: two pipelines, a sample database to read, tests."""
    from penstock.cli import schema
    from penstock.cli.views import init as view
    from penstock.scaffold import start

    view.show(start.start(folder, schema.text(), schema.FILE), output)
