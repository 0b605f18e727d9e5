"""Names and shapes that break careless tools: quoting, byte limits, wide, narrow and empty tables."""

from __future__ import annotations

import pytest

from penstock.errors import PlanRefused
from tests.conformance.harness import Flow

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

NAMES = (
    "plain",
    "With Space",
    'quo"te',
    "apo'strophe",
    "UPPER",
    "select",
    "order",
    "příliš žluťoučký",
    "dot.ted",
    "percent%s",
    "brace{}",
    "back\\slash",
    "semi;colon--",
    "x" * 63,
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_names_of_columns_and_tables_survive(pair: Flow, mode: str) -> None:
    table = 'Odd "table" name'
    columns = ", ".join(f"{quoted(name)} integer" for name in NAMES)
    values = ", ".join(str(n) for n in range(len(NAMES)))
    pair.source.execute(
        f"create table {quoted(table)} ({columns}, primary key ({quoted(NAMES[1])}, {quoted(NAMES[2])}))",
        f"insert into {quoted(table)} values ({values})",
    )
    options = {
        "table": f"{pair.source.schema}.{quoted(table)}",
        "target": f"to.{pair.target.schema}.{quoted(table)}",
        "mode": mode,
        "keys": [NAMES[1], NAMES[2]],
    }
    pair.run(**options)
    pair.run(**options)
    selected = ", ".join(quoted(name) for name in NAMES)
    rows = pair.target.query(f"select {selected} from {pair.target.schema}.{quoted(table)}")
    assert set(rows) == {tuple(range(len(NAMES)))}
    assert len(rows) == (2 if mode == "append" else 1)


def test_names_over_the_byte_limit_are_refused_at_planning(pair: Flow) -> None:
    long = "é" * 32  # 64 bytes
    pair.source.execute("create table items (id integer primary key)")
    if pair.target.backend == "postgres":
        with pytest.raises(PlanRefused, match="64 bytes"):
            pair.run(columns={"id": {"rename": long}})
    else:
        pair.run(columns={"id": {"rename": long}})
        assert pair.target.query(f"select {quoted(long)} from items") == []


def test_names_that_differ_only_in_case(pair: Flow) -> None:
    pair.source.execute("create table items (a integer, b integer)", "insert into items values (1, 2)")
    options = {"columns": {"b": {"rename": "A"}}}
    if pair.target.backend == "duckdb":
        with pytest.raises(PlanRefused, match="same name"):
            pair.run(**options)
    else:
        pair.run(**options)
        assert pair.target.query('select a, "A" from items') == [(1, 2)]


def test_names_twice_in_one_query_are_refused(pair: Flow) -> None:
    with pytest.raises(PlanRefused, match="x"):
        pair.run(query="select 1 as x, 2 as x")


def test_columns_are_matched_by_name_never_by_position(pair: Flow) -> None:
    pair.source.execute("create table items (a varchar, b varchar)", "insert into items values ('a', 'b')")
    pair.target.execute("create table items (b varchar, a varchar)")
    pair.run()
    assert pair.target.query("select a, b from items") == [("a", "b")]


def test_one_column(pair: Flow) -> None:
    pair.source.execute("create table items (id integer primary key)", "insert into items values (1), (2)")
    for mode in ("merge", "scd2"):
        target = f"to.{pair.target.schema}.only_{mode}"
        assert pair.run(mode=mode, keys=["id"], target=target).inserted == 2
        assert pair.run(mode=mode, keys=["id"], target=target).inserted == 0


def test_five_hundred_columns(pair: Flow) -> None:
    columns = ", ".join(f"c{n} integer" for n in range(500))
    pair.source.execute(
        f"create table items (id integer primary key, {columns})",
        f"insert into items values (1, {', '.join(str(n) for n in range(500))})",
    )
    for mode in ("append", "merge"):
        target = f"to.{pair.target.schema}.wide_{mode}"
        pair.run(mode=mode, keys=["id"], target=target)
        pair.run(mode=mode, keys=["id"], target=target)
        [row] = set(pair.target.query(f"select * from wide_{mode}"))
        assert row == (1, *range(500))


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_empty_table_and_zero_row_query(pair: Flow, mode: str) -> None:
    pair.source.execute("create table items (id integer primary key, name varchar)")
    record = pair.run(mode=mode, keys=["id"])
    assert (record.state, record.rows) == ("done", 0)
    assert pair.target.query("select count(*) from items") == [(0,)]
    assert pair.run(mode=mode, keys=["id"], query="select id, name from items where false").rows == 0


def test_trailing_semicolon_and_comments_in_a_query(pair: Flow) -> None:
    query = "select 1 as id -- the ; of this comment\n ; -- and this\n /* and ; this */ ;"
    assert pair.run(query=query).rows == 1


def test_query_that_would_write_is_refused(pair: Flow) -> None:
    pair.source.execute("create table items (id integer primary key)", "insert into items values (1)")
    with pytest.raises(Exception, match=r"(?i)delete|read-only|read only|syntax|select"):
        pair.run(query="delete from items returning id")
    assert pair.source.query("select count(*) from items") == [(1,)]
