"""scd2 by event time on every SQL target: late rows, equal times, zones, keys that vanish."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused
from penstock.run.records import RunOptions
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

OPTIONS: dict[str, Any] = {"mode": "scd2", "keys": ["id"], "event_time": "seen"}


@pytest.fixture
def one(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """Into one backend, where what is tested is the same in all."""
    return Flow(harness("postgres"), harness("duckdb"), tmp_path)


def arrive(flow: Flow, *rows: str, type_: str = "timestamptz") -> None:
    """What the source has now."""
    flow.source.execute(
        "drop table if exists items", f"create table items (id int, name text, price numeric(10,2), seen {type_})"
    )
    if rows:
        flow.source.execute(f"insert into items values {', '.join(rows)}")


def day(number: int) -> str:
    return f"'2026-01-{number:02d} 12:00:00+00'"


def history(flow: Flow, columns: str = "id, name") -> list[tuple[Any, ...]]:
    """With the bounds as days of the month."""
    bounds = ", ".join(f"cast(substr(cast({bound} as varchar), 9, 2) as int)" for bound in ("valid_from", "valid_to"))
    return flow.target.query(
        f"select {columns}, {bounds}, is_current from {flow.target.schema}.items order by id, valid_from"
    )


def test_event_time_late_rows_go_into_the_middle(flow: Flow) -> None:
    assert flow.target.capabilities.event_time
    arrive(flow, f"(1, 'a', 1, {day(1)})", f"(1, 'd', 1, {day(9)})", f"(2, 'x', 1, {day(5)})")
    assert flow.run(**OPTIONS).inserted == 3
    table = f"{flow.target.schema}.items"
    flow.target.execute(f"alter table {table} add column note text", f"update {table} set note = name")
    late = [f"(1, 'c', 1, {day(6)})", f"(1, 'b', 1, {day(3)})", f"(2, 'w', 1, {day(2)})", f"(1, 'a', 1, {day(1)})"]
    arrive(flow, *late)
    second = flow.run(**OPTIONS)
    assert (second.rows, second.inserted, second.updated) == (4, 3, 1)
    expected = [
        (1, "a", 1, 3, False),
        (1, "b", 3, 6, False),
        (1, "c", 6, 9, False),
        (1, "d", 9, None, True),
        (2, "w", 2, 5, False),
        (2, "x", 5, None, True),
    ]
    assert history(flow) == expected
    again = flow.run(**OPTIONS)
    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)
    assert history(flow) == expected
    # What only the target has stays with its version.
    notes = flow.target.query(f"select note from {table} where note is not null order by 1")
    assert notes == [("a",), ("d",), ("x",)]
    assert flow.target.leftovers() == []


def test_event_time_every_event_is_a_version_so_that_order_does_not_matter(one: Flow) -> None:
    arrive(one, f"(1, 'a', 1, {day(1)})", f"(1, 'a', 1, {day(5)})")
    one.run(**OPTIONS)
    arrive(one, f"(1, 'b', 1, {day(3)})")
    one.run(**OPTIONS)
    assert history(one) == [(1, "a", 1, 3, False), (1, "b", 3, 5, False), (1, "a", 5, None, True)]
    hashes = one.target.query(f"select count(distinct row_hash) from {one.target.schema}.items")
    assert hashes == [(2,)]  # of the values alone: equal versions have equal ones


def test_event_time_different_values_at_one_time_are_an_error(flow: Flow) -> None:
    double = [f"({key}, '{name}', 1, {day(1)})" for key in range(1, 6) for name in "ab"]
    arrive(flow, *double)
    with pytest.raises(DataError, match="different values at one time") as caught:
        flow.run(**OPTIONS)
    assert len(caught.value.keys) == 3
    assert "order_by" in caught.value.remedy
    assert not flow.target.has_table("items")
    arrive(flow, *double[::2], *double[::2])  # rows that are the same are one
    assert flow.run(**OPTIONS).inserted == 5
    arrive(flow, *double[1:8:2])
    with pytest.raises(DataError, match="different values at one time") as caught:
        flow.run(**OPTIONS)
    assert len(caught.value.keys) == 3
    assert {row[1] for row in history(flow)} == {"a"}


def test_event_time_order_by_says_which_of_one_time_wins(flow: Flow) -> None:
    arrive(flow, f"(1, 'second', 2, {day(1)})", f"(1, 'first', 1, {day(1)})", f"(1, 'later', 1, {day(2)})")
    flow.run(**OPTIONS, order_by="price desc")
    assert history(flow) == [(1, "second", 1, 2, False), (1, "later", 2, None, True)]
    arrive(flow, f"(1, 'third', 3, {day(1)})", f"(1, 'zeroth', 0, {day(2)})")
    record = flow.run(**OPTIONS, order_by="price desc")
    assert (record.inserted, record.updated) == (0, 1)
    assert history(flow) == [(1, "third", 1, 2, False), (1, "later", 2, None, True)]


def test_event_time_untracked_columns_make_no_difference(one: Flow) -> None:
    arrive(one, f"(1, 'a', 1, {day(1)})")
    one.run(**OPTIONS, ignore=["price"])
    arrive(one, f"(1, 'a', 2, {day(1)})", f"(1, 'a', 3, {day(1)})", f"(1, 'b', 1, {day(2)})")
    assert one.run(**OPTIONS, track=["name"]).inserted == 1
    assert history(one, "name, cast(price as int)") == [("a", 1, 1, 2, False), ("b", 1, 2, None, True)]


def test_event_time_null_is_an_error_with_its_key(flow: Flow) -> None:
    arrive(flow, f"(1, 'a', 1, {day(1)})", "(7, 'b', 1, null)")
    with pytest.raises(DataError, match=r"rows without an event time \(seen\)") as caught:
        flow.run(**OPTIONS)
    assert "7" in caught.value.keys[0]
    assert not flow.target.has_table("items")


@pytest.mark.parametrize(("type_", "shown"), [("timestamp", "2026-06-30 22:30:00"), ("date", "2026-06-30 22:00:00")])
def test_event_time_without_a_zone_must_be_told_one(flow: Flow, type_: str, shown: str) -> None:
    arrive(flow, "(1, 'a', 1, '2026-07-01 00:30:00')", type_=type_)
    with pytest.raises(PlanRefused, match="event_time = 'seen' has no time zone") as caught:
        flow.run(**OPTIONS)
    assert 'cursor_timezone = "UTC"' in caught.value.why
    if not flow.target.capabilities.time_zones:
        with pytest.raises(PlanRefused, match="knows no time zone but UTC"):
            flow.run(**OPTIONS, cursor_timezone="Europe/Berlin")
        assert flow.run(**OPTIONS, cursor_timezone="UTC").inserted == 1
        return
    flow.run(**OPTIONS, cursor_timezone="Europe/Berlin")
    table = f"{flow.target.schema}.items"
    assert flow.target.query(f"select cast(valid_from at time zone 'UTC' as varchar) from {table}") == [(shown,)]
    arrive(flow, "(1, 'b', 1, '2026-07-02 00:30:00')", type_=type_)
    with pytest.raises(DataError, match="was not made by this event time"):
        flow.run(**OPTIONS, cursor_timezone="UTC")  # another zone is another history
    assert flow.run(**OPTIONS, cursor_timezone="Europe/Berlin").inserted == 1


@pytest.mark.parametrize(("column", "said"), [("name", "needs a timestamp or a date"), ("gone", "no column that is")])
def test_event_time_of_no_time_is_refused(one: Flow, column: str, said: str) -> None:
    arrive(one, f"(1, 'a', 1, {day(1)})")
    with pytest.raises(PlanRefused, match=said):
        one.run(**(OPTIONS | {"event_time": column}))
    with pytest.raises(PlanRefused, match="needs a timestamp or a date, and price is"):
        one.run(**(OPTIONS | {"event_time": "price", "columns": {"price": "double"}}))


def test_event_time_vanished_keys_end_at_the_loads_time(flow: Flow) -> None:
    options = OPTIONS | {"deletes": "close", "max_delete_ratio": 1}
    arrive(flow, f"(1, 'a', 1, {day(1)})", f"(2, 'b', 1, {day(1)})")
    flow.run(**options)
    arrive(flow, f"(1, 'a', 1, {day(1)})")
    before = datetime.now(UTC)
    assert flow.run(**options).deleted == 1
    [(key, ended)] = flow.target.query(
        f"select id, cast(valid_to as varchar) from {flow.target.schema}.items where not is_current"
    )
    assert (key, ended[:10] in {str(now.date()) for now in (before, datetime.now(UTC))}) == (2, True)
    arrive(flow, f"(1, 'a', 1, {day(1)})", f"(2, 'b', 1, {day(1)})")
    assert flow.run(**options).updated == 1  # back with nothing later: it was never gone
    assert history(flow) == [(1, "a", 1, None, True), (2, "b", 1, None, True)]
    arrive(flow)
    with pytest.raises(DataError, match="would go"):
        flow.run(**options)


def test_event_time_a_version_of_the_future_is_not_closed(one: Flow) -> None:
    options = OPTIONS | {"deletes": "close", "max_delete_ratio": 1}
    arrive(one, "(1, 'a', 1, '2999-01-01 00:00:00+00')", f"(2, 'b', 1, {day(1)})")
    one.run(**options)
    arrive(one, f"(2, 'b', 1, {day(1)})")
    with pytest.raises(DataError, match="has not begun yet") as caught:
        one.run(**options)
    assert "1" in caught.value.keys[0]


def test_event_time_may_be_the_cursor_too(one: Flow) -> None:
    options = OPTIONS | {"incremental": "seen", "lag": "0s"}
    arrive(one, f"(1, 'a', 1, {day(1)})", f"(1, 'b', 1, {day(2)})")
    assert one.run(**options).inserted == 2
    one.source.execute("insert into items values (1, 'c', 1, now())")
    third = one.run(**options)
    assert (third.rows, third.inserted, third.updated) == (1, 1, 1)
    assert [row[1] for row in history(one)] == ["a", "b", "c"]
    assert one.run(RunOptions(full_refresh=True), **options).inserted == 0


def test_event_time_a_new_column_is_filled_by_a_full_refresh(flow: Flow) -> None:
    options = OPTIONS | {"on_drift": "evolve"}
    arrive(flow, f"(1, 'a', 1, {day(1)})", f"(1, 'b', 1, {day(2)})")
    flow.run(**options)
    flow.source.execute("alter table items add column extra int default 7")
    with pytest.raises(DataError, match="different values at one time") as caught:
        flow.run(**options)
    assert "--full-refresh" in caught.value.remedy
    record = flow.run(RunOptions(full_refresh=True), **options)
    assert (record.inserted, record.updated) == (0, 2)
    assert history(flow, "name, extra") == [("a", 7, 1, 2, False), ("b", 7, 2, None, True)]


@pytest.mark.parametrize("backend", ["postgres", "duckdb"])
def test_event_time_ttl_and_partitions_inside_one_database(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    here = harness(backend)
    here.execute("create table items (id int, seen timestamp)", "insert into items values (1, '2026-01-02 00:00:00')")
    flow = Flow(here, here, tmp_path)
    options: dict[str, Any] = {"path": "native", "keys": ["id"], "cursor_timezone": "UTC"}
    history = options | {"mode": "scd2", "event_time": "seen", "target": "to.history"}
    assert [flow.run(**history).inserted for _ in range(2)] == [1, 0]
    young = options | {"mode": "merge", "ttl": {"column": "seen", "keep": "1h"}, "target": "to.young"}
    assert [flow.run(**young).inserted for _ in range(2)] == [0, 0]
    if here.capabilities.partition_by:
        parts = options | {
            "mode": "merge",
            "partition_by": ["day(seen)"],
            "target": "to.parts",
            "cursor_timezone": None,
        }
        assert [flow.run(**parts).inserted for _ in range(2)] == [1, 0]


def test_event_time_is_in_the_plan(one: Flow) -> None:
    arrive(one, f"(1, 'a', 1, {day(1)})")
    planned = one.plan(**OPTIONS)
    assert any("_penstock_versions" in sql and "lead(" in sql for sql in planned.sql)
    assert not one.target.has_table("items")
