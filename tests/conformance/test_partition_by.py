"""`partition_by`: partitions made on demand where a target has them, and refused where it has none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.backends.base import STAGED
from penstock.errors import DataError, PlanRefused, TargetError, Unsupported
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

JANUARY, FEBRUARY, MARCH = ("'2026-01-31 23:59:59.999999+00'", "'2026-02-01 00:00:00+00'", "'2026-03-15 12:00:00+00'")
NAME = re.compile(r"p_\d{10}_\w{4,10}")


def test_partition_by_is_taken_or_refused(flow: Flow) -> None:
    flow.source.execute("create table items (id int, made timestamptz)")
    if flow.target.capabilities.partition_by:
        assert any("partition by range" in ddl for ddl in flow.plan(partition_by=["day(made)"]).ddl)
        return
    with pytest.raises(Unsupported, match="has no partitions") as caught:
        flow.run(partition_by=["day(made)"])
    assert caught.value.kept == "nothing was touched"


@pytest.fixture
def pg(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into a Postgres."""
    return Flow(harness("postgres"), harness("postgres"), tmp_path)


def arrive(pg: Flow, *rows: str, made: str = "timestamptz", key: str = "") -> None:
    pg.source.execute("drop table if exists items", f"create table items (id int {key}, region text, made {made})")
    if rows:
        pg.source.execute(f"insert into items values {', '.join(rows)}")


def bounds(pg: Flow) -> dict[str, str]:
    """The partitions of the target and what they take."""
    assert isinstance(pg.target, PostgresHarness)
    with psycopg.connect(pg.target.dsn, options="-c timezone=UTC") as connection:
        found = connection.execute(
            "select c.relname, pg_get_expr(c.relpartbound, c.oid) from pg_inherits i"
            " join pg_class c on c.oid = i.inhrelid where i.inhparent = 'items'::regclass order by 2"
        ).fetchall()
    return dict(found)


def ids(pg: Flow, table: str = "items") -> list[int]:
    return [row[0] for row in pg.target.query(f"select id from {table} order by 1")]


def test_partition_by_month_is_made_as_the_rows_need_it(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", f"(2, 'a', {FEBRUARY})")
    assert pg.run(partition_by=["month(made)"]).inserted == 2
    first = bounds(pg)
    assert list(first.values()) == [
        "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')",
        "FOR VALUES FROM ('2026-02-01 00:00:00+00') TO ('2026-03-01 00:00:00+00')",
    ]
    assert all(NAME.fullmatch(name) for name in first)
    assert [ids(pg, name) for name in first] == [[1], [2]]
    arrive(pg, f"(3, 'a', {FEBRUARY})", f"(4, 'a', {MARCH})")
    planned = pg.plan(partition_by=["month(made)"])
    assert any("attach partition" in sql for sql in planned.sql)
    assert any("are made as the rows need them" in note for note in planned.notes)
    pg.run(partition_by=["month(made)"])
    assert len(bounds(pg)) == 3
    assert ids(pg) == [1, 2, 3, 4]
    assert pg.target.leftovers() == []


@pytest.mark.parametrize(
    ("form", "made", "taken"),
    [
        ("year", "date", "FROM ('2026-01-01') TO ('2027-01-01')"),
        ("day", "timestamp", "FROM ('2026-03-15 00:00:00') TO ('2026-03-16 00:00:00')"),
        ("hour", "timestamptz", "FROM ('2026-03-15 12:00:00+00') TO ('2026-03-15 13:00:00+00')"),
    ],
)
def test_partition_by_pieces_of_every_time(pg: Flow, form: str, made: str, taken: str) -> None:
    arrive(pg, f"(1, 'a', {MARCH})", "(2, 'b', '0044-03-15 12:00 BC')", made=made)
    pg.run(partition_by=[f"{form}(made)"])
    assert f"FOR VALUES {taken}" in bounds(pg).values()
    assert all(NAME.fullmatch(name) for name in bounds(pg))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("hour(made)", "a date has no hours"),
        ("day(region)", "needs a date or timestamp, and region is text"),
        ("gone", "partition_by names gone, which is no column that is loaded"),
    ],
)
def test_partition_by_what_is_no_time_or_no_column_is_refused(pg: Flow, field: str, said: str) -> None:
    arrive(pg, made="date")
    with pytest.raises(PlanRefused, match=re.escape(said)):
        pg.run(partition_by=[field])
    with pytest.raises(Unsupported, match="is partitioned by 1 column, not by region, day\\(made\\)"):
        pg.run(partition_by=["region", "day(made)"])


