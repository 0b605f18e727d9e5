"""Pages whose parts are measured one at a time, each with its own day and commit: all of them take hours.

What was found is kept beside each page as JSON, and the page is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.results import Section

Found = dict[str, Any]  # one part: when, commit, how often, and of each section its text and its goals


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its scenarios in their order, what stands above them, and where goals are told."""

    file: str
    head: list[str]
    scenarios: Sequence[str]
    gathered: bool  # all goals in one table at the top; otherwise a line under each section


def found(sections: list[Section], runs: int | None) -> Found:
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": report.commit(),
        "runs": runs,
        "sections": [
            {
                "text": report.render(section),
                "goals": [[goal.what, goal.wanted, goal.found, goal.met] for goal in section.goals],
            }
            for section in sections
        ],
    }


def keep(folder: Path, page: Page, name: str, part: Found) -> None:
    """Replace one part of the page by what was found now."""
    file = folder / f"{page.file}.json"
    parts = json.loads(file.read_text()) if file.exists() else {}
    parts[name] = part
    parts = {scenario: parts[scenario] for scenario in page.scenarios if scenario in parts}
    file.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n")
    (folder / f"{page.file}.md").write_text(text(page, parts))


def text(page: Page, parts: dict[str, Found]) -> str:
    lines = list(page.head)
    if page.gathered:
        goals = [goal for part in parts.values() for section in part["sections"] for goal in section["goals"]]
        told = [[what, wanted, reached, report.met(met)] for what, wanted, reached, met in goals]
        lines += ["", "## Goals", "", *report.table([["goal", "wanted", "found", ""], *told])]
    for part in parts.values():
        of = f", medians of {part['runs']}" if part["runs"] else ""
        for section in part["sections"]:
            lines += ["", *section["text"], ""]
            if section["goals"] and not page.gathered:
                lines.append(_limit(section["goals"]))
            lines.append(f"Measured on {part['when']}, Penstock {part['commit']}{of}.")
    return "\n".join(lines) + "\n"


def _limit(goals: list[list[Any]]) -> str:
    missed = [f"{what.removeprefix('memory, ')} ({reached})" for what, _, reached, met in goals if not met]
    return f"Limit {goals[0][1]}: " + (f"missed by {', '.join(missed)}." if missed else "met by all.")
