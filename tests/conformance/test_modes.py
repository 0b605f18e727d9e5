"""Every mode on every target, as design §6 and batch §5 define them."""

from __future__ import annotations

import re

import pytest

from penstock.errors import DataError, PenstockError, PlanRefused, TargetError
from penstock.run.records import RunOptions
from tests.conformance.harness import Flow

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]


def seed(flow: Flow, *rows: str) -> None:
    flow.source.execute(
        "drop table if exists items",
        "create table items (id bigint primary key, name varchar, price decimal(10,2))",
    )
    if rows:
        flow.source.execute(f"insert into items values {', '.join(rows)}")


def loaded(flow: Flow, columns: str = "id, name, price") -> list[tuple[object, ...]]:
    rows = flow.target.query(f"select {columns} from {flow.target.schema}.items order by 1, 2")
    return [tuple(str(v) if v is not None and not isinstance(v, (int, str, bool)) else v for v in row) for row in rows]


@pytest.mark.spark
def test_append_adds_every_row_on_every_run(spark_pair: Flow) -> None:
    seed(spark_pair, "(1, 'a', 1.50)", "(2, null, null)", "(3, '', -0.01)")
    first = spark_pair.run()
    assert (first.state, first.rows, first.inserted) == ("done", 3, 3)
    assert loaded(spark_pair) == [(1, "a", "1.50"), (2, None, None), (3, "", "-0.01")]
    spark_pair.run()
    assert len(loaded(spark_pair)) == 6
    assert spark_pair.target.leftovers() == []


def test_truncate_replaces_all_rows(pair: Flow) -> None:
    seed(pair, "(1, 'a', 1)", "(2, 'b', 2)")
    pair.run(mode="truncate")
    seed(pair, "(2, 'B', 2)", "(3, 'c', 3)")
    second = pair.run(mode="truncate")
    assert (second.deleted, second.inserted) == (2, 2)
    assert loaded(pair) == [(2, "B", "2.00"), (3, "c", "3.00")]


@pytest.mark.spark
def test_merge_inserts_and_updates_only_what_changed(spark_pair: Flow) -> None:
    seed(spark_pair, "(1, 'a', 1)", "(2, 'b', 2)", "(3, 'c', 3)")
    first = spark_pair.run(mode="merge")
    assert (first.inserted, first.updated) == (3, 0)
    seed(spark_pair, "(1, 'a', 1)", "(2, 'B', 2)", "(4, 'd', null)")
    second = spark_pair.run(mode="merge")
    assert (second.inserted, second.updated, second.deleted) == (1, 1, 0)
    assert loaded(spark_pair) == [(1, "a", "1.00"), (2, "B", "2.00"), (3, "c", "3.00"), (4, "d", None)]


def test_merge_scd1_is_an_alias(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    assert flow.run(mode="scd1").mode == "merge"


def test_merge_deletes_hard(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)", "(3, 'c', 3)")
    flow.run(mode="merge", deletes="hard")
    flow.source.execute("delete from items where id = 2")
    second = flow.run(mode="merge", deletes="hard")
    assert (second.inserted, second.updated, second.deleted) == (0, 0, 1)
    assert [row[0] for row in loaded(flow)] == [1, 3]


def test_merge_deletes_soft_and_a_key_that_returns(flow: Flow) -> None:
    columns = "id, name, _penstock_deleted, _penstock_deleted_at is null"
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)", "(3, 'c', 3)")
    flow.run(mode="merge", deletes="soft")
    flow.source.execute("delete from items where id = 2")
    assert flow.run(mode="merge", deletes="soft").deleted == 1
    assert loaded(flow, columns) == [(1, "a", False, True), (2, "b", True, False), (3, "c", False, True)]
    assert flow.run(mode="merge", deletes="soft").deleted == 0
    flow.source.execute("insert into items values (2, 'b', 2)")
    third = flow.run(mode="merge", deletes="soft")
    assert (third.inserted, third.updated) == (0, 1)
    assert loaded(flow, columns)[1] == (2, "b", False, True)


