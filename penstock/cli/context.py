"""What every command shares: the project it speaks of, its state store, the output form."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from penstock.cache import cache_folder
from penstock.observe import logs, redact

if TYPE_CHECKING:
    from penstock.project import Project
    from penstock.state import Store


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How records are printed.")]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the command line."""

    path: Path | None

    def project(self) -> Project:
        """The project; its connections are built, and their secrets masked, when first asked for."""
        from penstock import project

        # What the project's modules print must not end up among the records.
        with redirect_stdout(sys.stderr):
            loaded = project.load(self.path)
        global _root
        _root = loaded.root  # the error renderer logs there from now on
        return loaded

    def store(self, loaded: Project) -> Store:
        from penstock import state

        return state.open_store(loaded.state_location)


_root: Path | None = None


def of(ctx: typer.Context) -> Invocation:
    return cast(Invocation, ctx.obj)


def start() -> None:
    """Put the mask over both streams before a command can print, and set the logs up."""
    redact.register_all(value for name, value in os.environ.items() if name == "PGPASSWORD")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, redact.RedactingStream):
            setattr(sys, name, redact.RedactingStream(stream))
    logs.setup()


def log_folder() -> Path:
    """Where tracebacks go: beside the project's state, or in the user's cache."""
    if _root is not None:
        return _root / ".penstock" / "log"
    return cache_folder() / "log"
