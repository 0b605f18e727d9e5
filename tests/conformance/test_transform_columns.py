"""Columns on their way through a transform: which are read, and what they are when they leave it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused, TransformError
from penstock.run.pipeline import context_of, stage_with_spark
from penstock.run.prepare import Prepared, prepare
from penstock.run.records import RunOptions
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.sampled]

Make = Callable[[str, str], Flow]


@pytest.fixture
def between(harness: Callable[[str], Harness], tmp_path: Path) -> Make:
    def make(source: str, target: str) -> Flow:
        return Flow(harness(source), harness(target), tmp_path, stage_with_spark)

    return make


# ---------------------------------------------------------------- the type after a union

# A short type, a value of it, and one that only the long type of the same kind holds.
SIZED: dict[str, list[tuple[str, str, str, str]]] = {
    "postgres": [
        ("timestamp(3)", "'2024-01-01 00:00:00.123'", "timestamp", "'2024-01-01 00:00:00.123456'"),
        ("timestamptz(0)", "'2024-01-01 00:00:00+00'", "timestamptz", "'2024-01-01 00:00:00.5+00'"),
        ("time(0)", "'12:00:00'", "time", "'12:00:00.5'"),
        ("varchar(3)", "'abc'", "text", "'abc '"),
        ("bit(3)", "'101'", "bit varying", "'10111'"),
        ("numeric(50,2)", "'1.25'", "numeric", "'1.255'"),
        ("timestamp(3)[]", "'{2024-01-01 00:00:00.123}'", "timestamp[]", "'{2024-01-01 00:00:00.123456}'"),
        ("interval(0)", "'1 day 00:00:01'", "interval", "'1 day 00:00:01.5'"),
        ("varchar(3)[]", "'{abc,NULL}'", "text[]", "'{abcd,NULL}'"),
    ],
    "duckdb": [
        ("TIMESTAMP_S", "'2024-01-01 00:00:01'", "TIMESTAMP", "'2024-01-01 00:00:01.5'"),
        ("TIMESTAMP_MS", "'2024-01-01 00:00:01.5'", "TIMESTAMP", "'2024-01-01 00:00:01.0005'"),
        ("HUGEINT", "1", "DECIMAL(5,2)", "1.5"),
    ],
}
BY_TEXT = ("HUGEINT", "numeric(50,2)")  # Spark has no type that would hold both


@pytest.mark.parametrize("backend", SIZED)
def test_union_with_a_longer_type_cuts_no_value(between: Make, backend: str) -> None:
    """Spark keeps the left column's type for both."""
    flow, sized = between(backend, backend), SIZED[backend]
    numbered = list(enumerate(sized))
    definitions = ", ".join(f"a{n} {short}, b{n} {long}" for n, (short, _, long, _) in numbered)
    values = ", ".join(f"{fits}, {fits}" for _, fits, _, _ in sized)
    flow.source.execute(
        f"create table items (id integer primary key, {definitions})", f"insert into items values (1, {values})"
    )
    lefts = ", ".join(f"a{n}" for n, _ in numbered)
    rights = ", ".join(f"cast(b{n} as string)" if short in BY_TEXT else f"b{n}" for n, (short, *_) in numbered)
    options: dict[str, Any] = {
        "transform": f"select id, {lefts} from source union all select id + 10, {rights} from source",
        "mode": "merge",
        "keys": ["id"],
    }
    flow.run(**options)
    described = (
        "select column_name, data_type, character_maximum_length, datetime_precision, numeric_scale"
        " from information_schema.columns where table_name = 'items' and column_name like 'a%' order by 1"
    )
    assert flow.target.query(described) == flow.source.query(described)
    distinct = ", ".join(f"count(distinct cast(a{n} as varchar))" for n, _ in numbered)
    before = flow.target.query(f"select count(*), {distinct} from items")
    assert before == [(2, *(1 for _ in sized))]
    for n, (_, fits, _, beyond) in numbered:
        flow.source.execute(f"update items set b{n} = {beyond}")
        with pytest.raises(DataError, match=f"column a{n} has a value that its target type cannot hold") as caught:
            flow.run(**options)
        assert caught.value.keys == ("id=11",)
        flow.source.execute(f"update items set b{n} = {fits}")
    assert flow.target.query(f"select count(*), {distinct} from items") == before


# ---------------------------------------------------------------- text