@pytest.mark.parametrize("options", [{"mode": "truncate"}, {"mode": "merge", "deletes": "hard"}])
def test_guard_an_empty_source_stops_before_the_target_is_emptied(flow: Flow, options: dict[str, str]) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)")
    flow.run(**options)
    flow.source.execute("delete from items")
    with pytest.raises(DataError, match=r"0 rows.*2 of the target's 2 rows would go") as caught:
        flow.run(**options)
    assert "allow_empty" in caught.value.remedy
    assert len(loaded(flow)) == 2
    flow.run(**options, allow_empty=True)
    assert loaded(flow) == []


def test_guard_a_sharply_shrunk_source_stops(flow: Flow) -> None:
    seed(flow, *[f"({n}, 'x', 1)" for n in range(10)])
    flow.run(mode="merge", deletes="hard")
    flow.source.execute("delete from items where id >= 4")
    with pytest.raises(DataError, match="6 of the target's 10 rows"):
        flow.run(mode="merge", deletes="hard")
    assert len(loaded(flow)) == 10
    assert flow.run(mode="merge", deletes="hard", max_delete_ratio=0.6).deleted == 6


def test_delete_scope_limits_the_delete_pass(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)", "(10, 'old', 1)")
    flow.run(mode="merge")
    flow.source.execute("delete from items where id in (2, 10)")
    flow.run(mode="merge", deletes="hard", delete_scope="t.id < 10")
    assert [row[0] for row in loaded(flow)] == [1, 10]


def test_keys_duplicates_are_caught_with_three_of_them(flow: Flow) -> None:
    query = "select n % 5 as id, 'x' as name from generate_series(0, 9) as n"
    with pytest.raises(DataError, match="duplicate keys") as caught:
        flow.run(mode="merge", keys=["id"], query=query)
    assert len(caught.value.keys) == 3
    assert "order_by" in caught.value.remedy
    # The same on a target that exists already: nothing is committed.
    flow.run(mode="merge", keys=["id"], query="select 1 as id, 'old' as name")
    with pytest.raises(DataError, match="duplicate keys"):
        flow.run(mode="merge", keys=["id"], query=query)
    assert loaded(flow, "id, name") == [(1, "old")]


def test_keys_order_by_says_which_duplicate_wins(flow: Flow) -> None:
    query = "select * from (values (1, 'old', 1), (1, 'new', 2), (2, 'only', 1)) as v(id, name, seen)"
    flow.run(mode="merge", keys=["id"], query=query, order_by="seen desc")
    assert loaded(flow, "id, name") == [(1, "new"), (2, "only")]


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_keys_order_by_that_does_not_tell_two_rows_apart_is_an_error(flow: Flow, mode: str) -> None:
    """Chance would choose, and in the other order of arrival an unchanged source would make a change."""
    options = {"mode": mode, "keys": ["id"], "order_by": "seen desc"}
    rows = "(1, 'x', 5, 'n'), (1, 'y', 5, 'n'), (2, 'old', 4, 'n'), (2, 'new', 5, 'n'), (3, 'x', null, 'n')"
    query = f"select * from (values {rows}, (3, 'y', null, 'n')) as v(id, name, seen, note)"
    with pytest.raises(DataError, match="order_by does not say which of two rows wins") as caught:
        flow.run(query=query, **options)
    assert sorted(caught.value.keys) == ["id=1", "id=3"]
    assert caught.value.kept == "nothing was committed"
    assert not flow.target.has_table("items")
    flow.run(query=query, **options | {"order_by": "seen desc, name desc"})
    assert loaded(flow, "id, name") == [(1, "y"), (2, "new"), (3, "y")]
    # Twice the same row is one, and what lies behind the first is nobody's matter.
    rows = "(1, 'y', 5, 'n'), (1, 'y', 5, 'n'), (1, 'a', 4, 'n'), (1, 'b', 4, 'n')"
    flow.run(query=f"select * from (values {rows}) as v(id, name, seen, note)", **options)
    assert loaded(flow, "id, name") == [(1, "y"), (2, "new"), (3, "y")]


def test_keys_order_by_of_untracked_columns_the_first_by_text_is_taken(flow: Flow) -> None:
    options = {"mode": "scd2", "keys": ["id"], "order_by": "seen desc", "ignore": ["note"]}
    query = "select * from (values (1, 5, 'b'), (1, 5, 'a'), (1, 5, null), (1, 5, 'c')) as v(id, seen, note)"
    flow.run(query=query, **options)
    assert loaded(flow, "id, note") == [(1, "a")]


