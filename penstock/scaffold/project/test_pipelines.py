"""Tests of one's own: the project's pipelines between databases of the test's, on rows that one can count."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from penstock import Project
from penstock.testing import assert_rows, project, run

SHOP = """
create table customers (id integer primary key, name varchar, country varchar, updated_at timestamptz);
create table orders (id integer primary key, customer_id integer, amount decimal(12, 2), placed_at timestamptz);
insert into customers values (1, 'Ada', 'GB', now()), (2, 'Blaise', 'FR', now());
insert into orders values (1, 1, 10.50, now()), (2, 1, 0.25, now()), (3, 2, 7.00, now());
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(SHOP)
    return path


@pytest.fixture
def tested(shop: Path, tmp_path: Path) -> Project:
    """This project with connections of the test's own: the real ones are out of reach."""
    connections = {
        "shop": {"type": "duckdb", "path": str(shop)},
        "warehouse": {"type": "duckdb", "path": str(tmp_path / "warehouse.duckdb")},
    }
    return project(tmp_path, connections, of=Path(__file__).parent)


def test_a_customer_who_leaves_is_marked_and_kept(tested: Project, shop: Path) -> None:
    run(tested, "customers")
    with duckdb.connect(str(shop)) as database:
        database.execute("delete from customers where id = 2")
    run(tested, "customers")
    expected = [{"id": 1, "_penstock_deleted": False}, {"id": 2, "_penstock_deleted": True}]
    assert_rows(tested.connection("warehouse"), "main.customers", expected)


def test_revenue_is_the_sum_of_a_countrys_orders(tested: Project) -> None:
    run(tested, "revenue")  # has a transform, so Spark is started
    expected = [("GB", 2, Decimal("10.75")), ("FR", 1, Decimal("7.00"))]
    assert_rows(tested.connection("warehouse"), "main.revenue", expected)
