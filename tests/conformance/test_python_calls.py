"""`ps.sync`, `ps.write`, `ps.run` and their like against real databases: the same plans, checks and commits."""

from __future__ import annotations

import datetime
import decimal
import errno
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock import testing
from penstock.errors import ConfigError, DataError, PlanRefused, SourceError, TargetError, Unsupported
from penstock.project import Project, decorators
from penstock.run import handed
from tests.conformance.harness import Harness

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def _in_this_process() -> Iterator[None]:
    with testing.without_spark():
        yield


@pytest.fixture
def shop(harness: Callable[[str], Harness]) -> Harness:
    made = harness("postgres")
    made.execute(
        "create table items (id int primary key, name text, price numeric(10,2))",
        "insert into items values (1, 'a', 1.50), (2, null, 2.25), (3, 'c', 3.00)",
    )
    return made


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def warehouse(request: pytest.FixtureRequest, harness: Callable[[str], Harness]) -> Harness:
    return harness(request.param)


@pytest.fixture
def project(shop: Harness, warehouse: Harness, tmp_path: Path) -> Project:
    pipeline = {
        "name": "items",
        "source": "shop",
        "table": "public.items",
        "target": f"warehouse.{warehouse.schema}.items",
        "mode": "merge",
    }
    return testing.project(tmp_path, {"shop": shop.options(), "warehouse": warehouse.options()}, [pipeline])


def target(warehouse: Harness, table: str) -> str:
    return f"warehouse.{warehouse.schema}.{table}"


def test_a_sync_is_a_pipeline_of_one_call(project: Project, warehouse: Harness) -> None:
    def sync() -> ps.RunResult:
        query = ps.query("shop", "select id, name from items where id < 3")
        return ps.sync(query, target(warehouse, "x"), mode="merge", keys=["id"], project=project)

    done = sync()
    assert (done.rows, done.inserted, done.updated, done.deleted, done.path) == (2, 2, 0, 0, "fused")
    assert done.plan.target == target(warehouse, "x")
    assert done.seconds > 0
    again = sync()
    assert (again.inserted, again.updated) == (0, 0)
    assert warehouse.query("select id, name from x order by 1") == [(1, "a"), (2, None)]
    # The same call is the same pipeline: the target knows it.
    assert warehouse.query("select distinct pipeline from _penstock.loads") == [(f"sync:{target(warehouse, 'x')}",)]


def test_a_table_is_synced_by_its_own_key(project: Project, warehouse: Harness) -> None:
    done = ps.sync(ps.source("shop", table="public.items"), target(warehouse, "y"), mode="merge", project=project)
    assert done.inserted == 3
    assert (
        ps.sync(ps.source("shop", table="public.items"), target(warehouse, "y"), mode="merge", project=project).updated
        == 0
    )


def test_a_plan_of_the_same_arguments_moves_nothing(project: Project, warehouse: Harness) -> None:
    [planned] = ps.plan(
        ps.query("shop", "select id from items"), target(warehouse, "x"), mode="append", project=project
    )
    assert "create table" in planned.ddl[-1]
    assert not warehouse.has_table("x")
    with pytest.raises(ConfigError, match="mode: a pipeline of the project has its own"):
        ps.plan("items", mode="append", project=project)


def test_pipelines_of_the_project_run_by_name(project: Project) -> None:
    assert ps.validate(project=project) == ()
    done = ps.run("items", project=project)
    assert (done.pipeline, done.inserted) == ("items", 3)
    assert ps.plan("items", project=project)[0].changes is False
    with pytest.raises(ConfigError, match="there is no pipeline 'itms'") as caught:
        ps.run("itms", project=project)
    assert caught.value.remedy == "did you mean 'items'?"
    with pytest.raises(ConfigError, match="there is no pipeline 'nothing'"):
        ps.validate("nothing", project=project)


def test_what_is_wrong_with_a_call_is_told_with_its_line(project: Project, warehouse: Harness) -> None:
    with pytest.raises(ConfigError) as caught:
        ps.sync(ps.query("shp", "select 1 as id"), target(warehouse, "x"), mode="append", project=project)
    assert "did you mean 'shop'?" in caught.value.remedy
    assert "test_python_calls.py:" in caught.value.place
    with pytest.raises(ConfigError, match="unknown key 'kyes'"):
        ps.sync(ps.query("shop", "select 1"), target(warehouse, "x"), mode="merge", kyes=["id"], project=project)
    with pytest.raises(ConfigError, match="a sync reads a query or a table, not str"):
        ps.sync("select 1", target(warehouse, "x"), mode="append", project=project)  # type: ignore[arg-type]  # the point
    with pytest.raises(ConfigError, match="query stands in the source"):
        ps.sync(ps.query("shop", "select 1"), target(warehouse, "x"), mode="append", query="select 2", project=project)


