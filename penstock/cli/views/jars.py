"""Jars by feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.cli.jars import JarRecord


def fetching(coordinates: str) -> None:
    out.err().print(out.cell(f"fetching {coordinates}", "dim"))


def show(records: Sequence[JarRecord], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(records)
        return
    if not records:
        out.out().print(out.cell("no backend of this version needs jars beyond Spark's own", "dim"))
        return
    made = out.table("", "", "feature", "jar", "in the cache")
    for record in records:
        made.add_row(
            out.cell("✓", "green") if record.cached else out.cell("–", "yellow"),
            out.cell(record.feature),
            out.cell(record.coordinates),
            out.cell(record.path or "penstock jars fetch", "" if record.cached else "dim"),
        )
    out.out().print(made)
