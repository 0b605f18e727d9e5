"""An error as people read it: what failed, why, what was kept, what to do next.

One text for the terminal and for notebooks. Secrets are masked; nothing here prints.
"""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

from penstock.observe.redact import redact

if TYPE_CHECKING:
    from penstock.errors import PenstockError

INDENT = 9
MAX_WIDTH = 100


def render(error: PenstockError, *, pipeline: str = "", show_keys: bool = True, colour: bool = False) -> str:
    """The error as text: a line of what failed, then the labelled rest, wrapped to the terminal."""
    where = ", ".join(part for part in (f"pipeline {pipeline}" if pipeline else "", error.place) if part)
    head = f"{where}: {error.what}" if where else error.what
    lines = [labelled("error:", head, "1;31" if colour else "")]
    keys = error.keys if show_keys else ()
    rest = [
        ("why:", error.why),
        ("keys:", "\n".join(keys)),
        ("kept:", error.kept),
        ("next:", error.remedy),
    ]
    lines += [labelled(label, text, "2" if colour else "") for label, text in rest if text]
    return "\n".join(lines)


def in_a_notebook(error: PenstockError) -> list[str]:
    """The lines that a notebook shows instead of a traceback; of several findings, those of each."""
    findings: list[PenstockError] = getattr(error, "findings", None) or [error]
    lines = [line for one in findings for line in render(one, pipeline=error.pipeline).splitlines()]
    return lines if len(findings) == 1 else [*lines, f"{len(findings)} problems in the project; nothing was run"]


def labelled(label: str, text: str, style: str) -> str:
    width = max(40, min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)) - INDENT
    lines: list[str] = []
    for line in redact(text).splitlines() or [""]:
        kept = len(line) - len(line.lstrip())
        # A line that shows SQL or a caret under it must keep its columns.
        lines += [line] if kept else textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    head = f"\x1b[{style}m{label}\x1b[0m" if style else label
    first = head + " " * max(1, INDENT - len(label)) + lines[0]
    return "\n".join([first, *(" " * INDENT + line for line in lines[1:])])
