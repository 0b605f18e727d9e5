"""`python -m benchmarks`: all scenarios, or some, in full or in a small version; `--memory`: those of memory."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import parts, report
from benchmarks.ends import NAMES
from benchmarks.files import files, join
from benchmarks.memory import memory, out_of
from benchmarks.replication import replication
from benchmarks.results import Section
from benchmarks.scenarios import FULL, PENSTOCK, QUICK, Scale, copy_into_duckdb, merge_between_postgres, starts
from benchmarks.stand import Stand, say

PAGES = Path(__file__).parent.parent / "docs" / "reference"
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


def main() -> int:
    options = _options()
    scale = QUICK if options.quick else FULL
    scale = replace(scale, runs=options.runs or scale.runs)
    begun = time.perf_counter()
    timed: list[Section] = []
    lost = False
    for name in options.only or (MEMORY if options.memory else SCENARIOS):
        with Stand(options.sides) as stand:
            found = (SCENARIOS | MEMORY)[name](stand, scale)
        if name in SCENARIOS:
            timed += found
            continue
        lost |= any(goal.met is None for section in found for goal in section.goals)
        print("\n".join(line for section in found for line in report.render(section)))
        if not options.quick:
            parts.keep(options.page or PAGES / "memory.md", name, found)
    if timed:
        text = report.document(timed, scale, (time.perf_counter() - begun) / 60)
        print(text)
        page = options.page or (PAGES / "benchmarks.md" if _whole(options) else None)
        if page is not None:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
            say(f"written to {page}")
    ours = [row for section in timed for row in section.rows if row.label == PENSTOCK]
    return 1 if lost or any(row.failed for row in ours) else 0


def _whole(options: argparse.Namespace) -> bool:
    return not options.quick and options.only is None and options.sides is None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one run: a smoke test, not a measurement")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(SCENARIOS | MEMORY),
        help="these scenarios; of those of time, no page is written",
    )
    parser.add_argument("--memory", action="store_true", help="the scenarios of memory instead of those of time")
    parser.add_argument("--sides", nargs="*", choices=PEERS, help="Penstock against these alone")
    parser.add_argument("--runs", type=int, help="rounds after the cold run; 5, or 1 with --quick")
    parser.add_argument("--page", type=Path, help="where the page goes; docs/reference/ for a full run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
