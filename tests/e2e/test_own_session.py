"""A Spark session of the user's own, classic and Connect: used, never stopped, let go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
import duckdb
import penstock as ps
from pyspark.sql import SparkSession

with duckdb.connect("shop.duckdb") as shop:
    shop.execute("create table items as select range as id, 'n' || range as name from range(1000)")
ps.connect("shop", type="duckdb", path="shop.duckdb")
ps.connect("warehouse", type="duckdb", path="warehouse.duckdb")
builder = SparkSession.builder.config("spark.stage.maxConsecutiveAttempts", "1").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false")
spark = (builder.remote("local[2]") if sys.argv[1] == "connect" else builder.master("local[2]")).getOrCreate()
ps.use_spark(spark)


@ps.table(connection="warehouse", name="main.items")
class Items(ps.ManagedTable):
    id: ps.Key[ps.Int]
    name: ps.Text


done = ps.sync(ps.query("shop", "select id, name from items"), Items, mode="merge")
print(done.path, done.inserted)
upper = lambda frame: frame.selectExpr("id", "upper(name) as name").where("id < 5")
print(ps.sync(ps.query("shop", "select id, name from items"), Items, mode="merge", transform=upper).updated)
frame = spark.sql(
    "select cast(id as int) as id, concat('m', id) as name from range(990, 1010)"
    " union all select 2000, cast(null as string) where 1 = 0"
)
done = ps.write(frame, Items, mode="merge")
print(done.path, done.rows, done.inserted, done.updated)
try:
    ps.write(frame.selectExpr("id + 3000000000 as id", "name"), Items, mode="merge")
except ps.DataError as error:
    print(error.what, len(error.keys))
try:
    ps.write(frame, Items, mode="merge", transform="select 1")
except ps.ConfigError as error:
    print(error.what)
ps.use_spark(None)
ps.use_spark(spark)
print(spark.range(7).count())
spark.stop()
try:
    ps.sync(ps.query("shop", "select id, name from items"), Items, mode="merge")
except ps.SparkError as error:
    print(error.what)
try:
    ps.use_spark("local")
except ps.ConfigError as error:
    print(error.what)
"""


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_a_session_of_the_users_is_used_and_never_stopped(tmp_path: Path, kind: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "script.py", kind],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "fused 1000",
        "5",
        "spark 20 10 10",
        "column id has a value that its target type cannot hold 3",
        "transform has no meaning for a Spark frame",
        "7",
        "the Spark session that ps.use_spark was given is stopped",
        "ps.use_spark takes a Spark session, not str",
    ]