@pytest.mark.parametrize("type_", ["decimal(10,2)", "numeric"])
@pytest.mark.parametrize("order", ["seen desc", "seen desc nulls last"])
def test_keys_order_by_compares_numbers_as_numbers(flow: Flow, type_: str, order: str) -> None:
    """Also where the target keeps them as text: '9' came after '10', and the older row won."""
    rows = f"(1, 'old', 9::{type_}), (1, 'new', 10.5::{type_}), (2, 'below', -2), (2, 'above', -1), (2, 'none', null)"
    query = f"select * from (values {rows}) as v(id, name, seen)"
    flow.run(mode="merge", keys=["id"], query=query, order_by=order)
    assert loaded(flow, "id, name") == [(1, "new"), (2, "above")]


def test_keys_null_is_a_data_error(flow: Flow) -> None:
    query = "select * from (values (1, 'a'), (null, 'b')) as v(id, name)"
    with pytest.raises(DataError, match="NULL in a key"):
        flow.run(mode="merge", keys=["id"], query=query)
    flow.run(mode="merge", keys=["id"], query="select 1 as id, 'a' as name")
    with pytest.raises(DataError, match="NULL in a key"):
        flow.run(mode="merge", keys=["id"], query=query)
    assert loaded(flow, "id, name") == [(1, "a")]


def test_keys_come_from_the_primary_key_or_are_refused(flow: Flow) -> None:
    flow.source.execute("create table loose (id int, name text)")
    for _ in range(2):
        for mode in ("merge", "scd2"):
            with pytest.raises(PlanRefused, match=f"mode {mode} needs keys, and the source has no primary key"):
                flow.run(mode=mode, table="public.loose")
        flow.target.execute(f"create table if not exists {flow.target.schema}.items (id int primary key, name varchar)")


def test_scd2_keeps_every_version(flow: Flow) -> None:
    columns = "id, name, is_current, valid_to is null, row_hash like '2:%'"
    hashed = True if flow.target.hashes else None
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)")
    flow.run(mode="scd2")
    assert loaded(flow, columns) == [(1, "a", True, True, hashed), (2, "b", True, True, hashed)]
    assert flow.run(mode="scd2").inserted == 0
    flow.source.execute("update items set name = 'B' where id = 2")
    second = flow.run(mode="scd2")
    assert (second.inserted, second.updated) == (1, 1)
    assert loaded(flow, columns) == [
        (1, "a", True, True, hashed),
        (2, "B", True, True, hashed),
        (2, "b", False, False, hashed),
    ]
    table = f"{flow.target.schema}.items"
    joined = f"from {table} a join {table} b on a.id = b.id and a.valid_to = b.valid_from and b.is_current"
    assert flow.target.query(f"select count(*) {joined}") == [(1,)]


def test_scd2_deletes_close_and_a_returning_key_opens_again(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)", "(3, 'c', 3)")
    flow.run(mode="scd2", deletes="close")
    flow.source.execute("delete from items where id = 2")
    assert flow.run(mode="scd2", deletes="close").deleted == 1
    assert loaded(flow, "id, is_current") == [(1, True), (2, False), (3, True)]
    flow.source.execute("insert into items values (2, 'b', 2)")
    assert flow.run(mode="scd2", deletes="close").inserted == 1
    assert loaded(flow, "id, is_current") == [(1, True), (2, False), (2, True), (3, True)]


def test_scd2_deletes_close_is_guarded(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)")
    flow.run(mode="scd2", deletes="close")
    flow.source.execute("delete from items")
    with pytest.raises(DataError, match="would go"):
        flow.run(mode="scd2", deletes="close")
    assert loaded(flow, "id, is_current") == [(1, True), (2, True)]