def test_an_error_says_in_a_notebook_what_the_command_line_says(project: Project, warehouse: Harness) -> None:
    from penstock.told import render

    with pytest.raises(DataError) as caught:
        ps.sync(
            ps.query("shop", "select 1 as id, name from items"),
            target(warehouse, "x"),
            mode="merge",
            keys=["id"],
            name="doubled",
            project=project,
        )
    shown = "\n".join(caught.value._render_traceback_())
    assert shown == render(caught.value, pipeline="doubled")
    assert "keys:    id=1" in shown
    query = ps.query("shop", "select 1 as id from items")
    with pytest.raises(DataError) as caught:
        ps.sync(query, target(warehouse, "x"), mode="merge", keys=["id"], show_keys=False, project=project)
    assert "id=1" not in "\n".join(caught.value._render_traceback_())


# ---------------------------------------------------------------- rows of the caller

TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int32()),
        "name": pa.array(["a", None, "c"]).dictionary_encode(),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("3.25")], pa.decimal128(38, 12)),
        "at": pa.array([datetime.datetime(2024, 3, 31, 1, 30)] * 3, pa.timestamp("us", "Europe/Berlin")),
    }
)


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_a_table_is_written_in_every_mode(project: Project, warehouse: Harness, mode: str, kind: str) -> None:
    rows = TABLE if kind == "arrow" else TABLE.to_pandas()
    keys = ["id"] if mode in ("merge", "scd2") else ()
    done = ps.write(rows, target(warehouse, "w"), mode=mode, keys=keys, project=project)
    assert (done.rows, done.inserted, done.path) == (3, 3, "fused")
    config = project.connection("warehouse")
    found = testing.rows(config, f"{warehouse.schema}.w", ["id", "name", "price", "at"])
    assert sorted(found, key=lambda row: row["id"]) == [
        {**row, "at": row["at"].astimezone(datetime.UTC)} for row in TABLE.to_pylist()
    ]


def test_nothing_is_left_of_what_was_handed_over(project: Project, warehouse: Harness, tmp_path: Path) -> None:
    ps.write(TABLE, target(warehouse, "w"), mode="append", project=project)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches())
    ps.write(reader, target(warehouse, "w"), mode="append", project=project)
    assert warehouse.query("select count(*) from w") == [(6,)]
    staging = tmp_path / ".penstock" / "staging"
    assert [path for path in staging.rglob("*") if path.is_file()] == []
    assert warehouse.leftovers() == []


def test_a_reader_is_never_whole_in_memory(tmp_path: Path) -> None:
    """40 batches of 4 MB: with all of them held, Arrow's pool would show it."""
    size, batches = 500_000, 40
    numbers = pa.array(range(size), pa.int64())
    schema = pa.schema([("id", pa.int64())])
    peak = 0

    def made() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for number in range(batches):
            yield pa.record_batch({"id": pc.add(numbers, number * size)})
            peak = max(peak, pa.total_allocated_bytes())

    before = pa.total_allocated_bytes()
    with handed.handed(pa.RecordBatchReader.from_batches(schema, made()), tmp_path) as rows:
        assert isinstance(rows, handed.HandedTable)
        after = pa.total_allocated_bytes()
    assert peak - before < 24_000_000
    assert after - before < 24_000_000


def test_a_reader_that_fails_leaves_nothing(project: Project, warehouse: Harness, tmp_path: Path) -> None:
    def made() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise RuntimeError("the producer broke")

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, made())
    with pytest.raises(RuntimeError, match="the producer broke"):
        ps.write(reader, target(warehouse, "w"), mode="append", project=project)
    assert not warehouse.has_table("w")
    assert [path for path in (tmp_path / ".penstock" / "staging").rglob("*") if path.is_file()] == []


def test_a_reader_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    made = testing.project(tmp_path, {"scratch": {"type": "memory"}})

    def write(batches: Any) -> None:
        reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches)
        ps.write(reader, "scratch.w", mode="append", project=made)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches()
        raise OSError(errno.EIO, "of a cell: 4711")

    with pytest.raises(SourceError, match="the reader that was handed over failed"):
        write(broken())
    staging = tmp_path / ".penstock" / "staging"
    shutil.rmtree(staging)
    staging.write_text("")
    with pytest.raises(TargetError) as caught:
        write(TABLE.to_batches())
    assert str(staging) in str(caught.value)


def test_a_type_without_a_form_is_refused_by_name(project: Project, warehouse: Harness) -> None:
    odd = pa.table({"id": [1], "took": pa.array([5], pa.duration("s"))})
    with pytest.raises(Unsupported, match="column 'took' cannot be kept"):
        ps.write(odd, target(warehouse, "w"), mode="append", project=project)
    with pytest.raises(ConfigError, match=r"ps\.write takes rows, not list"):
        ps.write([{"id": 1}], target(warehouse, "w"), mode="append", project=project)


