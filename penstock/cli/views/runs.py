"""The run history as a list, and one run in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.cli import output as out
from penstock.cli.context import Output

if TYPE_CHECKING:
    from penstock.state import Event, RunRecord

COLOURS = {"done": "green", "failed": "red", "running": "cyan", "cancelled": "yellow", "interrupted": "yellow"}
LABELS = (("why", "why"), ("kept", "kept"), ("next", "remedy"))
NUMBERS = ("rows", "inserted", "updated", "deleted", "seconds")


def show_list(
    records: Sequence[RunRecord], form: Output, many: frozenset[str] = frozenset(), empty: str = "no runs yet"
) -> None:
    """`many`: pipelines of several tables, whose runs are told apart by the table."""
    if form is Output.JSON:
        out.print_json([as_json(record) for record in records])
        return
    if not records:
        out.out().print(out.cell(empty, "dim"))
        return
    made = out.table("", "run", "pipeline", "started", "state", "path", *NUMBERS, right=NUMBERS)
    for record in records:
        made.add_row(
            # The end of a uuid7 tells runs of the same minute apart; `runs show` takes it.
            out.cell(record.run_id[-8:]),
            out.cell(f"{record.pipeline} {_table(record)}" if record.pipeline in many else record.pipeline),
            out.cell(when(record.started_at)),
            out.cell(record.state, COLOURS.get(record.state, "")),
            out.cell(record.path or "", "dim"),
            *(out.cell(out.count(n)) for n in (record.rows, record.inserted, record.updated, record.deleted)),
            out.cell("" if (taken := record.seconds) is None else f"{taken:.1f}"),
        )
    out.out().print(made)


def show_one(record: RunRecord, events: Sequence[Event], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(as_json(record) | {"events": events})
        return
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    taken = record.seconds
    lines: list[tuple[str, str, str]] = [
        ("run", record.run_id, "bold"),
        ("pipeline", record.pipeline, ""),
        ("state", record.state, COLOURS.get(record.state, "")),
        ("from", record.source or "", ""),
        ("into", record.target or "", ""),
        ("mode", record.mode or "", ""),
        ("path", record.path or "", "cyan"),
        ("partitions", out.count(record.partitions), ""),
        ("started", when(record.started_at), ""),
        ("took", "" if taken is None else f"{taken:.2f} s", ""),
        ("rows", _rows(record), ""),
        ("bytes", out.size(record.bytes), ""),
        ("on", f"{record.host}, pid {record.pid}" if record.host else "", "dim"),
    ]
    for label, value, style in lines:
        if value:
            grid.add_row(label, out.cell(value, style))
    for event in events:
        facts = ", ".join(f"{name} {value}" for name, value in event.data.items())
        grid.add_row(event.name, out.cell(facts, "yellow"))
    for label, value in _error(record.error or {}):
        grid.add_row(label, out.cell(value, "red" if label == "error" else ""))
    out.out().print(grid)


def as_json(record: RunRecord) -> dict[str, Any]:
    """The record with its embedded JSON opened up."""
    fields: dict[str, Any] = out.plain(record)
    fields["plan"] = json.loads(record.plan) if record.plan else None
    fields["seconds"] = record.seconds
    return fields


def when(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _table(record: RunRecord) -> str:
    return (record.source or "").partition(".")[2]


def _rows(record: RunRecord) -> str:
    if record.rows is None:
        return ""
    parts = [f"{out.count(record.rows)} read"]
    for name in ("inserted", "updated", "deleted"):
        number = getattr(record, name)
        if number is not None:
            parts.append(f"{out.count(number)} {name}")
    return ", ".join(parts)


def _error(error: Mapping[str, Any]) -> list[tuple[str, str]]:
    what = ": ".join(str(error[name]) for name in ("place", "what") if error.get(name))
    rest = [(label, str(error[name])) for label, name in LABELS if error.get(name)]
    findings = [line for finding in error.get("findings", ()) for line in _error(finding)]
    return [("error", what), *rest, *findings] if what else []
