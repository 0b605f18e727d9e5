"""How many sessions a run opens on a server: never more than `max_connections`, whichever end it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres]

ROWS = {
    "postgres": "select n as id from generate_series(1, 1000) as n",
    "duckdb": "select range as id from range(1000)",
}


@pytest.mark.parametrize(
    ("source", "target", "most", "partitions"),
    [
        ("postgres", "duckdb", 4, 3),  # beside the one that holds the snapshot
        ("duckdb", "postgres", 4, 2),  # beside the planner's and the load's
        ("postgres", "postgres", 10, 3),  # one server: two of each task, beside three
        ("postgres", "postgres", 2, 1),
        ("postgres", "postgres", 60, 8),
        ("duckdb", "duckdb", 2, 8),
    ],
)
def test_tasks_are_no_more_than_their_sessions(
    harness: Callable[[str], Harness], tmp_path: Path, source: str, target: str, most: int, partitions: int
) -> None:
    def limited(backend: str) -> Harness:
        made = harness(backend)
        options = made.options() | ({"max_connections": most} if backend == "postgres" else {})
        made.options = lambda: options  # type: ignore[method-assign]  # other options for this one
        return made

    flow = Flow(limited(source), limited(target), tmp_path)
    options: dict[str, Any] = {"query": ROWS[source], "partition_on": "id", "parallel": 8, "path": "fused"}
    plan = flow.plan(**options)
    assert plan.partitions == partitions
    assert [note for note in plan.notes if "max_connections" in note] == (
        [] if partitions == 8 else [f"{partitions} tasks at most: max_connections"]
    )
    assert flow.run(**options).rows == 1000