def test_scd2_track_and_ignore(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    flow.run(mode="scd2", ignore=["price"])
    flow.source.execute("update items set price = 9")
    assert flow.run(mode="scd2", ignore=["price"]).inserted == 0
    flow.source.execute("update items set name = 'b'")
    assert flow.run(mode="scd2", ignore=["price"]).inserted == 1
    flow.source.execute("update items set price = 10")
    assert flow.run(mode="scd2", track=["price"]).inserted == 1


def test_scd2_a_clock_behind_the_history_stops(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    flow.run(mode="scd2")
    flow.target.execute(f"update {flow.target.schema}.items set valid_from = '2999-01-01 00:00:00+00'")
    flow.source.execute("update items set name = 'b'")
    with pytest.raises(DataError, match="clock is behind"):
        flow.run(mode="scd2")
    assert loaded(flow, "id, name") == [(1, "a")]


def test_incremental_reads_each_row_once(flow: Flow) -> None:
    flow.source.execute(
        "create table events (id bigint primary key, at timestamptz, note text)",
        "insert into events select n, now() - interval '1 hour' + n * interval '1 second', 'x'"
        " from generate_series(1, 100) as n",
    )
    options = {"table": "public.events", "incremental": "at", "lag": "1s"}
    first = flow.run(**options)
    assert first.rows == 100
    assert flow.run(**options).rows == 0
    flow.source.execute(
        "insert into events select n, now() - interval '1 second', 'y' from generate_series(101, 110) as n"
    )
    flow.source.execute("insert into events values (999, now() + interval '1 day', 'not yet')")
    assert flow.run(**options).rows == 10
    assert flow.target.query(f"select count(*), count(distinct id) from {flow.target.schema}.items") == [(110, 110)]


def test_incremental_full_refresh_reads_everything_again(flow: Flow) -> None:
    flow.source.execute(
        "create table events (id bigint primary key, at timestamptz)",
        "insert into events select n, now() - interval '1 hour' from generate_series(1, 10) as n",
    )
    options = {"table": "public.events", "incremental": "at", "lag": "0s"}
    flow.run(**options)
    flow.run(RunOptions(full_refresh=True), **options)
    assert flow.target.query(f"select count(*) from {flow.target.schema}.items") == [(10,)]


def test_incremental_after_a_load_without_a_window_brings_no_row_twice(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)", "(2, 'b', 2)")
    window = {"incremental": "id", "lag": "0"}
    flow.run(**window)
    flow.source.execute("insert into items values (3, 'c', 3)")
    flow.run(mode="truncate")
    with pytest.raises(PlanRefused, match="where those rows end is not known"):
        flow.run(**window)
    assert [row[0] for row in loaded(flow)] == [1, 2, 3]
    assert flow.run(RunOptions(full_refresh=True), **window).rows == 3
    flow.source.execute("insert into items values (4, 'd', 4)")
    assert flow.run(**window).rows == 1
    assert [row[0] for row in loaded(flow)] == [1, 2, 3, 4]


def test_incremental_integers_with_lag_in_units(flow: Flow) -> None:
    flow.source.execute(
        "create table events (id bigint primary key, note text)",
        "insert into events select n, 'x' from generate_series(1, 10) as n",
    )
    options = {"table": "public.events", "incremental": "id", "lag": "3"}
    assert flow.run(**options).rows == 7
    flow.source.execute("insert into events select n, 'x' from generate_series(11, 20) as n")
    assert flow.run(**options).rows == 10
    assert flow.target.query(f"select max(id), count(*) from {flow.target.schema}.items") == [(17, 17)]


@pytest.mark.parametrize(("choice", "rows"), [("include", 3), ("skip", 2)])
def test_incremental_null_cursor(flow: Flow, choice: str, rows: int) -> None:
    flow.source.execute(
        "create table events (id bigint primary key, at timestamptz)",
        "insert into events values (1, now() - interval '1 hour'), (2, now() - interval '1 hour'), (3, null)",
    )
    options = {"table": "public.events", "incremental": "at", "lag": "0s"}
    with pytest.raises(PenstockError, match="no value in the cursor"):
        flow.run(**options)
    options["mode"] = "merge"
    found = [flow.run(**options, on_null_cursor=choice).rows for _ in range(2)]
    assert found == [rows, rows - 2]  # nothing is new for the second run, but for the rows without a cursor
    assert flow.target.query(f"select count(*) from {flow.target.schema}.items") == [(rows,)]


def test_incremental_refuses_text_and_float_cursors(flow: Flow) -> None:
    flow.source.execute("create table events (id int primary key, t text, f float8)")
    for column in ("t", "f"):
        with pytest.raises(PlanRefused, match=f"column '{column}' cannot be a cursor"):
            flow.run(table="public.events", incremental=column, lag="1")


def test_columns_rename_cast_and_text(flow: Flow) -> None:
    query = "select 1 as id, 'n' as name, 12.5::numeric as price, now()::date as day"
    flow.run(
        query=query,
        columns={"id": {"rename": "item_id"}, "price": "decimal(10,2)", "day": "text"},
    )
    [(item, price, day)] = flow.target.query(f"select item_id, price, day from {flow.target.schema}.items")
    assert (item, str(price)) == (1, "12.50")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)


def test_columns_a_value_that_does_not_fit_its_cast_stops_with_column_and_key(flow: Flow) -> None:
    query = "select * from (values (1, 1.25::numeric), (2, 1.239), (3, 1.5)) as v(id, price)"
    with pytest.raises(DataError, match="column price") as caught:
        flow.run(query=query, keys=["id"], mode="merge", columns={"price": "decimal(10,2)"})
    assert "2" in caught.value.keys[0]
    assert len(caught.value.keys) == 1
    assert "1.239" not in str(caught.value) + caught.value.remedy


def test_columns_nan_is_an_error_or_null(flow: Flow) -> None:
    query = "select * from (values (1, 1.25::numeric), (2, 'NaN')) as v(id, price)"
    options = {"query": query, "keys": ["id"], "mode": "merge"}
    if flow.target.decimals_hold_nan:
        flow.run(**options, columns={"price": {"type": "decimal(10,2)"}}, target=f"to.{flow.target.schema}.kept")
        assert flow.target.query("select cast(price as varchar) from kept where id = 2") == [("NaN",)]
    else:
        with pytest.raises(DataError, match="column price has a value that its target type cannot hold") as caught:
            flow.run(**options, columns={"price": {"type": "decimal(10,2)"}})
        assert "2" in caught.value.keys[0]
    flow.run(**options, columns={"price": {"type": "decimal(10,2)", "nan": "null"}})
    rows = flow.target.query(f"select id, price is null from {flow.target.schema}.items order by 1")
    assert rows == [(1, False), (2, True)]


def test_transforms_pre_and_post_run_in_the_loads_transaction(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    audit = f"{flow.target.schema}.audit"
    flow.target.execute(f"create table {audit} (note varchar)")
    flow.run(
        transforms_pre=[f"insert into {audit} values ('pre')"], transforms_post=[f"insert into {audit} values ('post')"]
    )
    assert flow.target.query(f"select note from {audit} order by 1") == [("post",), ("pre",)]
    with pytest.raises(TargetError, match="no_such_table"):
        flow.run(
            transforms_pre=[f"insert into {audit} values ('lost')"],
            transforms_post=["insert into no_such_table values (1)"],
        )
    assert flow.target.query(f"select count(*) from {audit}") == [(2,)]
    assert len(loaded(flow)) == 1


def test_owner_a_second_pipeline_that_deletes_is_refused(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    flow.run(mode="merge")
    with pytest.raises(PlanRefused, match="is loaded by pipeline"):
        flow.run(mode="truncate", name="another")
    flow.run(mode="merge", name="another", deletes="hard", delete_scope="t.id > 100")


def test_many_tables_each_with_its_own_key(flow: Flow) -> None:
    for table in ("one", "two", "skipped"):
        flow.source.execute(
            f"create table {table} (k int primary key, v text)", f"insert into {table} values (1, '{table}')"
        )
    records = flow.run_all(
        tables=["public.*", "!public.skipped"], target=f"to.{flow.target.schema}.{{table}}", mode="merge"
    )
    assert [record.rows for record in records] == [1, 1]
    assert flow.target.query(f"select v from {flow.target.schema}.two") == [("two",)]


def test_a_plan_moves_and_creates_nothing(flow: Flow) -> None:
    seed(flow, "(1, 'a', 1)")
    assert flow.plan(mode="merge").ddl != ()
    assert not flow.target.has_table("items")
    assert flow.store.runs() == []


def test_limit_reads_so_many_rows(flow: Flow) -> None:
    seed(flow, *[f"({n}, 'x', 1)" for n in range(50)])
    assert flow.run(RunOptions(limit=7)).rows == 7
