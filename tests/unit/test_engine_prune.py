"""Which columns are read for a transform's SQL: those that it names, or all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.prune import columns_read, names
from penstock.schema import Column, Schema

NAMES = ("id", "name", "Amount", "payload")


def read(sql: str, names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    return columns_read(sql, Schema.of([Column(name, pa.int32()) for name in names])).names


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from source", ("id",)),
        ("select ID, `Name` as n from source", ("id", "name")),
        ("select s.id * s.amount as total from source as s", ("id", "Amount")),
        ("select payload.city from source", ("payload",)),
        ("select count(*) as n from source", ("id",)),
        ("select name, count(*) as n from source group by all", ("name",)),
        ("with x as (select id from source) select count(*) as n from x", ("id",)),
        ("select id from source where exists (select 1 from source b where b.name = source.name)", ("id", "name")),
        ("select a.id from source a join source b using (id)", ("id",)),
        ("select id from source union all select payload from source", ("id", "payload")),
        ("from source select id", ("id",)),
        ("select id from source lateral view explode(payload) t as each", ("id", "payload")),
        ("select id, 'amount' as word from source", ("id", "Amount")),  # more than is needed, never less
    ],
)
def test_only_what_is_named_is_read(sql: str, expected: tuple[str, ...]) -> None:
    assert read(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select * from source",
        "select s.* from source s",
        "select id, * from source",
        "select * except (id) from source",
        "select id from (select distinct * from source)",
        "select id from source where id in (select max(id) from (select * from source))",
        "select count(distinct *) as n from source",
        "select hash(*) as h from source",
        "select to_json(struct(*)) as j from source",
        "from source",
        "table source",
        "from source |> where id > 1",
        "select id from source pivot (sum(amount) for name in ('a'))",
        "select id from source unpivot (v for k in (amount))",
        "select a.id from source a natural join source b",
        "select identifier('na' || 'me') as x from source",
        "select id from f(table(source))",
        "select id from source where ${spark.my.test}",
        "select \u0131d from source",  # Spark takes it for id
        "select id from source; select 1",
        "not even sql",
    ],
)
def test_all_is_read_where_columns_may_be_meant_that_are_not_named(sql: str) -> None:
    assert read(sql) == NAMES


def test_names_that_can_be_written_in_several_ways_are_always_read() -> None:
    assert read("select id from source", ("id", "odd name", "příliš", "a", "A", "b")) == (
        "id",
        "odd name",
        "příliš",
        "a",
        "A",
    )


JOIN = "select {} from source o join customers c on o.customer = c.id"


@pytest.mark.parametrize(
    ("columns", "source", "customers"),
    [
        ("o.total, c.name", ("total", "customer"), ("id", "name")),
        ("o.*, c.name", ("total", "customer", "note"), ("id", "name")),
        ("o.total, C.*", ("total", "customer"), ("id", "name", "secret")),
        ("*", ("total", "customer", "note"), ("id", "name", "secret")),
        ("count(*) as n", ("customer",), ("id",)),
        # `c` is one thing here and another there: who can tell which columns a star means.
        ("c.*, (select max(c.total) from source c) as most", ("total", "customer", "note"), ("id", "name", "secret")),
    ],
)
def test_each_view_is_read_for_itself(columns: str, source: tuple[str, ...], customers: tuple[str, ...]) -> None:
    """A star of one view means no column of the other."""
    views = {"source": ("total", "customer", "note"), "customers": ("id", "name", "secret")}
    found = {
        view: columns_read(
            JOIN.format(columns), Schema.of([Column(name, pa.int32()) for name in names]), view, list(views)
        ).names
        for view, names in views.items()
    }
    assert found["source"] == source
    assert found["customers"] == customers


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("select * from staged", False),
        ("select s.* from staged t join Source s using (id)", True),
        ("select * from `source`", True),
        ("select * from identifier('sou' || 'rce')", True),
        ("select * from ${view}", True),
        ("select * from ſource", True),
    ],
)
def test_a_statement_that_cannot_name_a_view_reads_none_of_it(sql: str, read: bool) -> None:
    assert names(sql, "source") is read
