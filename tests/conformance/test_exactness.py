"""Exactness: every type with its extremes through every direction, compared as the database prints it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused
from penstock.run.pipeline import stage_with_spark
from tests.conformance.harness import Flow, Harness
from tests.conformance.values import (
    DUCKDB,
    DUCKDB_ONLY,
    POSTGRES,
    POSTGRES_ONLY,
    POSTGRES_SETUP,
    table_sql,
    text_query,
)

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

Types = dict[str, tuple[str, ...]]


def seed(harness: Harness, types: Types, table: str = "items") -> list[tuple[Any, ...]]:
    if harness.backend == "postgres":
        harness.execute(*POSTGRES_SETUP)
    harness.execute(*table_sql(types, table))
    return texts(harness, types, table)


def texts(harness: Harness, types: Types, table: str = "items") -> list[tuple[Any, ...]]:
    return harness.query(text_query(types, table, "text" if harness.backend == "postgres" else "varchar"))


def agree(types: Types, found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> None:
    differences = [
        f"{name}: {want!r} became {got!r}"
        for row, other in zip(expected, found, strict=True)
        for name, want, got in zip(["id", *types], row, other, strict=True)
        if want != got
    ]
    assert differences == []


@pytest.fixture
def make(harness: Callable[[str], Harness], tmp_path: Path) -> Callable[..., Flow]:
    def build(source: Harness | str, target: Harness | str) -> Flow:
        one = harness(source) if isinstance(source, str) else source
        other = harness(target) if isinstance(target, str) else target
        return Flow(one, other, tmp_path, stage_with_spark)

    return build


@pytest.mark.parametrize("mode", ["append", "merge", "scd2"])
def test_postgres_to_postgres(make: Callable[..., Flow], mode: str) -> None:
    flow = make("postgres", "postgres")
    expected = seed(flow.source, POSTGRES)
    flow.run(mode=mode, path="fused")
    agree(POSTGRES, texts(flow.target, POSTGRES), expected)
    assert flow.run(mode=mode, path="fused").updated == 0


def test_postgres_types_are_the_same_types_in_postgres(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "postgres")
    seed(flow.source, POSTGRES)
    flow.target.execute(*POSTGRES_SETUP[:2])
    flow.run(path="fused")
    sql = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'items'::regclass and attnum > 0 order by attnum"
    )
    # A domain is its base type elsewhere; a composite, or an array of a type, that the target lacks is text.
    base = {"positive": "integer", "code": "character varying(8)", "pair": "text"}
    base |= {"pair[]": "text", "mood[]": "text"}
    expected = [(name, base.get(type_, type_)) for name, type_ in flow.source.query(sql)]
    assert flow.target.query(sql) == expected


def test_postgres_values_beyond_arrow_reach_postgres_as_text(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "postgres")
    expected = seed(flow.source, POSTGRES_ONLY)
    flow.run(path="fused", mode="merge")
    agree(POSTGRES_ONLY, texts(flow.target, POSTGRES_ONLY), expected)


def test_postgres_native_path(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    database = harness("postgres")
    flow = make(database, database)
    types = POSTGRES | POSTGRES_ONLY
    expected = seed(database, types)
    record = flow.run(mode="merge", target="to.public.copies")
    assert record.path == "native"
    agree(types, texts(database, types, "copies"), expected)
    assert flow.run(mode="merge", target="to.public.copies").updated == 0


def test_postgres_to_duckdb_and_back(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    out = make("postgres", "duckdb")
    expected = seed(out.source, POSTGRES)
    out.run(mode="merge")
    assert out.run(mode="merge").updated == 0
    home = harness("postgres")
    home.execute(*POSTGRES_SETUP)
    back = make(out.target, home)
    back.run(mode="merge", keys=["id"])
    agree(POSTGRES, texts(home, POSTGRES), expected)


@pytest.mark.parametrize("type_", sorted(POSTGRES_ONLY))
def test_postgres_values_that_duckdb_cannot_hold_stop_with_the_key(make: Callable[..., Flow], type_: str) -> None:
    flow = make("postgres", "duckdb")
    for number, value in enumerate(POSTGRES_ONLY[type_]):
        flow.source.execute(
            f"create table t{number} (id int primary key, v {type_})", f"insert into t{number} values (7, {value})"
        )
        with pytest.raises(DataError, match="v") as caught:
            flow.run(table=f"public.t{number}", keys=["id"], mode="merge", target=f"to.main.t{number}")
        assert "7" in " ".join(caught.value.keys)
        assert not flow.target.has_table(f"t{number}")
        flow.run(table=f"public.t{number}", target=f"to.main.t{number}", columns={"v": "text"})


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_duckdb_to_duckdb(make: Callable[..., Flow], mode: str) -> None:
    flow = make("duckdb", "duckdb")
    types = DUCKDB | DUCKDB_ONLY
    expected = seed(flow.source, types)
    flow.run(mode=mode)
    agree(types, texts(flow.target, types), expected)


def test_duckdb_to_postgres_and_back(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    out = make("duckdb", "postgres")
    expected = seed(out.source, DUCKDB)
    out.run(mode="merge", keys=["id"])
    home = harness("duckdb")
    back = make(out.target, home)
    back.run(mode="merge", keys=["id"])
    # The values come home; compared in the types that they left with.
    cells = ", ".join(f"cast(cast(c{n} as {name}) as varchar)" for n, name in enumerate(DUCKDB))
    agree(DUCKDB, home.query(f"select id, {cells} from items order by id"), expected)


@pytest.mark.parametrize("type_", [name for name in DUCKDB_ONLY if name != "INTEGER[2]"])
def test_duckdb_types_that_postgres_lacks_are_refused_with_a_cast_that_does(
    make: Callable[..., Flow], type_: str
) -> None:
    flow = make("duckdb", "postgres")
    flow.source.execute(
        f"create table items (id int primary key, v {type_})", f"insert into items values (1, {DUCKDB_ONLY[type_][0]})"
    )
    with pytest.raises(PlanRefused, match="column v") as caught:
        flow.run(mode="merge", keys=["id"])
    assert "columns.v" in caught.value.remedy
    flow.run(mode="merge", keys=["id"], columns={"v": "text"})
    [(text,)] = flow.target.query("select v from items")
    assert [(text,)] == flow.source.query("select cast(v as varchar) from items")


def test_a_nul_character_stops_with_column_and_key(make: Callable[..., Flow]) -> None:
    flow = make("duckdb", "postgres")
    flow.source.execute(
        "create table items (id int primary key, v varchar)", "insert into items values (5, 'a' || chr(0))"
    )
    with pytest.raises(DataError, match="v") as caught:
        flow.run(mode="merge", keys=["id"])
    assert "5" in " ".join(caught.value.keys)
    assert not flow.target.has_table("items")


def test_unbounded_numeric_is_said_loudly_in_the_plan(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute("create table items (id int primary key, price numeric)")
    column = flow.plan().columns[1]
    assert 'columns.price = "decimal(38,9)"' in column.note