def test_partition_by_value_takes_any_value_and_null(pg: Flow) -> None:
    rows = ["(1, 'eu', null)", "(2, '', null)", "(3, null, null)", "(4, 'o''r\\%s \"é', null)", "(5, 'eu', null)"]
    arrive(pg, *rows)
    pg.run(partition_by=["region"])
    assert sorted(tuple(ids(pg, name)) for name in bounds(pg)) == [(1, 5), (2,), (3,), (4,)]
    assert "FOR VALUES IN (NULL)" in bounds(pg).values()
    pg.run(partition_by=["region"])
    assert len(bounds(pg)) == 4


def test_partition_by_a_column_in_the_key_declares_it(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", f"(2, 'a', {FEBRUARY})")
    options: dict[str, Any] = {"mode": "merge", "keys": ["id", "made"], "partition_by": ["month(made)"]}
    pg.run(**options)
    pg.source.execute("update items set region = 'b' where id = 2")
    record = pg.run(**options)
    assert (record.inserted, record.updated) == (0, 1)
    with pytest.raises(psycopg.errors.UniqueViolation):
        pg.target.execute(f"insert into items values (1, 'x', {JANUARY})")


def test_partition_by_a_column_outside_of_the_key_declares_none_and_rows_move(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", f"(2, 'a', {JANUARY})", key="primary key")
    options: dict[str, Any] = {"mode": "merge", "partition_by": ["month(made)"], "deletes": "hard"}
    assert any("no primary key (id) is declared" in note for note in pg.plan(**options).notes)
    pg.run(**options)
    pg.source.execute(f"update items set made = {MARCH} where id = 2")
    assert pg.run(**options).updated == 1
    assert [ids(pg, name) for name in bounds(pg)] == [[1], [2]]
    pg.source.execute("delete from items where id = 1")
    assert pg.run(**options).deleted == 1
    with pytest.raises(DataError, match="duplicate keys"):
        pg.run(
            **options | {"query": "select 2 as id, 'x' as region, now() as made from generate_series(1, 2)"},
            keys=["id"],
        )
    assert ids(pg) == [2]


def test_partition_by_with_history_age_and_truncate(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", "(2, 'b', now())", key="primary key")
    scd2: dict[str, Any] = {"mode": "scd2", "partition_by": ["month(made)"], "target": "to.public.versions"}
    pg.run(**scd2)
    pg.source.execute("update items set region = 'c' where id = 1")
    assert pg.run(**scd2, event_time=None).inserted == 1
    events = scd2 | {"event_time": "made", "target": "to.public.events"}
    pg.run(**events)
    pg.source.execute(f"update items set made = {FEBRUARY} where id = 1")
    assert (pg.run(**events).inserted, pg.run(**events).inserted) == (1, 0)
    truncate: dict[str, Any] = {"mode": "truncate", "truncate_with": "truncate", "partition_by": ["year(made)"]}
    pg.run(**truncate)
    assert pg.run(**truncate).deleted == 2
    ttl = {"column": "made", "keep": "1h"}
    pg.source.execute("update items set made = now() - interval '2 hours' where id = 1")
    assert pg.run(**truncate, ttl=ttl).inserted == 1
    assert ids(pg) == [2]


def test_partition_by_null_in_a_range_needs_a_default_partition(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", "(7, 'b', null)", key="primary key")
    with pytest.raises(DataError, match="NULL in the column that the target is partitioned by") as caught:
        pg.run(partition_by=["month(made)"])
    assert caught.value.keys == ("id=7",)
    assert "default" in caught.value.remedy
    assert not pg.target.has_table("items")
    pg.target.execute(
        "create table items (id int, region text, made timestamptz) partition by range (made)",
        "create table rest partition of items default",
    )
    pg.run(partition_by=["month(made)"])
    assert (ids(pg, "rest"), len(bounds(pg))) == ([7], 2)


@pytest.mark.parametrize("made", ["timestamptz", "timestamp", "date"])
def test_partition_by_an_infinite_time_is_of_no_piece(pg: Flow, made: str) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})", "(7, 'b', 'infinity')", "(8, 'b', '-infinity')", made=made, key="primary key")
    with pytest.raises(DataError, match="an infinite time in the column that the target is partitioned by") as caught:
        pg.run(partition_by=["month(made)"])
    assert caught.value.keys == ("id=7", "id=8")
    pg.target.execute(
        f"create table items (id int, region text, made {made}) partition by range (made)",
        "create table after partition of items for values from ('3000-01-01') to (maxvalue)",
    )
    with pytest.raises(DataError, match="an infinite time") as caught:
        pg.run(partition_by=["month(made)"])
    assert caught.value.keys == ("id=8",)
    pg.target.execute("create table before partition of items for values from ('-infinity') to ('1000-01-01')")
    pg.run(partition_by=["month(made)"])
    assert (ids(pg, "before"), ids(pg, "after"), len(bounds(pg))) == ([8], [7], 3)


def test_a_row_without_a_partition_is_told_as_such(pg: Flow) -> None:
    pg.target.execute("create table items (id int, region text, made timestamptz) partition by range (made)")
    arrive(pg, f"(1, 'a', {JANUARY})")
    with pytest.raises(DataError, match="a row has no partition in the target") as caught:
        pg.run()
    assert "partition_by" in caught.value.remedy


def test_partition_by_respects_the_partitions_that_are_there(pg: Flow) -> None:
    pg.target.execute(
        "create table items (id int generated always as identity, region text check (region <> ''), made timestamptz,"
        " size int generated always as (length(region)) stored, primary key (id, made)) partition by range (made)",
        "create table whole_year partition of items for values from ('2026-01-01 00:00+00') to ('2027-01-01 00:00+00')",
        "create table rest partition of items default",
        "insert into items (region, made) values ('there', '2025-05-05 00:00+00')",
    )
    arrive(pg, f"(101, 'a', {JANUARY})", "(102, 'b', '2025-05-06 00:00+00')", "(103, 'c', '2024-05-06 00:00+00')")
    pg.run(partition_by=["month(made)"])
    # One month lies in a partition of the user's, one has rows in the DEFAULT one: only the third is new.
    assert (ids(pg, "whole_year"), ids(pg, "rest"), len(bounds(pg))) == ([101], [1, 102], 3)
    assert "FOR VALUES FROM ('2024-05-01 00:00:00+00') TO ('2024-06-01 00:00:00+00')" in bounds(pg).values()


def test_partition_by_a_piece_that_is_taken_in_part_stops(pg: Flow) -> None:
    pg.target.execute(
        "create table items (id int, region text, made timestamptz) partition by range (made)",
        "create table half partition of items for values from ('2026-03-01 00:00+00') to ('2026-03-10 00:00+00')",
    )
    arrive(pg, f"(1, 'a', {JANUARY})", f"(2, 'b', {MARCH})")
    with pytest.raises(TargetError, match='would overlap partition "half"') as caught:
        pg.run(partition_by=["month(made)"])
    assert "shorter piece of time" in caught.value.remedy
    assert (list(bounds(pg)), ids(pg)) == (["half"], [])
    pg.run(partition_by=["day(made)"])
    assert ids(pg) == [1, 2]


def test_partition_by_a_detached_partition_keeps_its_name_and_rows(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})")
    pg.run(partition_by=["month(made)"])
    [name] = bounds(pg)
    pg.target.execute(f"alter table items detach partition {name}")
    pg.run(partition_by=["month(made)"])
    assert (list(bounds(pg)), ids(pg, name), ids(pg)) == ([f"{name}_"], [1], [1])


def test_partition_by_must_be_what_the_table_has(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})")
    columns = "(id int, region text, made timestamptz)"
    for kind, said in (
        ("", "is there without partitions"),
        ("partition by hash (id)", r"is partitioned by hash \(id\), not by range"),
        ("partition by list (region)", r"is partitioned by list \(region\), not by range"),
        ("partition by range (id, made)", r"is partitioned by range \(id, made\), not by range"),
        ("partition by range ((id + 1))", r"is partitioned by range \(an expression\), not by range"),
    ):
        pg.target.execute("drop table if exists items", f"create table items {columns} {kind}")
        with pytest.raises(PlanRefused, match=said):
            pg.run(partition_by=["month(made)"])
    notes = pg.plan().notes
    assert any("it is partitioned by range (an expression): a row without a partition" in note for note in notes)


