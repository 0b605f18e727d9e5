"""Memory stores as sources and targets: what a load leaves, and that a failed one leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import (
    DataError,
    PlanRefused,
    Unsupported,
)
from penstock.run.pipeline import RunOptions, stage_with_spark
from tests.conformance import test_pairs as pairs
from tests.conformance.harness import Flow, Harness, MemoryHarness
from tests.conformance.memory_bench import ITEMS, flow, here, store
from tests.conformance.test_exactness import EVERY, agree, seed, texts
from tests.conformance.values import DUCKDB, DUCKDB_ONLY, POSTGRES_ONLY, POSTGRES_SETUP

__all__ = ["flow", "here"]


# ---------------------------------------------------------------- modes


def test_append_adds_chunks_and_copies_nothing(flow: Flow) -> None:
    assert flow.run().inserted == 3
    first = store(flow.target)["main.items"]
    assert flow.run().inserted == 3
    both = store(flow.target)["main.items"]
    assert (first.num_rows, both.num_rows) == (3, 6)
    assert both.column("id").chunk(0).buffers()[1].address == first.column("id").chunk(0).buffers()[1].address
    assert both.slice(3).to_pydict() == ITEMS.to_pydict()


def test_truncate_replaces_and_whoever_has_the_old_table_keeps_it(flow: Flow) -> None:
    flow.run(mode="truncate")
    old = store(flow.target)["main.items"]
    store(flow.source)["main.items"] = ITEMS.slice(1)
    record = flow.run(mode="truncate")
    assert (record.inserted, record.deleted) == (2, 3)
    assert store(flow.target)["main.items"].column("id").to_pylist() == [2, 3]
    assert old.num_rows == 3


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_merge_and_scd2_are_refused(flow: Flow, mode: str) -> None:
    with pytest.raises(Unsupported, match=f"Memory does not take mode {mode}") as caught:
        flow.run(mode=mode, keys=["id"])
    assert caught.value.remedy.startswith("it takes append, truncate; a DuckDB or SQLite connection with path")
    assert len(store(flow.target)) == 0


def test_guard_an_empty_or_sharply_shrunk_source_stops(flow: Flow) -> None:
    flow.run(mode="truncate")
    for left in (0, 1):
        store(flow.source)["main.items"] = ITEMS.slice(0, left)
        with pytest.raises(DataError, match=rf"the source has {left} rows, and {3 - left} of the target's 3 rows"):
            flow.run(mode="truncate")
        assert store(flow.target)["main.items"].num_rows == 3
    assert flow.run(mode="truncate", max_delete_ratio=0.9).rows == 1
    store(flow.source)["main.items"] = ITEMS.slice(0, 0)
    assert flow.run(mode="truncate", allow_empty=True).rows == 0


def test_owner_a_second_pipeline_that_truncates_is_refused(flow: Flow) -> None:
    flow.run()
    other = Flow(flow.source, flow.target, flow.root)
    with pytest.raises(PlanRefused, match=rf"is loaded by pipeline {flow.name} too"):
        other.run(mode="truncate")
    assert other.run().inserted == 3


# ---------------------------------------------------------------- drift


def test_drift_evolve_adds_and_widens(flow: Flow) -> None:
    store(flow.source)["main.items"] = pa.table({"id": pa.array([1], pa.int32()), "gone": ["x"]})
    flow.run()
    store(flow.source)["main.items"] = pa.table({"new": [1.5], "id": pa.array([2**40], pa.int64()), "gone": ["y"]})
    with pytest.raises(PlanRefused, match="column new of the source is not in"):
        flow.run()
    assert flow.plan(on_drift="evolve").changes
    flow.run(on_drift="evolve")
    made = store(flow.target)["main.items"]
    assert made.schema.field("id").type == pa.int64()
    assert made.to_pydict() == {"id": [1, 2**40], "gone": ["x", "y"], "new": [None, 1.5]}
    store(flow.source)["main.items"] = pa.table({"id": [3]})
    with pytest.raises(PlanRefused, match="gone was loaded before and is gone from the source"):
        flow.run()
    flow.run(on_drift="ignore")
    assert store(flow.target)["main.items"].slice(2).to_pydict() == {"id": [3], "gone": [None], "new": [None]}


def test_drift_a_narrower_source_goes_into_the_wider_column(flow: Flow) -> None:
    flow.run()
    store(flow.source)["main.items"] = pa.table({"id": pa.array([9], pa.int16()), "name": ["z"]})
    flow.run()
    assert store(flow.target)["main.items"].column("id").to_pylist() == [1, 2, 3, 9]
    store(flow.source)["main.items"] = pa.table({"id": ["9"], "name": ["z"]})
    with pytest.raises(PlanRefused, match="column id: string does not go into bigint"):
        flow.run()
    flow.run(columns={"id": "bigint"})
    assert store(flow.target)["main.items"].column("id").to_pylist() == [1, 2, 3, 9, 9]


def test_columns_a_value_that_does_not_fit_stops_with_its_key(flow: Flow) -> None:
    with pytest.raises(DataError, match="column name has a value that its target type cannot hold") as caught:
        flow.run(columns={"name": "bigint"}, keys=["id"])
    assert caught.value.keys == ("id=1", "id=2")
    assert len(store(flow.target)) == 0
    assert flow.target.leftovers() == []


def test_columns_rename_and_nan_as_null(flow: Flow) -> None:
    nan = float("nan")
    store(flow.source)["main.items"] = pa.table({"id": [1, 2], "v": [1.5, nan], "w": [nan, None]})
    flow.run(columns={"id": {"rename": "n"}, "v": {"nan": "null"}})
    made = store(flow.target)["main.items"]
    assert made.column_names == ["n", "v", "w"]
    assert made.column("v").to_pylist() == [1.5, None]
    assert made.column("w").null_count == 1


# ---------------------------------------------------------------- incremental


def test_incremental_reads_each_row_once(flow: Flow) -> None:
    window = {"incremental": "id", "lag": "0"}
    assert [flow.run(**window).rows for _ in range(2)] == [3, 0]
    store(flow.source)["main.items"] = pa.concat_tables([ITEMS, pa.table({"id": [4, None], "name": ["d", "e"]})])
    with pytest.raises(DataError, match="1 rows have no value in the cursor column 'id'") as caught:
        flow.run(**window, keys=["name"])
    assert caught.value.keys == ("name='e'",)
    assert flow.run(**window, on_null_cursor="skip").rows == 1
    assert store(flow.target)["main.items"].column("id").to_pylist() == [1, 2, 3, 4]
    assert flow.run(RunOptions(full_refresh=True), **window, on_null_cursor="skip").rows == 4
    assert store(flow.target)["main.items"].num_rows == 4


def test_incremental_rows_without_a_cursor_may_be_read_every_time(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    here.store["main.items"] = pa.table({"id": [1, 2], "at": pa.array([5, None], pa.int32())})
    flow = Flow(here, harness("duckdb"), tmp_path)
    window = {"incremental": "at", "lag": "0", "on_null_cursor": "include", "mode": "merge", "keys": ["id"]}
    assert [flow.run(**window).rows for _ in range(2)] == [2, 1]
    assert flow.target.rows("items") == [(1, 5), (2, None)]


@pytest.mark.parametrize(
    "type_", [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s"), pa.date32()], ids=str
)
def test_incremental_by_the_clock(flow: Flow, type_: pa.DataType) -> None:
    """What is later than now stays for later; a day that is not over stays too."""
    past, future = (pa.array([n], pa.int32()).cast(pa.date32()).cast(type_) for n in (19_000, 30_000))
    zone = {} if getattr(type_, "tz", None) else {"cursor_timezone": "UTC"}
    store(flow.source)["main.items"] = pa.table({"at": pa.concat_arrays([past, future])})
    window = {"incremental": "at", "lag": "1h", **zone}
    assert [flow.run(**window).rows for _ in range(2)] == [1, 0]
    assert store(flow.target)["main.items"].column("at").to_pylist() == past.to_pylist()
    if zone:
        with pytest.raises(PlanRefused, match="the cursor 'at' has no time zone"):
            flow.run(incremental="at", lag="0")


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint64()], ids=str)
def test_incremental_the_highest_integer_is_in_the_window(flow: Flow, type_: pa.DataType) -> None:
    top = 127 if type_ == pa.int8() else 2**64 - 1
    store(flow.source)["main.items"] = pa.table({"n": pa.array([0, top], type_)})
    assert flow.run(incremental="n", lag="0").rows == 2
    assert flow.run(incremental="n", lag="0").rows == 0


def test_incremental_refuses_floats_and_texts(flow: Flow) -> None:
    store(flow.source)["main.items"] = pa.table({"f": [1.5], "t": ["a"]})
    for name in ("f", "t"):
        with pytest.raises(PlanRefused, match=f"'{name}' cannot be an incremental cursor"):
            flow.run(incremental=name, lag="0")


# ---------------------------------------------------------------- exactness


@pytest.mark.postgres
def test_every_type_of_postgres_comes_home(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    out = Flow(harness("postgres"), here, tmp_path)
    expected = seed(out.source, EVERY)
    out.run(target="to.everything")
    home = harness("postgres")
    home.execute(*POSTGRES_SETUP)
    back = Flow(here, home, tmp_path)
    back.run(table="everything", mode="merge", keys=["id"])
    agree(EVERY, texts(home, EVERY), expected)
    types = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'items'::regclass and attnum > 0 order by attnum"
    )
    direct = Flow(out.source, harness("postgres"), tmp_path)
    direct.target.execute(*POSTGRES_SETUP)
    direct.run(path="fused")
    assert home.query(types) == direct.target.query(types)
    assert here.leftovers() == []


@pytest.mark.postgres
@pytest.mark.parametrize("type_", sorted(POSTGRES_ONLY))
def test_values_that_arrow_cannot_hold_stop_with_the_key(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path, type_: str
) -> None:
    flow = Flow(harness("postgres"), here, tmp_path)
    for number, value in enumerate(POSTGRES_ONLY[type_]):
        name = f"t{number}"
        flow.source.execute(
            f"create table {name} (id int primary key, v {type_})", f"insert into {name} values (7, {value})"
        )
        options = {"table": f"public.{name}", "keys": ["id"], "target": f"to.{name}"}
        if type_ == "interval":  # its text holds it
            flow.run(**options)
            continue
        with pytest.raises(DataError, match=r"column 'v' holds .* that .* cannot carry") as caught:
            flow.run(**options)
        assert caught.value.keys == ("id=7",)
        assert name not in here.store
        flow.run(**options, columns={"v": "text"})
        assert here.store[name].column("v").to_pylist() == [
            row[0] for row in flow.source.query(f"select v::text from {name}")
        ]


def test_every_type_of_duckdb_comes_home(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    types = DUCKDB | DUCKDB_ONLY
    out = Flow(harness("duckdb"), here, tmp_path)
    expected = seed(out.source, types)
    out.run(target="to.first")
    Flow(here, here, tmp_path).run(table="first", target="to.second")
    back = Flow(here, harness("duckdb"), tmp_path)
    back.run(table="second")
    agree(types, texts(back.target, types), expected)
    described = "select column_name, column_type from (describe items)"
    assert back.target.query(described) == out.source.query(described)


@pytest.mark.spark
def test_spark_moves_the_data_from_and_into_memory(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    """Its workers are other processes: they see the staging folder, and nothing of the store."""
    rows = 250_000
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "name": [f"n{n}" for n in range(rows)]})
    here.store["big"] = table
    there = harness("memory")
    flow = Flow(here, there, tmp_path, stage_with_spark)
    record = flow.run(table="big", parallel=2)
    assert (record.rows, record.partitions, record.path) == (rows, 2, "fused")
    assert store(there)["main.items"].sort_by("id").to_pydict() == table.to_pydict()
    wanted = "select id, name, cast(id as decimal(38,9)) as d from source where id % 1000 = 7"
    record = flow.run(table="big", target="to.some", transform=wanted)
    assert (record.path, record.rows) == ("spark", rows // 1000)
    assert store(there)["some"].schema.field("d").type == pa.decimal128(38, 9)
    assert sorted(store(there)["some"].column("id").to_pylist()) == list(range(7, rows, 1000))
    every = pairs.table()
    here.store["every"] = every
    assert flow.run(table="every", target="to.every", path="spark").path == "spark"
    found = store(there)["every"]
    assert (pairs.words(found), pairs.texts(found)) == (pairs.words(every), pairs.texts(every))
    assert there.leftovers() == []


# ---------------------------------------------------------------- stores


def test_a_store_is_a_mapping_of_tables(here: MemoryHarness) -> None:
    found = ps.memory(here.store.name)
    assert found is here.store
    assert found["main.items"].equals(ITEMS)
    found['"Odd name"'] = ITEMS
    assert list(found) == ['"Odd name"', "main.items"]
    assert repr(found) == f"""<memory store {found.name!r}: "Odd name": 3 rows, main.items: 3 rows>"""
    del found['"Odd name"']
    with pytest.raises(KeyError):
        found["Odd name"]
    with pytest.raises(ps.ConfigError, match="keeps Arrow tables, not list"):
        found["x"] = [1]


def test_meanings_stay_with_a_table_that_is_taken_out(
    here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    source = harness("duckdb")
    source.execute("create table items as select 'a'::enum('a', 'b') as e, '1 day'::interval as i")
    Flow(source, here, tmp_path).run(target="to.first")
    here.store["second"] = here.store["first"]
    back = Flow(here, harness("duckdb"), tmp_path)
    back.run(table="second")
    assert back.target.query("select column_type from (describe items)") == [("ENUM('a', 'b')",), ("INTERVAL",)]


FOREIGN: dict[str, tuple[pa.Array, pa.DataType, list[Any]]] = {
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string(), ["a", "b", "a"]),
    "large string": (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    "string view": (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
    "large list": (pa.array([[1]], pa.large_list(pa.int8())), pa.list_(pa.int8()), [[1]]),
    "zone": (pa.array([0], pa.timestamp("us", "Europe/Prague")), pa.timestamp("us", "UTC"), None),  # type: ignore[dict-item]
    "null": (pa.nulls(1), pa.string(), [None]),
    "decimal256": (pa.array([1], pa.decimal256(20, 0)), pa.decimal128(20, 0), [1]),
    "time32": (pa.array([1], pa.time32("s")), pa.time64("us"), None),  # type: ignore[dict-item]
    "run end": (pa.RunEndEncodedArray.from_arrays([2], ["a"]), pa.string(), ["a", "a"]),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_arrow_types_that_are_not_canonical_are_made_so(here: MemoryHarness, case: str) -> None:
    array, type_, values = FOREIGN[case]
    here.store["t"] = pa.table({"v": array})
    made = here.store["t"].column("v")
    assert made.type == type_
    assert values is None or made.to_pylist() == values


@pytest.mark.parametrize("type_", [pa.duration("us"), pa.month_day_nano_interval(), pa.decimal256(60, 2)], ids=str)
def test_arrow_types_without_a_canonical_form_are_refused_when_put_in(here: MemoryHarness, type_: pa.DataType) -> None:
    with pytest.raises(Unsupported, match="column 'v' cannot be kept"):
        here.store["t"] = pa.table({"v": pa.nulls(1, type_)})
    assert "t" not in here.store
