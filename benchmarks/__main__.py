"""`python -m benchmarks`: all scenarios, or some, in full or in a small version; `--memory`: those of memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.ends import NAMES
from benchmarks.files import files, join
from benchmarks.memory import memory, out_of
from benchmarks.parts import Found, Page, found, keep, text
from benchmarks.replication import replication
from benchmarks.results import Section
from benchmarks.scenarios import FULL, PENSTOCK, QUICK, Scale, copy_into_duckdb, merge_between_postgres, starts
from benchmarks.stand import Stand, say

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
PEERS = ("psql", "ematix_flow", "dlt", "sling", "ingestr", "spark_jdbc", "duckdb_csv")
SCENARIOS: dict[str, Callable[[Stand, Scale], list[Section]]] = {
    "postgres": merge_between_postgres,
    "duckdb": copy_into_duckdb,
    "files": files,
    "join": join,
    "starts": starts,
    "replication": replication,
}
# Apart: they take longer than all the others, and need no quiet machine.
MEMORY: dict[str, Callable[[Stand, Scale], list[Section]]] = {
    "out_of_postgres": memory,
    **{f"out_of_{kind}": partial(out_of, kind) for kind in NAMES[1:]},
}


RACES = Page("benchmarks", report.about_time(), [name for name in SCENARIOS if name != "replication"], gathered=True)
PAGES = (
    RACES,
    Page("benchmarks-replication", report.about_replication(), ["replication"], gathered=True),
    Page("memory", report.about_memory(), sorted(MEMORY), gathered=False),
)


def main() -> int:
    options = _options()
    scale = QUICK if options.quick else FULL
    scale = replace(scale, runs=options.runs or scale.runs)
    lost = False
    asked: dict[str, Found] = {}
    for name in options.only or (MEMORY if options.memory else SCENARIOS):
        with Stand(options.sides) as stand:
            sections = (SCENARIOS | MEMORY)[name](stand, scale)
        print("\n".join(line for section in sections for line in report.render(section)))
        lost |= any(row.failed for section in sections for row in section.rows if row.label == PENSTOCK)
        lost |= name in MEMORY and any(goal.met is None for section in sections for goal in section.goals)
        page = next(page for page in PAGES if name in page.scenarios)
        asked[name] = found(sections, scale.runs if page is RACES else None)
        if options.page is not None:
            options.page.write_text(text(page, asked))
        elif not options.quick and options.sides is None:
            keep(FOLDER, page, name, asked[name])
            say(f"kept in {FOLDER / page.file}.md")
    return 1 if lost else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one run: a smoke test, not a measurement")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(SCENARIOS | MEMORY),
        help="these scenarios; the other parts of their page stay as they are",
    )
    parser.add_argument("--memory", action="store_true", help="the scenarios of memory instead of those of time")
    parser.add_argument("--sides", nargs="*", choices=PEERS, help="Penstock against these alone")
    parser.add_argument("--runs", type=int, help="rounds after the cold run; 5, or 1 with --quick")
    parser.add_argument("--page", type=Path, help="a page of this run alone, instead of its part in docs/reference/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