def test_partition_by_too_many_values_stops(pg: Flow) -> None:
    with pytest.raises(DataError, match="the rows are of 1001 partitions") as caught:
        pg.run(query="select n as id from generate_series(1, 1001) as n", partition_by=["id"])
    assert "fewer values" in caught.value.remedy
    assert not pg.target.has_table("items")


def test_partition_by_lets_readers_be(pg: Flow) -> None:
    arrive(pg, f"(1, 'a', {JANUARY})")
    options: dict[str, Any] = {"mode": "merge", "keys": ["id", "made"], "partition_by": ["month(made)"]}
    pg.run(**options)
    assert isinstance(pg.target, PostgresHarness)
    pg.source.execute(f"insert into items values (2, 'b', {MARCH})")
    with psycopg.connect(pg.target.dsn) as reader:
        assert reader.execute("select count(*) from items").fetchone() == (1,)
        assert pg.run(**options).inserted == 1  # while the reader's transaction is open
    assert ids(pg) == [1, 2]


def test_partition_by_takes_the_partition_that_somebody_makes_meanwhile(pg: Flow) -> None:
    assert isinstance(pg.target, PostgresHarness)
    pg.target.execute(
        "create table items (id int, region text, made timestamptz) partition by range (made)",
        "create table march (like items)",
    )
    arrive(pg, f"(1, 'a', {MARCH})")
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(pg.target.dsn) as somebody, ThreadPoolExecutor(1) as pool:
        somebody.execute(
            "alter table items attach partition march"
            " for values from ('2026-03-01 00:00+00') to ('2026-04-01 00:00+00')"
        )
        load = pool.submit(pg.run, partition_by=["day(made)"])
        await_true(lambda: pg.target.query(waiting) == [(1,)] or load.done())
        somebody.commit()
        assert load.result().inserted == 1
    assert (list(bounds(pg)), ids(pg, "march")) == (["march"], [1])


