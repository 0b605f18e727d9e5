"""Replications: live, listed, and table by table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.cli import output as out
from penstock.cli.context import Output
from penstock.observe import logs

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.backends.change_source import Finding
    from penstock.cli.replications import ReplicationRecord
    from penstock.project.replications import Replication
    from penstock.replicate.status import Status

DRAW_SECONDS = 0.25
LINE_SECONDS = 10.0
STYLES = {"streaming": "green", "failed": "red", "copying": "cyan", "catching up": "cyan", "waiting": "dim"}


@contextmanager
def live(name: str) -> Iterator[Callable[[Status], None]]:
    """What tells of a replication as it goes: a table on a terminal, a log line now and then anywhere else."""
    if not sys.stderr.isatty():
        yield _Lines(name)
        return
    from rich.live import Live

    with Live(console=out.err(), refresh_per_second=4, transient=False) as drawn:
        shown = _Drawn(drawn.update)
        yield shown


class _Drawn:
    def __init__(self, update: Callable[[Table], None]) -> None:
        self._update = update
        self._at = 0.0
        self._rates = _Rates()

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._at < DRAW_SECONDS:
            return
        self._at = now
        record = status.to_record()
        self._update(tables(record, f"{status.name}: {status.state}", self._rates.of(record)))


class _Rates:
    """Rows per second of every table, between two looks."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = time.monotonic()

    def of(self, record: Mapping[str, Any]) -> dict[str, float]:
        now = time.monotonic()
        rows = {table["table"]: table["copied"] + table["applied"] for table in record["tables"]}
        since = max(now - self._at, 0.001)
        rates = {name: (count - self._before.get(name, 0)) / since for name, count in rows.items()}
        self._before, self._at = rows, now
        return rates


class _Lines:
    """A line for every change of a table's phase, and one for all of it every ten seconds."""

    def __init__(self, name: str) -> None:
        self._log = logs.Log("replicate")
        self._name = name
        self._phases: dict[str, str] = {}
        self._waiting = ""
        self._at = time.monotonic()

    def __call__(self, status: Status) -> None:
        for state in status.tables:
            if self._phases.get(str(state.source)) != state.phase:
                self._phases[str(state.source)] = state.phase
                fields = {"reason": state.reason} if state.reason else {}
                self._log.info(state.phase, replication=self._name, table=str(state.source), **fields)
        if status.waiting != self._waiting:
            self._waiting = status.waiting
            self._log.warning(status.waiting or "capture goes on", replication=self._name)
        if time.monotonic() - self._at >= LINE_SECONDS:
            self._at = time.monotonic()
            applied = sum(status.applied.values())
            lag = {"lag_bytes": status.lag_bytes, "lag_seconds": round(status.lag_seconds, 3)}
            self._log.info(status.state, replication=self._name, applied=applied, **lag)


def tables(record: Mapping[str, Any], title: str, rates: Mapping[str, float] | None = None) -> Table:
    """Without `rates` there is no column of them: whoever looks once knows none."""
    numbers = ("copied", "changes", *(() if rates is None else ("rows/s",)))
    made = out.table(title, "table", "phase", *numbers, "", right=numbers)
    for table in record["tables"]:
        done, total = table["ranges"]
        phase = f"{table['phase']} {done}/{total}" if table["phase"] == "copying" and total else table["phase"]
        rate = [] if rates is None else [rates.get(table["table"], 0.0)]
        made.add_row(
            out.cell(table["table"]),
            out.cell(phase, STYLES.get(table["phase"], "")),
            out.cell(out.count(table["copied"]) if table["copied"] else ""),
            out.cell(out.count(table["applied"]) if table["applied"] else ""),
            *(out.cell(f"{number:,.0f}" if number >= 1 else "") for number in rate),
            out.cell(table["reason"], "red"),
        )
    lag = out.lag(record["lag_bytes"], record["lag_seconds"])
    words = [f"lag {lag}", *_held(record), record["waiting"], record["error"], *retries(record)]
    made.caption = out.cell("; ".join(word for word in words if word), "dim")
    made.caption_justify = "left"
    return made


def _held(record: Mapping[str, Any]) -> list[str]:
    """What the source keeps of its log, and what may become of that."""
    held = record.get("held")
    if held is None:
        return []
    words = [f"the source holds {out.size(held['bytes'])} of log ({held['state']})"]
    return [*words, f"{held['warning']}: {held['remedy']}"] if held["warning"] else words


def retries(record: Mapping[str, Any]) -> list[str]:
    """Of each end that has failed: how often, and when it is tried again."""
    said = []
    for name, circuit in record.get("circuits", {}).items():
        if circuit["attempts"]:
            times = "once" if circuit["attempts"] == 1 else f"{circuit['attempts']} times"
            at = f"{datetime.fromisoformat(circuit['retry_at']):%H:%M:%S} UTC" if circuit["retry_at"] else "at once"
            said.append(f"{name.replace('_', ' ')} failed {times}, circuit {circuit['state']}, tried again {at}")
    return said


def show_list(records: Sequence[ReplicationRecord], form: Output) -> None:
    if form is Output.JSON:
        out.print_json(records)
        return
    if not records:
        out.out().print(out.cell("the project has no replications", "dim"))
        return
    made = out.table("", "replication", "source", "target", "tables", "state", "lag", right=("lag",))
    for record in records:
        made.add_row(
            out.cell(record.name),
            out.cell(record.source),
            out.cell(record.target),
            out.cell(", ".join(record.tables)),
            out.cell(record.state, "green" if record.state == "running" else "dim"),
            out.cell(out.lag(record.lag_bytes, record.lag_seconds)),
        )
    out.out().print(made)


def show_one(record: ReplicationRecord, form: Output) -> None:
    if form is Output.JSON:
        out.print_json(record)
        return
    if not record.status:
        out.out().print(out.cell(f"{record.name}: {record.state}", "dim"))
        return
    out.out().print(tables(record.status, f"{record.name}: {record.state}"))
    for table in record.status["tables"]:
        if table["remedy"]:
            out.out().print(out.cell(f"{table['table']}: {table['remedy']}", "dim"))
    for one in record.status.get("warnings", ()):
        out.out().print(out.spans(("! ", "yellow"), (one["what"], ""), (f"\n  {one['remedy']}", "dim")))


def show_removed(replication: Replication, left: Mapping[str, Sequence[str]]) -> None:
    gone = {
        (): "slot, publications and position are gone",
        ("source",): "its position is gone",
        ("target",): "slot and publications are gone",
    }.get(tuple(left), "nothing at its ends was touched")
    stays = "the tables and the log stay" if replication.buffer.keep_copy else "the tables stay"
    out.err().print(out.cell(f"{replication.name}: {gone}; {stays}"))
    for end, statements in left.items():
        if statements:
            out.err().print(out.cell(f"left at the {end}; should it come back, run there:", "dim"))
        for statement in statements:
            print(f"{statement};")  # for a pipe: never wrapped


def show_prepared(
    found: Sequence[Finding], advice: Sequence[Finding], statements: Sequence[str], *, printed: bool
) -> None:
    for sign, style, findings in (("✗ ", "red", found), ("! ", "yellow", advice)):
        for one in findings:
            out.err().print(out.spans((sign, style), (one.what, ""), (f"\n  {one.remedy}", "dim")))
    for statement in statements:
        print(f"{statement};")  # for a pipe: never wrapped
    if not statements and not found:
        out.err().print(out.cell("nothing is left to be prepared", "dim"))
    elif not printed and not found:
        out.err().print(out.cell("done", "green"))
