"""Transforms between real databases: what passes through Spark SQL or a DataFrame function arrives as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import DataError
from penstock.run.pipeline import run, stage_with_spark
from penstock.state import open_store
from tests.conformance.conftest import FIRST
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow, Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.sampled]

FIRST_PAIRS = [(source, target) for source in FIRST for target in FIRST]
FORMATS = ("parquet", "csv", "jsonl")

TABLE = """
create table items (
    id integer primary key, region varchar, amount decimal(38,12), ratio double precision, seen timestamptz,
    wall timestamp, day date, clock time, ref uuid, doc json, flag boolean
)"""
ROWS = (
    "(1, 'eu', 12345678901234567890123456.789012345678, 'NaN', '2024-03-31 02:30:00.123456+01',"
    " '2024-03-31 02:30:00', '9999-12-31', '23:59:59.999999', 'ffffffff-ffff-ffff-ffff-ffffffffffff',"
    ' \'{"a": 1.00,  "b": null}\', true)',
    "(2, 'eu', -0.000000000001, 0.1, '1969-12-31 23:59:59.999999+00', '0001-01-01 00:00:00.000001', '1970-01-01',"
    " '24:00:00', '00000000-0000-0000-0000-000000000000', '[]', false)",
    "(3, 'us', 0.5, 0.30000000000000004, 'infinity', '-infinity', '-infinity', '00:00:00',"
    " '00000000-0000-0000-0000-000000000001', 'null', null)",
    "(4, null, null, null, null, null, null, null, null, null, null)",
)
# Both databases print these alike, but for the case of NaN.
PRINTED = ("amount", "ratio", "seen at time zone 'UTC'", "wall", "day", "clock", "ref", "doc", "flag")
TEXTS = ", ".join(["id", "region", *(f"lower(cast({value} as varchar))" for value in PRINTED)])


@pytest.fixture(params=FIRST_PAIRS, ids=["-".join(pair) for pair in FIRST_PAIRS])
def spark_pair(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """The backends that print values alike, with each other."""
    source, target = request.param
    return Flow(harness(source), harness(target), tmp_path, stage_with_spark)


def seed(source: Harness) -> None:
    source.execute(TABLE, f"insert into items values {', '.join(ROWS)}")


def texts(harness: Harness, columns: str = TEXTS) -> list[tuple[Any, ...]]:
    return harness.query(f"select {columns} from {harness.schema}.items order by 1, 2")


def types(harness: Harness) -> dict[str, str]:
    rows = harness.query(
        "select column_name, data_type from information_schema.columns"
        f" where table_schema = '{harness.schema}' and table_name = 'items'"
    )
    return {name: type_.lower() for name, type_ in rows}


def test_sql_passes_every_value_on_and_merges(spark_pair: Flow) -> None:
    seed(spark_pair.source)
    options: dict[str, Any] = {
        "transform": "select *, upper(region) as shout, amount is null as missing, id * 1.5 as half from source"
        " where id < 100 union all select *, 'none', true, 0 from source where id = 1",
        "mode": "merge",
        "keys": ["id"],
        "order_by": "half desc",
        "columns": {"half": "decimal(14,4)", "missing": {"rename": "gone"}},
    }
    first = spark_pair.run(**options)
    assert (first.path, first.rows, first.inserted, first.updated) == ("spark", 5, 4, 0)
    assert texts(spark_pair.target) == texts(spark_pair.source)
    assert texts(spark_pair.target, "id, shout, gone, cast(half as varchar)") == [
        (1, "EU", False, "1.5000"),
        (2, "EU", False, "3.0000"),
        (3, "US", False, "4.5000"),
        (4, None, True, "6.0000"),
    ]
    found, left = types(spark_pair.target), types(spark_pair.source)
    if spark_pair.source.backend == spark_pair.target.backend:
        assert {name: found.get(name) for name in left} == left
    # One row has changed, one is new, one the transform leaves out; all others are what they were.
    spark_pair.source.execute("update items set amount = 7 where id = 2", "insert into items (id) values (5), (100)")
    second = spark_pair.run(**options)
    assert (second.inserted, second.updated, second.deleted) == (1, 1, 0)
    assert texts(spark_pair.target) == texts(spark_pair.source)[:-1]
    assert spark_pair.target.leftovers() == []


@pytest.mark.parametrize("between", ["sqlite", "memory", "parquet", "csv", "jsonl"])
def test_what_went_through_spark_into_another_kind_of_target_comes_home(
    harness: Callable[[str], Harness], tmp_path: Path, between: str
) -> None:
    here, home = harness("postgres"), harness("postgres")
    there = FilesHarness(tmp_path / "lake", between) if between in FORMATS else harness(between)
    seed(here)
    # NaN is refused where it would become NULL, so it stays behind.
    kept = "id, region, amount, nanvl(ratio, 0.25) as ratio, seen, wall, day, clock, ref, doc, flag"
    out = Flow(here, there, tmp_path, stage_with_spark).run(transform=f"select {kept} from source")
    assert (out.path, out.rows) == ("spark", 4)
    Flow(there, home, tmp_path).run(mode="append")
    here.execute("update items set ratio = 0.25 where ratio = 'NaN'")
    assert texts(home) == texts(here)
    assert {**types(home), "doc": "json"} == {**types(here), "doc": "json"}
    assert there.leftovers() == []


def test_a_function_groups_and_appends(spark_pair: Flow) -> None:
    """Group-by keys keep their types; a sum of decimals has every digit."""
    seed(spark_pair.source)

    def per_region(frame: Any) -> Any:
        from pyspark.sql import functions as f

        shout = f.udf(lambda text: "nobody" if text is None else text.upper(), "string")
        named = frame.unionAll(frame).withColumn("name", shout("region"))
        return named.groupBy("name", "ref", "flag").agg(
            f.sum("amount").alias("amount"), f.max("seen").alias("seen"), f.count("*").alias("lines")
        )

    spark_pair.target.execute(
        "create table items (name varchar, ref uuid, flag boolean, amount decimal(38,12), seen timestamptz,"
        " lines bigint)",
        "insert into items (name) values ('before')",
    )
    record = spark_pair.run(transform_function=per_region, mode="append")
    assert (record.path, record.inserted) == ("spark", 4)
    columns = (
        "name, cast(ref as varchar), flag, cast(amount as varchar), cast(seen at time zone 'UTC' as varchar), lines"
    )
    doubled = "24691357802469135780246913.578024691356"
    assert sorted(texts(spark_pair.target, columns), key=repr) == [
        ("EU", "00000000-0000-0000-0000-000000000000", False, "-0.000000000002", "1969-12-31 23:59:59.999999", 2),
        ("EU", "ffffffff-ffff-ffff-ffff-ffffffffffff", True, doubled, "2024-03-31 01:30:00.123456", 2),
        ("US", "00000000-0000-0000-0000-000000000001", None, "1.000000000000", "infinity", 2),
        ("before", None, None, None, None, None),
        ("nobody", None, None, None, None, 2),
    ]
    assert spark_pair.target.leftovers() == []


def test_keys_and_casts_are_checked_behind_a_transform(flow: Flow) -> None:
    flow.stage = stage_with_spark
    seed(flow.source)
    with pytest.raises(DataError, match="duplicate keys") as caught:
        flow.run(transform="select id % 2 as id, amount from source", mode="merge", keys=["id"])
    assert sorted(caught.value.keys) == ["id=0", "id=1"]
    narrow = {"amount": "decimal(30,3)"}
    with pytest.raises(DataError, match="column amount has a value that its target type cannot hold") as caught:
        flow.run(transform="select id, amount from source", mode="merge", keys=["id"], columns=narrow)
    assert sorted(caught.value.keys) == ["id=1", "id=2"]
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


MODULE = """
import penstock as ps


