"""Exactness through SQLite: every type of every backend into it and home again, and what it cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, PlanRefused
from tests.conformance.harness import Flow, Harness
from tests.conformance.test_exactness import EVERY, agree, seed, texts
from tests.conformance.values import DUCKDB, DUCKDB_ONLY, POSTGRES_ONLY, POSTGRES_SETUP

pytestmark = pytest.mark.postgres

Make = Callable[[str], Harness]

# SQLite has neither NaN nor a negative zero, except in lists, which are text there.
KEPT = {
    "real": ("'Infinity'", "'-Infinity'", "1.17549435e-38", "3.4028235e38", "0.1"),
    "double precision": ("'Infinity'", "'-Infinity'", "2.2250738585072014e-308", "0.30000000000000004"),
}
FROM_POSTGRES = EVERY | KEPT
FROM_DUCKDB = DUCKDB | DUCKDB_ONLY | {"FLOAT": ("'inf'", "'-inf'", "0.1"), "DOUBLE": ("'inf'", "0.30000000000000004")}
CLASSES = {"integer", "real", "text", "blob", "null"}


def cells(harness: Harness, table: str = "items") -> list[tuple[Any, ...]]:
    return harness.query(f"select * from {table} order by id")


def test_postgres_to_sqlite_and_back(harness: Make, tmp_path: Path) -> None:
    out = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    expected = seed(out.source, FROM_POSTGRES)
    out.run(mode="merge")
    assert out.run(mode="merge").updated == 0
    # Declared in SQLite's four classes, and STRICT.
    assert out.target.query("select distinct type from pragma_table_xinfo('items') order by 1") == [
        ("BLOB",),
        ("INTEGER",),
        ("REAL",),
        ("TEXT",),
    ]
    assert out.target.query("select strict from pragma_table_list where name = 'items'") == [(1,)]
    home = harness("postgres")
    home.execute(*POSTGRES_SETUP)
    Flow(out.target, home, tmp_path).run(mode="merge", keys=["id"])
    agree(FROM_POSTGRES, texts(home, FROM_POSTGRES), expected)
    types = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'items'::regclass and attname in ('c0', 'c3', 'c8') order by 1"
    )
    assert home.query(types) == out.source.query(types)


def test_sqlite_to_sqlite_and_to_memory_and_back(harness: Make, tmp_path: Path) -> None:
    first = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    seed(first.source, FROM_POSTGRES)
    first.run(mode="merge")
    expected = cells(first.target)
    second, store, third = harness("sqlite"), harness("memory"), harness("sqlite")
    Flow(first.target, second, tmp_path).run(mode="merge")
    assert cells(second) == expected
    Flow(second, store, tmp_path).run()
    Flow(store, third, tmp_path).run()
    assert cells(third) == expected
    memory = "select name, type_sql, native from _penstock.columns order by name"
    assert third.query(memory) == first.target.query(memory)


def test_sqlite_native_path_keeps_every_cell(harness: Make, tmp_path: Path) -> None:
    first = Flow(harness("duckdb"), harness("sqlite"), tmp_path)
    seed(first.source, FROM_DUCKDB)
    first.run(mode="append")
    here = Flow(first.target, first.target, tmp_path)
    assert here.run(mode="merge", keys=["id"], target="to.main.copies").path == "native"
    assert cells(first.target, "copies") == cells(first.target)
    assert here.run(mode="merge", keys=["id"], target="to.main.copies").updated == 0
    assert here.run(mode="truncate", target="to.main.other", path="fused").path == "fused"
    assert cells(first.target, "other") == cells(first.target)


def test_duckdb_to_sqlite_and_back(harness: Make, tmp_path: Path) -> None:
    out = Flow(harness("duckdb"), harness("sqlite"), tmp_path)
    expected = seed(out.source, FROM_DUCKDB)
    out.run(mode="merge", keys=["id"])
    assert out.run(mode="merge", keys=["id"]).updated == 0
    home = harness("duckdb")
    Flow(out.target, home, tmp_path).run(mode="merge", keys=["id"])
    agree(FROM_DUCKDB, texts(home, FROM_DUCKDB), expected)
    described = "select column_name, column_type from (describe items)"
    assert home.query(described) == out.source.query(described)


@pytest.mark.parametrize("type_", sorted(POSTGRES_ONLY))
def test_6_sqlite_values_that_arrow_cannot_carry_stop_with_the_key(harness: Make, tmp_path: Path, type_: str) -> None:
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    for number, value in enumerate(POSTGRES_ONLY[type_]):
        if type_ == "interval":
            continue  # text in SQLite, which takes every one
        flow.source.execute(
            f"create table t{number} (id int primary key, v {type_})", f"insert into t{number} values (7, {value})"
        )
        options: dict[str, Any] = {"table": f"public.t{number}", "target": f"to.main.t{number}"}
        with pytest.raises(DataError, match=r"column 'v' holds .* that .* cannot carry") as caught:
            flow.run(keys=["id"], mode="merge", **options)
        assert caught.value.keys == ("id=7",)
        assert not flow.target.has_table(f"t{number}")
        flow.run(columns={"v": "text"}, **options)


@pytest.mark.parametrize(("value", "why"), [("NaN", "no NaN"), ("-0", "no negative zero")])
@pytest.mark.parametrize("type_", ["real", "float8"])
def test_6_sqlite_nan_and_negative_zero_are_refused_with_the_key_or_kept_as_text(
    harness: Make, tmp_path: Path, type_: str, value: str, why: str
) -> None:
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    flow.source.execute(
        f"create table items (id int primary key, v {type_})", f"insert into items values (1, 1.5), (7, '{value}')"
    )
    with pytest.raises(DataError, match=why) as caught:
        flow.run(mode="merge")
    assert caught.value.keys == ("id=7",)
    assert 'columns.v = "text"' in caught.value.remedy
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []
    flow.run(mode="merge", columns={"v": "text"})
    assert cells(flow.target) == [(1, "1.5"), (7, value)]


def test_6_sqlite_nan_is_null_where_it_is_asked_for(harness: Make, tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    flow.source.execute(
        "create table items (id int primary key, f float8, r real, d numeric(10,2), n numeric)",
        "insert into items values (1, 'NaN', 'NaN', 'NaN', 'NaN'), (2, 1.5, 1.5, 1.5, 1.5)",
        "insert into items values (3)",
    )
    for mode in ("append", "truncate"):  # into a new table, and into the one that is there
        flow.run(mode=mode, columns={name: {"nan": "null"} for name in "frdn"})
        assert cells(flow.target) == [(1, None, None, None, None), (2, 1.5, 1.5, "1.50", "1.5"), (3, *[None] * 4)]


def test_6_sqlite_a_decimal_keeps_its_digits_and_a_text_its_zeros(harness: Make, tmp_path: Path) -> None:
    """Declared `decimal`, a number of 32 digits became 1.2e19 and '007' became 7."""
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    flow.source.execute(
        "create table items (id int primary key, d numeric(38,12), t text)",
        "insert into items values (1, 12345678901234567890.123456789012, '007')",
    )
    flow.run()
    assert cells(flow.target) == [(1, "12345678901234567890.123456789012", "007")]


def test_6_sqlite_a_cast_is_checked_in_the_file_too(harness: Make, tmp_path: Path) -> None:
    """No statement of SQLite could check it, so the rows take the other path, and the plan says why."""
    here = harness("sqlite")
    here.execute("create table items (id integer primary key, v text)", "insert into items values (1, '1.5')")
    flow = Flow(here, here, tmp_path)
    options: dict[str, Any] = {"columns": {"v": "decimal(10,2)"}, "target": "to.main.copies", "mode": "merge"}
    planned = flow.plan(**options)
    assert (planned.path, "the cast of v is checked" in planned.path_reason) == ("fused", True)
    flow.run(**options)
    assert cells(here, "copies") == [(1, "1.50")]
    here.execute("insert into items values (2, '1.505')")
    with pytest.raises(DataError, match="column v has a value that its target type cannot hold") as caught:
        flow.run(**options)
    assert caught.value.keys == ("id=2",)
    with pytest.raises(PlanRefused, match='path = "native" is refused: the cast of v'):
        flow.run(path="native", **options)


def test_a_wider_decimal_is_the_same_row(harness: Make, tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    flow.source.execute(
        "create table items (id int primary key, v numeric(5,2))", "insert into items values (1, 1.5), (2, -0.25)"
    )
    flow.run(mode="merge")
    flow.source.execute("alter table items alter column v type numeric(9,4)", "update items set v = 2.125 where id = 2")
    assert flow.run(mode="merge", on_drift="evolve").updated == 1
    assert cells(flow.target) == [(1, "1.5000"), (2, "2.1250")]


def test_times_of_a_history_come_back_as_times(harness: Make, tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("sqlite"), tmp_path)
    flow.source.execute("create table items (id int primary key, v text)", "insert into items values (1, 'a')")
    flow.run(mode="scd2")
    onward = Flow(flow.target, harness("postgres"), tmp_path)
    onward.run()
    found = onward.target.query(
        "select pg_typeof(valid_from)::text, pg_typeof(is_current)::text, is_current,"
        " abs(extract(epoch from now() - valid_from)) < 60 from items"
    )
    assert found == [("timestamp with time zone", "boolean", True, True)]


@pytest.mark.parametrize("type_", ["ubigint", "timestamp", "date"])
def test_order_by_compares_what_is_kept_as_text_by_its_meaning(harness: Make, tmp_path: Path, type_: str) -> None:
    low, high = {
        "ubigint": ("9", "10"),
        "timestamp": ("'9999-01-01'", "'10000-01-01'"),
        "date": ("'0044-01-01 (BC)'", "'0043-01-01'"),
    }[type_]
    source, target = harness("duckdb"), harness("sqlite")
    source.execute(
        f"create table items (id bigint, ver {type_}, seen timestamptz, v varchar)",
        f"insert into items values (1, {low}, '2024-01-01', 'old'), (1, {high}, '2024-01-01', 'new')",
    )
    flow = Flow(source, target, tmp_path)
    flow.run(mode="merge", keys=["id"], order_by="ver desc")
    assert target.query("select v from items") == [("new",)]
    flow.run(mode="scd2", keys=["id"], event_time="seen", order_by="ver", target="to.main.history")
    assert target.query("select v from history") == [("old",)]


def test_order_by_an_expression_over_a_number_kept_as_text_is_refused(harness: Make, tmp_path: Path) -> None:
    source, target = harness("duckdb"), harness("sqlite")
    source.execute("create table items (id bigint, ver decimal(10,2), took interval)")
    flow = Flow(source, target, tmp_path)
    for order in ("coalesce(ver, 0) desc", "took"):
        with pytest.raises(PlanRefused, match=r"compares (ver|took) as a text") as caught:
            flow.run(mode="merge", keys=["id"], order_by=order)
        assert "order by the column itself, or by another one" in caught.value.remedy
    flow.run(mode="merge", keys=["id"], order_by="cast(ver as real) desc")


def test_4_sqlite_a_value_has_one_text_on_every_path(harness: Make, tmp_path: Path) -> None:
    """A merge that changes its path would rewrite every row."""
    here = harness("sqlite")
    flow = Flow(harness("duckdb"), here, tmp_path)
    flow.source.execute(
        "create table items (id bigint, b boolean, i integer, x blob, u uuid)",
        "insert into items values (1, true, -7, '\\x00\\xff'::blob, uuid()), (2, false, 0, '', null),"
        " (3, null, null, null, null)",
    )
    flow.run()
    loop = Flow(here, here, tmp_path)
    for path in ("native", "fused"):
        loop.run(path=path, columns=dict.fromkeys(["b", "i", "x", "u"], "text"), target=f"to.main.by_{path}")
    assert cells(here, "by_native") == cells(here, "by_fused")


def test_4_sqlite_a_float_is_made_text_on_its_way(harness: Make, tmp_path: Path) -> None:
    """SQLite prints 5 as 5.0, infinity as Inf, and a float of four bytes as the double that it is nearest to."""
    here = harness("sqlite")
    flow = Flow(harness("duckdb"), here, tmp_path)
    flow.source.execute(
        "create table items (id bigint, f4 real, f8 double)",
        "insert into items values (1, 0.1, 5), (2, 1e30, 'infinity'), (3, null, 1e-7)",
    )
    flow.run()
    loop = Flow(here, here, tmp_path)
    floats = dict.fromkeys(["f4", "f8"], "text")
    with pytest.raises(PlanRefused, match="native") as caught:
        loop.run(path="native", columns=floats, target="to.main.floats")
    assert "the text of f4, f8 is made on its way" in caught.value.why
    assert loop.run(columns=floats, target="to.main.floats").path == "fused"
    assert [row[1:] for row in cells(here, "floats")] == [("0.1", "5"), ("1e+30", "Infinity"), (None, "1e-7")]
    assert loop.run(target="to.main.plain").path == "native"