def test_a_merge_without_keys_is_refused(project: Project, warehouse: Harness) -> None:
    with pytest.raises(PlanRefused, match="needs keys"):
        ps.write(TABLE, target(warehouse, "w"), mode="merge", project=project)


def test_a_pandas_frame_keeps_its_types(project: Project, warehouse: Harness) -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "price": [decimal.Decimal("1.50"), decimal.Decimal("22.250")],
            "day": [datetime.date(2024, 1, 1), None],
            "seen": pd.to_datetime(["2024-01-01 00:00:00.123456", None]),
            "size": [1.5, float("nan")],
            "kind": pd.Categorical(["x", "y"]),
            "count": pd.array([7, None], dtype="Int64"),
        },
        index=["first", "second"],
    )
    done = ps.write(frame, target(warehouse, "p"), mode="append", project=project)
    assert done.inserted == 2
    assert any("index" in note for note in done.plan.notes)
    assert any("NaN in size is NULL" in note for note in done.plan.notes)
    assert testing.rows(project.connection("warehouse"), f"{warehouse.schema}.p") == [
        {
            "id": 1,
            "price": decimal.Decimal("1.500"),
            "day": datetime.date(2024, 1, 1),
            "seen": datetime.datetime(2024, 1, 1, 0, 0, 0, 123456),
            "size": 1.5,
            "kind": "x",
            "count": 7,
        },
        {
            "id": 2,
            "price": decimal.Decimal("22.250"),
            "day": None,
            "seen": None,
            "size": None,
            "kind": "y",
            "count": None,
        },
    ]


MIXED: dict[str, tuple[Any, str]] = {
    "text and numbers": ({"v": [1, "x"]}, "it holds int, str"),
    "whole and broken numbers": ({"v": pd.Series([1, 2.5], dtype="object")}, "it holds float, int"),
    "dates and times": ({"v": [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1)]}, "it holds date, datetime"),
    "zones": (
        {
            "v": pd.Series(
                [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)], dtype=object
            )
        },
        "it holds times with a zone and without",
    ),
    "bytes and text": ({"v": [b"x", "y"]}, "it holds bytes, str"),
    "objects": ({"v": [object(), object()]}, "it holds object"),
    "mappings": ({"v": [{"a": 1}, {"b": 2}]}, "it holds dict"),
    "zones of times": ({"v": [datetime.time(1, 2, tzinfo=datetime.UTC)]}, "it holds times of day with a zone"),
    "numbers in lists": ({"v": [[1], [2.5]]}, "inside, it holds float, int"),
    "numbers in arrays": ({"v": [np.array([1]), np.array([2.5])]}, "inside, it holds float, int"),
    "dates and times in lists": (
        {"v": [[datetime.date(2024, 1, 1)], [None, datetime.datetime(2024, 1, 2, 3, 4)]]},
        "inside, it holds date, datetime",
    ),
    "zones in lists": (
        {"v": [[datetime.datetime(2024, 1, 1)], [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]]},
        "inside, it holds times with a zone and without",
    ),
    "nanoseconds in lists": ({"v": [[pd.Timestamp("2024-01-01 00:00:00.123456789")]]}, "inside, it holds nanoseconds"),
    "categories": ({"v": pd.Categorical(pd.Series([1, 2.5], dtype=object))}, "it holds float, int"),
    "too large": ({"v": [2**70, 1]}, "have no one Arrow type"),
}


@pytest.mark.parametrize("case", MIXED)
def test_a_mixed_column_of_a_frame_is_refused_by_name(tmp_path: Path, case: str) -> None:
    columns, why = MIXED[case]
    made = testing.project(tmp_path, {"warehouse": {"type": "duckdb", "path": str(tmp_path / "w.duckdb")}})
    with pytest.raises(DataError, match="column v of the frame cannot be written") as caught:
        ps.write(pd.DataFrame(columns), "warehouse.main.p", mode="append", project=made)
    assert why in caught.value.why
    assert caught.value.kept == "nothing was touched"


