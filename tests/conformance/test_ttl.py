"""Time to live on every SQL target: old rows go with a load, and do not come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused, TargetError
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

TTL = {"column": "made", "keep": "30d"}


@pytest.fixture
def one(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """Into one backend, where what is tested is the same in all."""
    return Flow(harness("postgres"), harness("duckdb"), tmp_path)


def arrive(flow: Flow, *ages: int | None, type_: str = "timestamptz", first: int = 1) -> None:
    """Rows that are so many days old, with ids in their order."""
    flow.source.execute(
        "drop table if exists items", f"create table items (id int primary key, name text, made {type_})"
    )
    for number, age in enumerate(ages, first):
        made = "null" if age is None else f"now() at time zone 'UTC' - interval '{age} days'"
        flow.source.execute(f"insert into items values ({number}, 'n{number}', {made})")


def ids(flow: Flow) -> list[int]:
    return [row[0] for row in flow.target.query(f"select id from {flow.target.schema}.items order by 1")]


def grow_old(flow: Flow, *numbers: int) -> None:
    """As if these rows of the target had been loaded long ago."""
    listed = ", ".join(map(str, numbers))
    flow.target.execute(
        f"update {flow.target.schema}.items set made = '2001-01-01 00:00:00+00:00' where id in ({listed})"
    )


def figures(record: Any) -> tuple[int, int, int, int]:
    return record.rows, record.inserted, record.updated, record.deleted


def test_ttl_append_deletes_what_is_old_and_adds_nothing_old(flow: Flow) -> None:
    assert flow.target.capabilities.ttl
    arrive(flow, 1, 40, None, 29)
    assert figures(flow.run(ttl=TTL)) == (4, 3, 0, 0)
    assert ids(flow) == [1, 3, 4]
    grow_old(flow, 1)
    arrive(flow, 2, 31, first=5)
    assert figures(flow.run(ttl=TTL)) == (2, 1, 0, 1)
    assert ids(flow) == [3, 4, 5]
    assert flow.target.leftovers() == []


def test_ttl_a_time_before_christ_is_old(flow: Flow) -> None:
    arrive(flow, 1, 2)
    flow.source.execute("insert into items values (3, 'caesar', '4000-03-15 BC')")
    flow.run()
    assert figures(flow.run(ttl=TTL)) == (3, 2, 0, 1)
    assert ids(flow) == [1, 1, 2, 2]


def test_ttl_merge_does_not_bring_old_rows_back(flow: Flow) -> None:
    arrive(flow, 1, 2, 3)
    flow.run(mode="merge", ttl=TTL)
    grow_old(flow, 1)
    flow.source.execute("update items set made = now() - interval '60 days' where id = 1")
    assert figures(flow.run(mode="merge", ttl=TTL)) == (3, 0, 0, 1)
    for _ in range(2):
        assert figures(flow.run(mode="merge", ttl=TTL, deletes="hard")) == (3, 0, 0, 0)
    assert ids(flow) == [2, 3]
    # A row that the source has made older goes too, though the target has it as a young one.
    flow.source.execute("update items set made = now() - interval '60 days' where id = 2")
    assert figures(flow.run(mode="merge", ttl=TTL)) == (3, 0, 0, 1)
    assert ids(flow) == [3]


def test_ttl_merge_takes_no_key_of_an_old_and_a_young_row(flow: Flow) -> None:
    """The old row would delete what the young one brings, again at every run."""
    arrive(flow, 1, 2)
    flow.run(mode="merge", ttl=TTL)
    table = f"{flow.target.schema}.items"
    flow.target.execute(f"alter table {table} add column note text", f"update {table} set note = 'by hand'")
    arrive(flow, 1, 2)
    query = "select * from items union all select 1, 'older', now() - interval '60 days'"
    twice = {"mode": "merge", "keys": ["id"], "ttl": TTL, "query": query}
    with pytest.raises(DataError, match=r"duplicate keys in the source \(id\)") as caught:
        flow.run(**twice)
    assert caught.value.keys == ("id=1",)
    assert figures(flow.run(**twice, order_by="made desc")) == (3, 0, 2, 0)
    assert flow.target.query(f"select id, name, note from {table} order by 1") == [
        (1, "n1", "by hand"),
        (2, "n2", "by hand"),
    ]


def test_ttl_is_no_shrunk_source(flow: Flow) -> None:
    arrive(flow, *[1] * 10)
    flow.run(mode="truncate", ttl=TTL)
    grow_old(flow, *range(1, 9))
    flow.source.execute("update items set made = now() - interval '60 days' where id < 9")
    assert figures(flow.run(mode="truncate", ttl=TTL)) == (10, 2, 0, 10)  # eight by age, two replaced
    assert ids(flow) == [9, 10]
    flow.source.execute("delete from items where id > 8")  # what is left is old: nothing to load
    with pytest.raises(DataError, match="the source has 0 rows, and 2 of the target's 2 rows would go"):
        flow.run(mode="truncate", ttl=TTL)
    assert ids(flow) == [9, 10]


@pytest.mark.parametrize("type_", ["timestamp", "date"])
def test_ttl_of_a_column_without_a_zone_must_be_told_one(flow: Flow, type_: str) -> None:
    arrive(flow, 1, 29, 30, 31, 32, None, type_=type_)
    with pytest.raises(PlanRefused, match="ttl = 'made' has no time zone"):
        flow.run(ttl=TTL)
    flow.run(ttl=TTL, cursor_timezone="UTC")
    assert ids(flow) == ([1, 2, 3, 6] if type_ == "date" else [1, 2, 6])  # a date is old when its day is over


def test_ttl_of_no_time_is_refused(one: Flow) -> None:
    arrive(one, 1)
    with pytest.raises(PlanRefused, match="ttl needs a timestamp or a date, and name is"):
        one.run(ttl=TTL | {"column": "name"})
    with pytest.raises(PlanRefused, match="ttl names gone, which is no column that is loaded"):
        one.run(ttl=TTL | {"column": "gone"})


def test_ttl_keeps_to_the_delete_scope_and_to_its_own_pipeline(one: Flow) -> None:
    arrive(one, 1, 1, 1)
    one.run(mode="merge")
    grow_old(one, 1, 2)
    arrive(one, 1, first=4)
    with pytest.raises(PlanRefused, match="is loaded by pipeline"):
        one.run(name="another", ttl=TTL)
    assert one.run(name="another", ttl=TTL, delete_scope="t.id > 1").deleted == 1
    assert ids(one) == [1, 3, 4]


def test_ttl_is_in_the_plan_and_in_the_loads_transaction(one: Flow) -> None:
    arrive(one, 1, 2)
    one.run()
    grow_old(one, 1)
    planned = one.plan(ttl=TTL)
    assert any("create temporary table _penstock_expiry" in sql for sql in planned.sql)
    assert any(sql.startswith("delete from") for sql in planned.sql)
    with pytest.raises(TargetError):
        one.run(ttl=TTL, transforms_post=["insert into no_such_table values (1)"])
    assert ids(one) == [1, 2]
