"""Drift: change × on_drift → action, on every target."""

from __future__ import annotations

import pytest

from penstock.errors import DataError, PlanRefused
from tests.conformance.harness import Flow

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]


@pytest.fixture
def drifted(flow: Flow) -> Flow:
    flow.source.execute("create table items (id int primary key, name varchar)", "insert into items values (1, 'a')")
    flow.run(mode="merge" if "merge" in flow.target.capabilities.modes else "append")
    return flow


def columns(flow: Flow) -> list[str]:
    return flow.target.columns("items")


def test_new_column_error(drifted: Flow) -> None:
    drifted.source.execute("alter table items add column extra int default 7")
    with pytest.raises(PlanRefused, match="column extra of the source is not in"):
        drifted.run(mode="merge")
    assert columns(drifted) == ["id", "name"]


def test_new_column_evolve(drifted: Flow) -> None:
    drifted.source.execute("alter table items add column extra int default 7", "insert into items values (2, 'b', 8)")
    planned = drifted.plan(mode="merge", on_drift="evolve")
    assert planned.changes
    drifted.run(mode="merge", on_drift="evolve")
    assert drifted.target.query(f"select id, extra from {drifted.target.schema}.items order by 1") == [(1, 7), (2, 8)]


def test_new_column_ignore(drifted: Flow) -> None:
    drifted.source.execute("alter table items add column extra int default 7", "insert into items values (2, 'b', 8)")
    drifted.run(mode="merge", on_drift="ignore")
    assert columns(drifted) == ["id", "name"]


def test_strict_schema_refuses_new_columns_and_widening(drifted: Flow) -> None:
    drifted.source.execute("alter table items add column extra int")
    with pytest.raises(PlanRefused, match=r"column extra of the source is not in .* \(strict_schema is set\)"):
        drifted.run(mode="merge", on_drift="evolve", strict_schema=True)


def test_column_gone_error_and_ignore(drifted: Flow) -> None:
    drifted.source.execute("alter table items drop column name", "insert into items values (2)")
    with pytest.raises(PlanRefused, match="name was loaded before and is gone"):
        drifted.run(mode="merge")
    drifted.run(mode="merge", on_drift="ignore")
    assert drifted.target.query(f"select id, name from {drifted.target.schema}.items order by 1") == [
        (1, "a"),
        (2, None),
    ]


def test_target_only_column_is_kept(drifted: Flow) -> None:
    drifted.target.execute(f"alter table {drifted.target.schema}.items add column note text")
    drifted.target.execute(f"update {drifted.target.schema}.items set note = 'mine'")
    drifted.source.execute("update items set name = 'b'")
    drifted.run(mode="merge")
    assert drifted.target.query(f"select id, name, note from {drifted.target.schema}.items") == [(1, "b", "mine")]


def test_wider_source_type(drifted: Flow) -> None:
    drifted.source.execute(
        "alter table items alter column id type bigint", "insert into items values (5000000000, 'big')"
    )
    with pytest.raises(PlanRefused, match=r"(?i)column id: bigint does not go into int(eger)?") as caught:
        drifted.run(mode="merge")
    assert 'on_drift = "evolve" would widen it to bigint' in caught.value.remedy.lower()
    drifted.run(mode="merge", on_drift="evolve")
    assert drifted.target.query(f"select max(id) from {drifted.target.schema}.items") == [(5000000000,)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int", "double precision"),
        ("int", "numeric(12,2)"),
        ("numeric(10,2)", "numeric(20,4)"),
        ("real", "double precision"),
    ],
)
def test_wider_source_type_that_is_held_in_another_way(flow: Flow, before: str, after: str) -> None:
    """SQLite, for one, has other storage for it."""
    flow.source.execute(
        f"create table items (id int primary key, v {before})",
        "insert into items values (1, 1), (2, null), (3, -2147483), (4, 0)",
    )
    flow.run(mode="merge")
    flow.source.execute(f"alter table items alter column v type {after}", "insert into items values (5, 1.5)")
    with pytest.raises(PlanRefused, match="column v") as caught:
        flow.run(mode="merge")
    assert 'on_drift = "evolve" would widen it to' in caught.value.remedy
    assert flow.plan(mode="merge", on_drift="evolve").changes
    run = flow.run(mode="merge", on_drift="evolve")
    assert (run.inserted, run.updated) == (1, 0)
    held = flow.target.query(f"select id, v from {flow.target.schema}.items order by id")
    values = [(number, None if value is None else float(value)) for number, value in held]
    assert values == [(1, 1.0), (2, None), (3, -2147483.0), (4, 0.0), (5, 1.5)]
    assert not flow.plan(mode="merge", on_drift="evolve").changes
    again = flow.run(mode="merge", on_drift="evolve")
    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)


def test_narrower_source_type_goes_into_the_wider_column(flow: Flow) -> None:
    flow.source.execute("create table items (id int primary key)", "insert into items values (1)")
    flow.target.execute(f"create table {flow.target.schema}.items (id bigint)")
    assert flow.plan(mode="merge").columns[0].verdict == "widened"
    flow.run(mode="merge")
    assert flow.target.query(f"select id from {flow.target.schema}.items") == [(1,)]


def test_incompatible_type_is_refused_with_a_cast_that_would_do(flow: Flow) -> None:
    flow.source.execute(
        "create table items (id int primary key, v text)", "insert into items values (1, '12'), (2, 'x')"
    )
    flow.target.execute(f"create table {flow.target.schema}.items (id int, v int)")
    with pytest.raises(PlanRefused, match="column v") as caught:
        flow.run(mode="merge")
    assert "columns.v" in caught.value.remedy


def test_not_null_of_an_existing_target_is_checked_with_the_key(flow: Flow) -> None:
    flow.source.execute(
        "create table items (id int primary key, v text)", "insert into items values (1, 'a'), (2, null)"
    )
    flow.target.execute(f"create table {flow.target.schema}.items (id int, v varchar not null)")
    with pytest.raises(DataError, match="column v of the target takes no NULL") as caught:
        flow.run(mode="merge")
    assert caught.value.keys == ("id=2",)


def test_evolve_under_incremental_says_that_old_rows_stay_null(flow: Flow) -> None:
    flow.source.execute("create table items (id int primary key)", "insert into items select generate_series(1, 3)")
    flow.run(mode="merge", incremental="id", lag="0")
    flow.source.execute("alter table items add column extra int default 1", "insert into items values (4, 2)")
    planned = flow.plan(mode="merge", incremental="id", lag="0", on_drift="evolve")
    assert any("--full-refresh" in note for note in planned.notes)
    flow.run(mode="merge", incremental="id", lag="0", on_drift="evolve")
    assert flow.target.query(f"select id, extra from {flow.target.schema}.items order by 1") == [
        (1, None),
        (2, None),
        (3, None),
        (4, 2),
    ]
