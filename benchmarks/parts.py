"""A page whose parts are measured one at a time, each with its own day and commit: all of it takes an hour.

What was found is kept beside the page as JSON, and the page is made of it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.results import Goal, Section


def keep(page: Path, name: str, sections: list[Section]) -> None:
    """Replace one part of the page by what was found now."""
    file = page.with_suffix(".json")
    parts = json.loads(file.read_text()) if file.exists() else {}
    parts[name] = {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": report.commit(),
        "sections": [
            {
                "title": section.title,
                "about": section.about,
                "lines": section.lines,
                "goals": [[goal.what, goal.wanted, goal.found, goal.met] for goal in section.goals],
            }
            for section in sections
        ],
    }
    file.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n")
    page.write_text(_page(parts))


def _page(parts: dict[str, Any]) -> str:
    lines = [
        "# Memory",
        "",
        "Made by `make bench-memory`; do not edit. A part of it is measured anew by"
        " `python -m benchmarks --only NAME`, such as `out_of_duckdb`.",
        "",
        *report.about_memory(),
        "- **Left out**: tables in memory, as sources and as targets: they take what they hold.",
        "- **Heap taken at the start**: so lines of parts are called that are older than the settings by which the JVM"
        " gives back what it frees; they were measured a second time with all of `-Xmx` taken at once.",
    ]
    for name in sorted(parts):
        part = parts[name]
        for found in part["sections"]:
            section = Section(
                found["title"], found["about"], goals=[Goal(*goal) for goal in found["goals"]], lines=found["lines"]
            )
            lines += ["", *report.render(section), ""]
            missed = [f"{goal.what.removeprefix('memory, ')} ({goal.found})" for goal in section.goals if not goal.met]
            if section.goals:
                lines.append(
                    f"Limit {section.goals[0].wanted}: "
                    + (f"missed by {', '.join(missed)}." if missed else "met by all.")
                )
            lines.append(f"Measured on {part['when']}, Penstock {part['commit']}.")
    return "\n".join(lines) + "\n"
