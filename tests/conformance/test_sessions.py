"""What a run costs its servers: no more sessions than `max_connections` at either end, no question twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.base import TargetTable
from penstock.backends.duckdb.write import DuckDBTarget
from penstock.backends.postgres.write import PostgresTarget
from penstock.backends.sqlite.write import SQLiteTarget
from penstock.schema import TableName
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


@pytest.mark.parametrize("incremental", [True, False])
def test_the_target_is_looked_at_once(flow: Flow, monkeypatch: pytest.MonkeyPatch, incremental: bool) -> None:
    flow.source.execute("create table items (id bigint primary key)", "insert into items values (1)")
    target = {"postgres": PostgresTarget, "duckdb": DuckDBTarget, "sqlite": SQLiteTarget}[flow.target.backend]
    look, seen = target.inspect, []

    def counted(self: Any, table: TableName) -> TargetTable | None:
        seen.append(str(table))
        return look(self, table)

    monkeypatch.setattr(target, "inspect", counted)
    flow.plan(**({"incremental": "id", "lag": "0"} if incremental else {}))
    assert seen == [f"{flow.target.schema}.items"]
