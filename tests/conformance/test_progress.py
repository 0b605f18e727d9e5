"""How far a run has got, and of how much, as its watcher is told."""

from __future__ import annotations

import pytest

from penstock.run.pipeline import ProgressEvent, RunOptions, run
from tests.conformance.harness import Flow
from tests.faults.bare import stage_here

pytestmark = pytest.mark.postgres

ROWS = 500


def copied(flow: Flow, limit: int | None = None, **options: object) -> set[int | None]:
    """The totals that were told while rows were copied."""
    events: list[ProgressEvent] = []
    pipeline = flow.pipeline(path="fused", **options)
    run(flow.project(pipeline), pipeline, flow.store, RunOptions(limit=limit), events.append, stage_here)
    assert [event.phase for event in events][-2:] == ["commit", "done"]
    return {event.total_rows for event in events if event.phase == "copy"}


def test_progress_of_a_whole_table_knows_about_how_much_there_is(pair: Flow) -> None:
    pair.source.execute(
        "create table items (id bigint primary key)",
        f"insert into items select n from generate_series(1, {ROWS}) as g(n)",
        "analyze items",
    )
    assert copied(pair) == {ROWS}
    assert copied(pair, query=f"select id from {pair.source.schema}.items") == {None}
    assert copied(pair, limit=10) == {None}
    windowed = f"to.{pair.target.schema}.windowed"  # what was loaded without a window has no place to go on from
    assert copied(pair, target=windowed, incremental="id", lag="0") == {None}


def test_progress_counts_all_partitions_and_guesses_nothing(flow: Flow) -> None:
    flow.source.execute(
        "create table items (id bigint, part int) partition by list (part)",
        "create table items_1 partition of items for values in (1) with (autovacuum_enabled = off)",
        "create table items_2 partition of items for values in (2) with (autovacuum_enabled = off)",
        f"insert into items select n, 1 + n % 2 from generate_series(1, {ROWS}) as g(n)",
        "analyze items_1",
    )
    assert copied(flow) == {None}
    flow.source.execute("analyze items_2")
    assert copied(flow) == {ROWS}
