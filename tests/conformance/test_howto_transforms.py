"""The examples of the how-to pages on transforms, run as they stand there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.project import decorators
from penstock.run.pipeline import run
from penstock.state import open_store
from tests.conformance.harness import DuckDBHarness, Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENDS = """
[connections.shop]
type = "postgres"
dsn = "${SHOP_DSN}"

[connections.warehouse]
type = "duckdb"
path = "warehouse.duckdb"
"""
SHOP = (
    "create table people (id int primary key, name text, country text, age bigint)",
    "insert into people values (1, ' ann LEE', 'eu', 30), (2, 'bob', 'eu', 41), (3, null, 'us', 7)",
    "create table raw_people (id int, name text, email text, age text, country text, seen_at timestamptz)",
    "insert into raw_people values (1, ' Ann ', 'A@X', '30', null, '2024-01-01+00'), (1, 'Anna', 'A@X', 'x', 'eu',"
    " '2024-01-02+00'), (2, '  ', null, null, null, '2024-01-01+00')",
    "create table regions (code text, label text, retired boolean)",
    "insert into regions values ('eu', 'Europe', false), ('su', 'gone', true)",
    "create table orders (id int primary key, customer_id int, amount numeric(10,2))",
    "insert into orders values (1, 7, 9.99), (2, 8, 1)",
)


@pytest.fixture
def follow(
    harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Callable[[str], list[tuple[Any, ...]]]]]:
    """Does what a page says, in an empty project; gives the warehouse to be asked."""
    shop = harness("postgres")
    shop.execute(*SHOP)
    crm = DuckDBHarness(tmp_path / "crm.duckdb")
    crm.execute("create table customers (id int, name varchar, region varchar)")
    crm.execute("insert into customers values (7, 'Ann', 'eu'), (8, 'Bob', 'su')")
    monkeypatch.setenv("SHOP_DSN", shop.options()["dsn"])
    path, noted = list(sys.path), list(decorators.registered.functions)

    def done(page: str) -> Callable[[str], list[tuple[Any, ...]]]:
        blocks = BLOCK.findall((PAGES / page).read_text())
        (tmp_path / "penstock.toml").write_text("".join([*(text for kind, text in blocks if kind == "toml"), ENDS]))
        for text in (text for kind, text in blocks if kind == "python"):
            (tmp_path / "functions.py").write_text(text)
        project = ps.load_project(tmp_path)
        for pipeline in project.pipelines.values():
            run(project, pipeline, open_store("memory:"))
        return DuckDBHarness(tmp_path / "warehouse.duckdb").query

    yield done
    sys.path[:] = path
    decorators.registered.functions[:] = noted
    sys.modules.pop("functions", None)


Follow = Callable[[str], Callable[[str], list[tuple[Any, ...]]]]


def test_joining_connections(follow: Follow) -> None:
    query = follow("joining-connections.md")
    assert query("select id, customer_id, cast(amount as varchar), name, region from orders order by id") == [
        (1, 7, "9.99", "Ann", "Europe"),
        (2, 8, "1.00", "Bob", None),
    ]


def test_cleaning_with_sql(follow: Follow) -> None:
    query = follow("cleaning-with-sql.md")
    assert query("select id, name, email, age, country from people") == [(1, "Anna", "a@x", None, "eu")]
    cached = ps.memory("cache")["main.people"]
    assert cached.to_pydict() == {"id": [1], "name": ["Anna"]}


def test_udfs(follow: Follow) -> None:
    query = follow("udfs.md")
    assert query("select * from people order by id") == [(1, "Ann Lee", "AL"), (2, "Bob", "B"), (3, None, None)]
    assert query("select * from spreads order by country") == [("eu", 11), ("us", 0)]