@ps.connection
class shop(ps.Postgres):
    dsn = "${SHOP_DSN}"


@ps.connection(name="warehouse")
class File(ps.DuckDB):
    path = "warehouse.duckdb"


@ps.pipeline(source=shop, target="warehouse.main.regions", mode="merge", keys=["region"])
def regions():
    return "select region, amount, seen from items"


@regions.transform
def sums(items):
    from pyspark.sql import functions as f

    named = items.withColumn("region", f.coalesce("region", f.lit("none")))
    return named.groupBy("region").agg(f.sum("amount").alias("amount"), f.max("seen").alias("seen"))
"""


def test_a_pipeline_of_a_python_module(
    harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = harness("postgres")
    seed(source)
    (tmp_path / "penstock.toml").write_text('[project]\nmodules = ["regional"]\n')
    (tmp_path / "regional.py").write_text(MODULE)
    monkeypatch.setenv("SHOP_DSN", source.options()["dsn"])
    project = ps.load_project(tmp_path)
    pipeline = project.pipeline("regions")
    [record] = run(project, pipeline, open_store("memory:"))
    assert (record.path, record.inserted, record.updated) == ("spark", 3, 0)
    rows = DuckDBHarness(tmp_path / "warehouse.duckdb").query(
        "select region, cast(amount as varchar), cast(seen as varchar) from regions order by 1"
    )
    assert rows == [
        ("eu", "12345678901234567890123456.789012345677", "2024-03-31 01:30:00.123456+00"),
        ("none", None, None),
        ("us", "0.500000000000", "infinity"),
    ]
