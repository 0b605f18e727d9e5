"""Exactness: every type with its extremes through every direction, compared as the database prints it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused
from penstock.run.pipeline import stage_with_spark
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.conformance.postgres_versions import VERSIONS, installed
from tests.conformance.values import (
    DOMAINS,
    DUCKDB,
    DUCKDB_ONLY,
    DUCKDB_PRINTS,
    DUCKDB_TYPES,
    POSTGRES,
    POSTGRES_ONLY,
    POSTGRES_PRINTED,
    POSTGRES_SETUP,
    arrays,
    table_sql,
    text_query,
)
from tests.faults.bare import stage_here
from tests.unit.test_refusals import rows as refusals

pytestmark = pytest.mark.postgres

Types = dict[str, tuple[str, ...]]

EVERY = arrays(POSTGRES) | POSTGRES | POSTGRES_PRINTED


def seed(harness: Harness, types: Types, table: str = "items") -> list[tuple[Any, ...]]:
    if harness.backend == "postgres":
        harness.execute(*POSTGRES_SETUP)
    harness.execute(*table_sql(types, table))
    return texts(harness, types, table)


def texts(harness: Harness, types: Types, table: str = "items") -> list[tuple[Any, ...]]:
    return harness.query(text_query(types, table, "text" if harness.backend == "postgres" else "varchar"))


def agree(types: Types, found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> None:
    differences = [
        f"{name}: {want!r} became {got!r}"
        for row, other in zip(expected, found, strict=True)
        for name, want, got in zip(["id", *types], row, other, strict=True)
        if want != got
    ]
    assert differences == []


@pytest.fixture
def make(harness: Callable[[str], Harness], tmp_path: Path) -> Callable[..., Flow]:
    """A flow between two backends, or databases that are there already."""

    def build(source: Harness | str, target: Harness | str, *, spark: bool = False) -> Flow:
        one = harness(source) if isinstance(source, str) else source
        other = harness(target) if isinstance(target, str) else target
        return Flow(one, other, tmp_path, stage_with_spark if spark else stage_here)

    return build


def test_no_type_of_the_server_is_left_out(harness: Callable[[str], Harness]) -> None:
    """Every type that a column may be of is tried below, or is said to be refused."""
    server = harness("postgres")
    server.execute(*POSTGRES_SETUP)
    found = server.query(
        "select format_type(oid, null) from pg_type where typnamespace = 'pg_catalog'::regnamespace"
        " and typtype in ('b', 'r', 'm') and (typcategory <> 'A' or typarray <> 0)"
    )
    spelled = ", ".join(f"('{name}'::regtype::text)" for name in EVERY)
    tried = server.query(f"select * from (values {spelled}) as v")
    refused = {type_ for row in refusals() if (row.source, row.when) == ("postgres", "planning") for type_ in row.types}
    assert {name for (name,) in found} - {name for (name,) in tried} - refused == set()


@pytest.mark.spark
def test_postgres_to_postgres_by_spark(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "postgres", spark=True)
    expected = seed(flow.source, EVERY)
    flow.run(mode="merge", path="fused")
    agree(EVERY, texts(flow.target, EVERY), expected)


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_postgres_to_postgres(make: Callable[..., Flow], mode: str) -> None:
    flow = make("postgres", "postgres")
    expected = seed(flow.source, EVERY)
    flow.run(mode=mode, path="fused")
    agree(EVERY, texts(flow.target, EVERY), expected)
    assert flow.run(mode=mode, path="fused").updated == 0


def test_postgres_types_are_the_same_types_in_postgres(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "postgres")
    seed(flow.source, POSTGRES | POSTGRES_PRINTED)
    flow.target.execute(*POSTGRES_SETUP[:2])
    flow.run(path="fused")
    sql = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'items'::regclass and attnum > 0 order by attnum"
    )
    # A composite, or an array of a type, that the target lacks is text; so is what no server reads.
    base = DOMAINS | dict.fromkeys(["pair", "pair[]", "nested", "mood[]", "positive[]", *POSTGRES_PRINTED], "text")
    expected = [(name, base.get(type_, type_)) for name, type_ in flow.source.query(sql)]
    assert flow.target.query(sql) == expected


def test_a_name_that_the_target_lacks_stops_with_its_key(make: Callable[..., Flow]) -> None:
    """Values of these types are other things of their database; a name is looked up in the target's."""
    flow = make("postgres", "postgres")
    flow.source.execute(
        "create table items (id int primary key, c regclass, t regtype[], a aclitem)",
        "create type here as enum ('a')",
        "insert into items values (1, 'pg_class', '{integer}', '=r/pg_monitor'), (2, 'items', null, null)",
        "insert into items values (3, null, '{integer,here}', null)",
    )
    for column, key in (("c", "id=2"), ("t", "id=3")):
        with pytest.raises(DataError, match=f"column {column} has a value that its target type cannot hold") as caught:
            flow.run(query=f"select id, {column} from items", keys=["id"], mode="merge")
        assert caught.value.keys == (key,)
    flow.run(mode="merge", columns={"c": "text", "t": "text"})
    assert flow.target.query("select id, c, t, a::text from items order by 1") == [
        (1, "pg_class", "{integer}", "=r/pg_monitor"),
        (2, "items", None, None),
        (3, None, "{integer,here}", None),
    ]