def test_partition_by_a_piece_between_two_partitions_is_looked_at_row_by_row(pg: Flow) -> None:
    """Its first and its last row have a partition; one between them may have none."""
    pg.target.execute(
        "create table items (id int, region text, made timestamptz) partition by range (made)",
        "create table early partition of items for values from ('2026-03-01 00:00+00') to ('2026-03-10 00:00+00')",
        "create table late partition of items for values from ('2026-03-20 00:00+00') to ('2026-04-01 00:00+00')",
    )
    arrive(pg, "(1, 'a', '2026-03-05 00:00+00')", "(2, 'b', '2026-03-25 00:00+00')")
    pg.run(partition_by=["month(made)"])
    assert (sorted(bounds(pg)), ids(pg, "early"), ids(pg, "late")) == (["early", "late"], [1], [2])
    pg.source.execute(f"insert into items values (3, 'c', {MARCH})")
    with pytest.raises(TargetError, match="is taken in part by another"):
        pg.run(partition_by=["month(made)"])
    assert ids(pg) == [1, 2]


def test_partition_by_holds_pieces_and_not_rows_against_the_partitions(pg: Flow) -> None:
    """Held row by row against hundreds of partitions, a load would take many times as long as its insert."""
    days = "select n as id, timestamptz '2026-01-01 12:00+00' + n % 300 * interval '1 day' as made"
    query = f"{days} from generate_series(1, 300) as n"
    pg.run(query=query, partition_by=["day(made)"])
    [make] = [sql for sql in pg.plan(query=query, partition_by=["day(made)"]).sql if sql.startswith("do $")]
    assert isinstance(pg.target, PostgresHarness)
    with psycopg.connect(pg.target.dsn) as connection:
        connection.execute(f"create temp table {STAGED} as {days} from generate_series(1, 50000) as n".encode())
        [taken] = connection.execute(
            "select string_agg('(' || pg_get_partition_constraintdef(inhrelid) || ')', ' or ') from pg_inherits"
            " where inhparent = 'items'::regclass"
        ).fetchone() or ("",)

        def seconds(sql: str) -> float:
            began = time.monotonic()
            connection.execute(sql.encode())
            return time.monotonic() - began

        by_row = min(seconds(f"select count(*) from {STAGED} where ({taken}) is not true") for _ in range(3))
        assert min(seconds(make) for _ in range(3)) < by_row / 2
