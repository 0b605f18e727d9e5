"""Which tables a pipeline with `tables` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import PlanRefused
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres]

POSTGRES = (
    "create table orders (id int primary key)",
    "insert into orders values (1), (2)",
    'create table "Audit Log" (id int primary key)',
    'create table "odd.name*" (id int primary key)',
    "create view every_order as select * from orders",
    "create materialized view counted as select count(*) as id from orders",
    "create table events (id int, at date) partition by range (at)",
    "create table events_2024 partition of events for values from ('2024-01-01') to ('2025-01-01')",
    "insert into events values (1, '2024-05-05')",
)
DUCKDB = (
    "create table orders as select 1 as id",
    'create table "Audit Log" as select 1 as id',
    'create table "odd.name*" as select 1 as id',
    "create view every_order as from orders",
)


@pytest.fixture(params=["postgres", "duckdb"])
def shop(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    flow = Flow(harness(request.param), harness("duckdb"), tmp_path)
    flow.source.execute(*(POSTGRES if request.param == "postgres" else DUCKDB))
    return flow


def taken(flow: Flow, *patterns: str) -> set[str]:
    own = flow.source.schema
    written = [pattern.replace("own.", f"{own}.") for pattern in patterns]
    flow.run_all(tables=written, target="to.main.{table}", mode="truncate")
    rows = flow.target.query("select table_name from information_schema.tables where table_schema = 'main'")
    return {name for (name,) in rows}


def test_a_wildcard_takes_each_table_once_and_no_view(shop: Flow) -> None:
    stored = {"orders", "Audit Log", "odd.name*"}
    assert taken(shop, "own.*") == (stored | {"events"} if shop.source.backend == "postgres" else stored)
    assert shop.target.query("select count(*) from orders") == shop.source.query("select count(*) from orders")


def test_quotes_are_read_as_in_sql(shop: Flow) -> None:
    assert taken(shop, "own.*", '!own."Audit Log"', '!"odd.name*"', "!e*") == {"orders"}


def test_signs_in_quotes_are_letters(shop: Flow) -> None:
    assert taken(shop, 'own."odd.name*"') == {"odd.name*"}


def test_what_is_named_is_taken_whatever_it_is(shop: Flow) -> None:
    assert taken(shop, "own.every_order", "orde*") == {"every_order", "orders"}


def test_a_name_that_fits_nothing_is_refused(shop: Flow) -> None:
    with pytest.raises(PlanRefused, match=r"no table matches \w+\.ordres:"):
        taken(shop, "own.*", "own.ordres")
    with pytest.raises(PlanRefused, match="no table matches nothing_"):
        taken(shop, "nothing_*")


def test_tables_that_differ_only_in_case_need_a_target_that_tells_them_apart(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    source = harness("postgres")
    source.execute("create table items (id int primary key)", 'create table "Items" (id int primary key)')
    options = {"tables": ["public.*"], "mode": "truncate"}
    with pytest.raises(PlanRefused, match="would both be loaded into"):
        Flow(source, harness("duckdb"), tmp_path).run_all(target="to.main.{table}", **options)
    apart = Flow(source, harness("postgres"), tmp_path)
    assert len(apart.run_all(target="to.public.{table}", **options)) == 2