TYPED = (
    "create table items (id integer primary key, amount decimal(38,12), ratio double precision, seen timestamptz,"
    " wall timestamp, day date, flag boolean, ref uuid, doc json)",
    "insert into items values (1, 0.000000000001, 0.1, '2024-03-31 02:30:00.123456+01', '2024-03-31 02:30:00',"
    " '9999-12-31', true, '00000000-0000-0000-0000-000000000001', '{\"a\": 1.0}'),"
    " (2, -12345678901234567890123456.5, 'NaN', 'infinity', '-infinity', 'infinity', false, null, null),"
    " (3, null, '-Infinity', '-infinity', 'infinity', '-infinity', null, null, null)",
)


@pytest.mark.parametrize(("source", "target"), [("postgres", "postgres"), ("postgres", "duckdb"), ("duckdb", "duckdb")])
def test_cast_to_text_behind_a_transform_is_the_text_of_a_database(between: Make, source: str, target: str) -> None:
    flow = between(source, target)
    flow.source.execute(*TYPED)
    names = ("amount", "ratio", "seen", "wall", "day", "flag", "ref", "doc")
    options: dict[str, Any] = {"transform": "select * from source", "columns": dict.fromkeys(names, "text")}
    plan = flow.plan(**options)
    assert plan.refusals == ()
    flow.run(**options)
    cells = ", ".join(f"lower(cast({name} as varchar))" for name in names)
    sent, arrived = (
        h.query(f"select id, {cells} from {h.schema}.items order by id") for h in (flow.source, flow.target)
    )
    inf = {"inf": "infinity", "-inf": "-infinity"}  # as DuckDB writes it
    assert arrived == [tuple(inf.get(value, value) for value in row) for row in sent]


def test_text_of_bytes_and_lists_is_refused_at_planning(between: Make) -> None:
    flow = between("postgres", "duckdb")
    flow.source.execute("create table items (id integer primary key, raw bytea, many integer[])")
    columns = {"raw": "text", "many": "text"}
    plan = flow.plan(transform="select * from source", columns=columns)
    assert [refusal.partition(":")[0] for refusal in plan.refusals] == [
        f"column {name} cannot leave the transform as string" for name in columns
    ]
    with pytest.raises(PlanRefused, match="cast it in the transform"):
        flow.run(transform="select * from source", columns=columns)


# ---------------------------------------------------------------- which are read


def prepared(flow: Flow, **options: Any) -> Prepared:
    pipeline = flow.pipeline(**options)
    project = flow.project(pipeline)
    return prepare(project, pipeline, pipeline.table, context_of(project, pipeline), RunOptions())


@pytest.mark.parametrize("source", ["postgres", "duckdb"])
def test_only_the_columns_that_a_transform_names_are_read(between: Make, source: str) -> None:
    flow = between(source, "duckdb")
    many = ", ".join(f"c{number} integer default {number}" for number in range(20))
    flow.source.execute(
        f"create table items (id integer primary key, seen timestamp, {many})",
        "insert into items (id, seen) values (1, '2024-01-01'), (2, '2025-01-01'), (3, '2999-01-01')",
    )
    options: dict[str, Any] = {
        "transform": "select C3 + c4 as total, count(*) as n from source group by all",
        "incremental": "seen",
        "cursor_timezone": "UTC",
        "lag": "0",
    }
    with closing(prepared(flow, **options)) as ready:
        [partition] = ready.split.partitions
        assert [column.name for column in partition.columns] == ["c3", "c4"]  # type: ignore[attr-defined]  # the backend's own part
        assert "2 of 22 columns are read: the transform names no other" in ready.plan().notes
    flow.run(**options)
    assert flow.target.rows("items") == [(7, 2)]


def test_a_column_that_spark_cannot_hold_is_in_the_way_only_where_it_is_read(between: Make) -> None:
    flow = between("duckdb", "duckdb")
    flow.source.execute("create table items as select 1 as id, timestamp_ns '2024-01-01 00:00:00.000000001' as precise")
    flow.run(transform="select id from source")
    assert flow.target.rows("items") == [(1,)]
    with pytest.raises(PlanRefused, match="column precise"):
        flow.run(transform="select * from source")


def test_a_misspelt_column_is_told_with_the_right_one(between: Make) -> None:
    flow = between("duckdb", "duckdb")
    flow.source.execute("create table items as select 1 as id, 2 as amount")
    with pytest.raises(TransformError, match="`amount`"):
        flow.plan(transform="select id, amout from source")


def test_a_function_gets_every_column(between: Make) -> None:
    flow = between("duckdb", "duckdb")
    flow.source.execute("create table items as select 1 as id, 'a' as name")
    flow.run(transform_function=lambda frame: frame.select(frame.columns[1]))
    assert flow.target.rows("items") == [("a",)]
