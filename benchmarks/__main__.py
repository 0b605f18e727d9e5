"""`python -m benchmarks`: all scenarios, or some, in full or in a small version."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.files import files, join
from benchmarks.memory import memory
from benchmarks.results import Section
from benchmarks.scenarios import FULL, PENSTOCK, QUICK, Scale, copy_into_duckdb, merge_between_postgres, starts
from benchmarks.stand import Stand, say

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "benchmarks.md"
PEERS = ("psql", "ematix_flow", "dlt", "sling", "ingestr", "spark_jdbc", "duckdb_csv")
SCENARIOS: dict[str, Callable[[Stand, Scale], list[Section]]] = {
    "postgres": merge_between_postgres,
    "duckdb": copy_into_duckdb,
    "files": files,
    "join": join,
    "starts": starts,
    "memory": memory,
}


def main() -> int:
    options = _options()
    scale = QUICK if options.quick else FULL
    scale = replace(scale, runs=options.runs or scale.runs)
    begun = time.perf_counter()
    sections: list[Section] = []
    for name in options.only or SCENARIOS:
        with Stand(options.sides) as stand:
            sections += SCENARIOS[name](stand, scale)
    text = report.document(sections, scale, (time.perf_counter() - begun) / 60)
    print(text)
    page = options.page or (PAGE if _whole(options) else None)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        say(f"written to {page}")
    ours = [row for section in sections for row in section.rows if row.label == PENSTOCK]
    return 1 if any(row.failed for row in ours) else 0


def _whole(options: argparse.Namespace) -> bool:
    return not options.quick and options.only is None and options.sides is None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one run: a smoke test, not a measurement")
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), help="these scenarios; writes no page")
    parser.add_argument("--sides", nargs="*", choices=PEERS, help="Penstock against these alone")
    parser.add_argument("--runs", type=int, help="rounds after the cold run; 5, or 1 with --quick")
    parser.add_argument("--page", type=Path, help=f"where the page goes; {PAGE.name} in docs/ for a full run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