def test_objects_of_a_frame_keep_what_they_hold(tmp_path: Path) -> None:
    """Nanoseconds, which Arrow by itself cuts off; and a NaN that becomes NULL is told, wherever it stands."""
    moment = pd.Timestamp("2024-01-01 00:00:00.123456789")
    made = testing.project(tmp_path, {"scratch": {"type": "memory"}})
    frame = pd.DataFrame(
        {
            "naive": pd.Series([moment, None], dtype=object),
            "zoned": pd.Series([moment.tz_localize("Europe/Prague"), pd.NaT], dtype=object),
            "price": pd.Series([decimal.Decimal("NaN"), decimal.Decimal("1.5")], dtype=object),
            "sizes": pd.Series([[1.5, float("nan")], [2.5]], dtype=object),
            "kept": pd.Series([1.5, None], dtype=object),
        }
    )
    done = ps.write(frame, "scratch.objects", mode="append", project=made)
    assert "NaN in price, sizes is NULL, as pandas means it" in done.plan.notes
    written = ps.memory("scratch")["objects"]
    assert written["naive"].to_pylist() == [moment, None]
    assert written["zoned"].to_pylist()[0] == moment.tz_localize("Europe/Prague")
    assert written["price"].to_pylist() == [None, decimal.Decimal("1.5")]
    assert written["sizes"].to_pylist() == [[1.5, None], [2.5]]


def test_names_of_a_frame_are_texts_and_differ(tmp_path: Path) -> None:
    made = testing.project(tmp_path, {"warehouse": {"type": "duckdb", "path": str(tmp_path / "w.duckdb")}})
    with pytest.raises(DataError, match="columns of the frame have no text for a name"):
        ps.write(pd.DataFrame([[1, 2]]), "warehouse.main.p", mode="append", project=made)
    with pytest.raises(DataError, match="columns of one name: a"):
        ps.write(pd.DataFrame([[1, 2]], columns=["a", "a"]), "warehouse.main.p", mode="append", project=made)


def test_rows_are_written_into_a_declared_table(project: Project, warehouse: Harness) -> None:
    before = list(decorators.registered.tables)
    try:

        @ps.table(connection="warehouse", name=f"{warehouse.schema}.declared")
        class Declared(ps.ManagedTable):
            id: ps.Key[ps.BigInt]
            name: ps.Text | None

        done = ps.write(TABLE.select(["name", "id"]), Declared, mode="merge", project=project)
        assert done.inserted == 3
        assert done.plan.columns[0].target_type.lower() == "bigint"
        with pytest.raises(PlanRefused, match="is not declared by Declared"):
            ps.write(TABLE, Declared, mode="merge", project=project)
    finally:
        decorators.registered.tables[:] = before


State = ps.Enum["new", "paid"]


def test_a_target_without_sql_holds_what_the_class_says(tmp_path: Path) -> None:
    before = list(decorators.registered.tables)
    made = testing.project(tmp_path, {"scratch": {"type": "memory"}})
    try:

        @ps.table(connection="scratch", name="items")
        class Items(ps.ManagedTable):
            id: ps.Key[ps.BigInt]
            state: State

        def write(*states: str | None) -> ps.RunResult:
            rows = pa.table({"id": pa.array(range(len(states)), pa.int32()), "state": pa.array(states, pa.string())})
            return ps.write(rows, Items, mode="append", project=made)

        assert write("new", "paid").inserted == 2
        assert ps.memory("scratch")["items"].schema.field("id").type == pa.int64()
        with pytest.raises(DataError, match="column state takes no NULL") as caught:
            write("new", None)
        assert caught.value.keys == ("id=1",)
        with pytest.raises(DataError, match="column state has a text that is no label"):
            write("lost")
        assert ps.memory("scratch")["items"].num_rows == 2
    finally:
        decorators.registered.tables[:] = before
        ps.memory("scratch").clear()


SCRIPT = """
import os
import duckdb
import penstock as ps
from penstock import testing

with duckdb.connect("a.duckdb") as connection:
    connection.execute("create table t as select range as id from range(5)")
ps.connect("a", type="duckdb", path="a.duckdb")
os.environ["PENSTOCK_DSN_B"] = "duckdb:b.duckdb"     # the environment is enough
with testing.without_spark():
    print(ps.sync(ps.query("a", "select id from t"), "b.main.t", mode="merge", keys=["id"]))

@ps.pipeline(source="a", target="b.main.t", mode="merge", keys=["id"])
def later():
    return "select id + 5 as id from t"

with testing.without_spark():
    print(ps.run(later).inserted, ps.run("later").updated)
print(ps.run, ps.validate())
"""


def test_a_script_without_a_project_needs_no_file(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("<sync:b.main.t → b.main.t: 5 rows (5 inserted), fused path,")
    assert lines[1] == "5 0"
    assert lines[2].endswith("<nothing found>")


def test_the_last_loaded_project_is_the_one_that_calls_speak_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.run import current

    monkeypatch.setattr(current, "_current", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "penstock.toml").write_text(f'[connections.{name}]\ntype = "duckdb"\npath = "x.duckdb"\n')
    monkeypatch.chdir(tmp_path / "one")
    assert list(current.project_of().connections) == ["one"]
    ps.load_project(tmp_path / "two")
    assert list(current.project_of().connections) == ["two"]
    assert list(current.project_of(tmp_path / "one").connections) == ["one"]
