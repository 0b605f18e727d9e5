"""What a target remembers of the columns that were loaded into it, and who believes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import PlanRefused
from tests.conformance.conftest import BACKENDS
from tests.conformance.harness import Flow, Harness

pytestmark = pytest.mark.postgres

TEXTS = {"postgres": "text", "duckdb": "VARCHAR", "sqlite": "text"}


@pytest.fixture(params=BACKENDS)
def onward(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From a database that Penstock has filled, of each backend, into another Postgres."""
    first = Flow(harness("postgres"), harness(request.param), tmp_path)
    first.run(query="select 1 as id, '{a}'::text as v")
    return Flow(first.target, harness("postgres"), tmp_path)


def remember(flow: Flow, native: str, kind: str, *labels: str) -> None:
    """As whoever can write the source could."""
    logical = json.dumps({"kind": kind, "labels": labels})
    flow.source.execute(
        f"update _penstock.columns set native = '{native.replace(chr(39), 2 * chr(39))}', logical = '{logical}'"
        f" where name = 'v' and type_sql = '{TEXTS[flow.source.backend]}'"
    )
    assert flow.source.query("select count(*) from _penstock.columns where native <> ''") != [(0,)]


@pytest.mark.parametrize(
    "native",
    [
        "postgres:text; commit; create table public.taken (a int); select null::text",
        "postgres:integer from pg_class, pg_sleep(9)",
        'postgres:public."x{}y"',
        "duckdb:VARCHAR); create table taken (a int); select cast(null as VARCHAR",
    ],
)
def test_memory_a_remembered_type_is_never_run(onward: Flow, native: str) -> None:
    remember(onward, native, "native")
    onward.plan()
    onward.run()
    assert not onward.target.has_table("taken")
    assert onward.target.query("select id, v, pg_typeof(v)::text from items") == [(1, "{a}", "text")]


@pytest.mark.parametrize(
    "name", ["public.mood as enum ('{a}'); commit; create table public.taken (a int); create type public.other", "x;y"]
)
def test_memory_a_remembered_enum_is_made_by_its_name_only(onward: Flow, name: str) -> None:
    remember(onward, f"postgres:{name}", "enum", "{a}")
    onward.run()
    assert not onward.target.has_table("taken")
    assert onward.target.query("select pg_typeof(v)::text from items") == [("text",)]


@pytest.mark.parametrize("name", ["numeric(5,2)[]", '"My ""own"."Mo;od"', "public.user"])
def test_memory_a_remembered_type_of_any_name_is_made_again(onward: Flow, name: str) -> None:
    kind = "native" if name.endswith("[]") else "enum"
    onward.source.execute(f"update {onward.source.schema}.items set v = '{{7.00}}'")
    remember(onward, f"postgres:{name}", kind, "{7.00}")
    onward.run()
    onward.run()
    assert onward.target.query("select v::text, count(*) from items group by v") == [("{7.00}", 2)]
    [(found,)] = onward.target.query(
        "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'items'::regclass and attname = 'v'"
    )
    assert found == name.removeprefix("public.").replace("user", '"user"')


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_a_remembered_type_of_duckdb_is_never_run(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    """A first load leaves the memory, someone changes it, and a second load reads the table."""
    middle, last, written = harness(backend), harness("duckdb"), tmp_path / "written"
    first = Flow(harness("duckdb"), middle, tmp_path)
    first.source.execute("create table items as select 1 as id, 'a' as v")
    first.run()
    spelling = f"int); copy (select 1) to '{written}'; select cast(null as int".replace("'", "''")
    middle.execute(
        f"update _penstock.columns set native = 'duckdb:{spelling}', logical = '{{\"kind\": \"native\"}}'"
        " where name = 'v'"
    )
    Flow(middle, last, tmp_path).run(path="fused")
    assert last.rows("items") == [(1, "a")]
    assert last.query("select distinct typeof(v) from items") == [("VARCHAR",)]
    assert not written.exists()


# ---------------------------------------------------------------- several pipelines, one table


A, B = "select 1 as id, 'x' as a", "select 2 as id, 'y' as b"


@pytest.fixture(params=BACKENDS)
def shared(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """A table that two pipelines fill, each with a column of its own."""
    flow = Flow(harness("postgres"), harness(request.param), tmp_path)
    flow.target.execute(f"create table {flow.target.schema}.items (id int, a text, b text)")
    flow.run(name="first", query=A)
    flow.run(name="second", query=B)
    return flow


def test_memory_a_column_that_another_pipeline_brings_is_not_gone(shared: Flow) -> None:
    for _ in range(2):
        shared.run(name="first", query=A)
        shared.run(name="second", query=B)
    assert shared.target.query("select count(a), count(b) from items") == [(3, 3)]


def test_memory_a_column_that_the_pipeline_itself_brought_is_gone(shared: Flow) -> None:
    with pytest.raises(PlanRefused, match="column a was loaded before and is gone"):
        shared.run(name="first", query="select 1 as id")
    shared.run(name="first", query="select 1 as id", on_drift="ignore")
    shared.run(name="first", query="select 1 as id")


def test_memory_lists_of_an_older_version_are_believed(shared: Flow) -> None:
    shared.target.execute("drop table _penstock.loaded", "delete from _penstock.tables where pipeline = 'second'")
    with pytest.raises(PlanRefused, match="column a was loaded before and is gone"):
        shared.run(name="first", query="select 1 as id")
    shared.run(name="second", query=B)
    shared.run(name="first", query=A)


def test_memory_a_load_forgets_nothing_of_what_others_brought(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    """A numeric is text in DuckDB: without the memory it would be text for ever."""
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    flow.run(name="first", query="select 1 as id, 1.50::numeric as n")
    flow.run(name="second", query="select 2 as id")
    back = Flow(flow.target, harness("postgres"), tmp_path)
    back.run()
    assert back.target.query("select id, n::text, pg_typeof(n)::text from items order by id") == [
        (1, "1.50", "numeric"),
        (2, None, "numeric"),
    ]


def test_memory_of_a_table_that_was_dropped_is_not_that_of_the_next(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    flow.run(query="select 1 as id, 1.50::numeric as n")
    flow.target.execute("drop table items")
    flow.run(query="select 1 as id")
    flow.target.execute("alter table items add column n varchar", "update items set n = 'plain'")
    back = Flow(flow.target, harness("postgres"), tmp_path)
    back.run()
    assert back.target.query("select n from items") == [("plain",)]