def test_xml_everywhere(make: Callable[..., Flow], tmp_path: Path) -> None:
    """On the newest of the older servers: the suite's own is built without libxml."""
    types: Types = {"xml": ("'<a b=\"1\"> ž &amp; </a>'", "'<?xml version=\"1.0\"?><a/>'", "'no document'", "''")}
    with EmbeddedPostgres(install=installed(VERSIONS[-1])) as server:
        first, second, third = (PostgresHarness(server.dsn_of(name)) for name in ("postgres", "second", "third"))
        first.execute("create database second", "create database third")
        first.execute(*table_sql(types, "items"))
        expected = texts(first, types)
        make(first, second).run(mode="merge")
        agree(types, texts(second, types), expected)
        out = make(first, "duckdb")
        out.run(mode="merge")
        agree(types, texts(out.target, types), expected)
        make(out.target, third).run(mode="merge", keys=["id"])
        agree(types, texts(third, types), expected)
        assert third.query("select distinct pg_typeof(c0)::text from items") == [("xml",)]


def test_postgres_values_beyond_arrow_reach_postgres_as_text(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "postgres")
    expected = seed(flow.source, POSTGRES_ONLY)
    flow.run(path="fused", mode="merge")
    agree(POSTGRES_ONLY, texts(flow.target, POSTGRES_ONLY), expected)


def test_postgres_native_path(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    database = harness("postgres")
    flow = make(database, database)
    types = EVERY | POSTGRES_ONLY
    expected = seed(database, types)
    record = flow.run(mode="merge", target="to.public.copies")
    assert record.path == "native"
    agree(types, texts(database, types, "copies"), expected)
    assert flow.run(mode="merge", target="to.public.copies").updated == 0


@pytest.mark.spark
def test_postgres_to_duckdb_and_back(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    out = make("postgres", "duckdb", spark=True)
    expected = seed(out.source, EVERY)
    out.run(mode="merge")
    out.stage = stage_here
    assert out.run(mode="merge").updated == 0
    duckdb_holds_the_same(out.target, expected)
    home = harness("postgres")
    home.execute(*POSTGRES_SETUP)
    back = make(out.target, home, spark=True)
    back.run(mode="merge", keys=["id"])
    agree(EVERY, texts(home, EVERY), expected)


def duckdb_holds_the_same(harness: Harness, expected: Sequence[tuple[Any, ...]]) -> None:
    """By itself, not only by what comes back from it."""
    described = harness.query("select column_name, column_type from (describe items)")
    held = dict(zip(EVERY, [type_ for name, type_ in described if name != "id"], strict=True))
    assert {name: held[name] for name in POSTGRES} == {name: DUCKDB_TYPES.get(name, "VARCHAR") for name in POSTGRES}
    # Of the lists, those that have forms of their own; all of them are seen on the way back.
    seen = {name: () for name in EVERY if name in POSTGRES or held[name] == "VARCHAR"}
    places = [0, *(place for place, name in enumerate(EVERY, 1) if name in seen)]
    names = ["id", *EVERY]
    printed = [[DUCKDB_PRINTS.get(names[n], {}).get(row[n], row[n]) for n in places] for row in expected]
    agree(seen, [[row[n] for n in places] for row in texts(harness, EVERY)], printed)


@pytest.mark.parametrize("type_", sorted(POSTGRES_ONLY))
def test_postgres_values_that_duckdb_cannot_hold_stop_with_the_key(make: Callable[..., Flow], type_: str) -> None:
    flow = make("postgres", "duckdb")
    for number, value in enumerate(POSTGRES_ONLY[type_]):
        flow.source.execute(
            f"create table t{number} (id int primary key, v {type_})", f"insert into t{number} values (7, {value})"
        )
        unfit = "column 'v' holds .* that .* cannot carry|column v has a value that its target type cannot hold"
        with pytest.raises(DataError, match=unfit) as caught:
            flow.run(table=f"public.t{number}", keys=["id"], mode="merge", target=f"to.main.t{number}")
        assert caught.value.keys == ("id=7",)
        assert not flow.target.has_table(f"t{number}")
        flow.run(table=f"public.t{number}", target=f"to.main.t{number}", columns={"v": "text"})


@pytest.mark.spark
def test_duckdb_to_duckdb(make: Callable[..., Flow]) -> None:
    flow = make("duckdb", "duckdb", spark=True)
    types = DUCKDB | DUCKDB_ONLY
    expected = seed(flow.source, types)
    flow.run(mode="append")
    agree(types, texts(flow.target, types), expected)
    flow.stage = stage_here
    merged = {"mode": "merge", "target": "to.main.merged"}
    flow.run(**merged)
    agree(types, texts(flow.target, types, "merged"), expected)
    assert flow.run(**merged).updated == 0


@pytest.mark.spark
def test_duckdb_to_postgres_and_back(make: Callable[..., Flow], harness: Callable[[str], Harness]) -> None:
    out = make("duckdb", "postgres", spark=True)
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
    with pytest.raises(DataError, match=r"column 'v' holds a value that the target cannot.*zero byte") as caught:
        flow.run(mode="merge", keys=["id"])
    assert caught.value.keys == ("id=5",)
    assert not flow.target.has_table("items")


def test_unbounded_numeric_is_said_loudly_in_the_plan(make: Callable[..., Flow]) -> None:
    flow = make("postgres", "duckdb")
    flow.source.execute("create table items (id int primary key, price numeric)")
    column = flow.plan().columns[1]
    assert 'columns.price = "decimal(38,9)"' in column.note
