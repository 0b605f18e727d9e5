"""Names and shapes that break careless tools: quoting, byte limits, wide, narrow and empty tables."""

from __future__ import annotations

import pytest

from penstock.errors import PlanRefused, SourceError
from tests.conformance.harness import Flow

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

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


@pytest.mark.spark
def test_odd_names_and_five_hundred_columns_on_spark(spark_pair: Flow) -> None:
    table = 'Odd "table" name'
    limits = [end.capabilities.max_identifier_bytes for end in (spark_pair.source, spark_pair.target)]
    longest = min((limit for limit in limits if limit is not None), default=300)
    odd = [*NAMES, "é" * (longest // 2)]
    names = [*odd, *(f"column {n}" for n in range(500))]
    columns = ", ".join(f"{quoted(name)} integer" for name in names)
    values = ", ".join(str(n) for n in range(len(names)))
    spark_pair.source.execute(
        f"create table {quoted(table)} ({columns}, primary key ({quoted(NAMES[1])}, {quoted(NAMES[2])}))",
        f"insert into {quoted(table)} values ({values})",
    )

    def selected(wanted: list[str], schema: str, name: str) -> str:
        return f"select {', '.join(quoted(one) for one in wanted)} from {schema}.{quoted(name)}"

    for path, wanted in (("fused", names), ("spark", odd)):
        name = f"{table} {path}"
        record = spark_pair.run(
            query=selected(wanted, spark_pair.source.schema, table),
            target=f"to.{spark_pair.target.schema}.{quoted(name)}",
            mode="merge",
            keys=[NAMES[1], NAMES[2]],
            path=path,
        )
        assert (record.path, record.inserted) == (path, 1)
        assert spark_pair.target.query(selected(wanted, spark_pair.target.schema, name)) == [tuple(range(len(wanted)))]


@pytest.mark.spark
def test_one_column_and_no_row_on_spark(spark_pair: Flow) -> None:
    spark_pair.source.execute("create table items (id integer primary key)")
    record = spark_pair.run(mode="merge", path="fused")
    assert (record.state, record.path, record.rows) == ("done", "fused", 0)
    assert spark_pair.target.query("select id from items") == []


def test_names_over_the_byte_limit_are_refused_at_planning(pair: Flow) -> None:
    limit = pair.target.capabilities.max_identifier_bytes
    long = "é" * ((limit or 300) // 2 + 1)
    pair.source.execute("create table items (id integer primary key)")
    if limit is not None:
        with pytest.raises(PlanRefused, match=rf"the name '{long}' has {limit + 1} bytes, \w+ takes {limit}"):
            pair.run(columns={"id": {"rename": long}})
    else:
        pair.run(columns={"id": {"rename": long}})
        assert pair.target.query(f"select {quoted(long)} from items") == []


def test_names_that_differ_only_in_case(pair: Flow) -> None:
    pair.source.execute("create table items (a integer, b integer)", "insert into items values (1, 2)")
    options = {"columns": {"b": {"rename": "A"}}}
    if pair.target.capabilities.case_insensitive:
        with pytest.raises(PlanRefused, match="the columns 'a' and 'A' have the same name in"):
            pair.run(**options)
    else:
        pair.run(**options)
        assert pair.target.query('select a, "A" from items') == [(1, 2)]


def test_names_twice_in_one_query_are_refused(pair: Flow) -> None:
    with pytest.raises(PlanRefused, match=r"gives a name more than once: x|has more than one column called 'x'"):
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
    refused = (
        'a query must be one SELECT: found DELETE|the server refuses the statement: syntax error at or near "from"'
    )
    with pytest.raises(SourceError, match=refused):
        pair.run(query="delete from items returning id")
    assert pair.source.query("select count(*) from items") == [(1,)]
