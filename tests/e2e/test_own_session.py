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
from pathlib import Path
import duckdb
import pyarrow as pa
import pyarrow.orc
import penstock as ps
from pyspark.sql import SparkSession

with duckdb.connect("shop.duckdb") as shop:
    shop.execute("create table items as select range as id, 'n' || range as name from range(1000)")
ps.connect("shop", type="duckdb", path="shop.duckdb")
ps.connect("warehouse", type="duckdb", path="warehouse.duckdb")
ps.connect("lake", type="files", path="lake", format="orc")
builder = SparkSession.builder.config("spark.stage.maxConsecutiveAttempts", "1").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.sql.session.timeZone", "Europe/Prague")
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
# In the session's zone the two are one wall clock, 02:30, and infinity is beyond all.
moments = spark.sql(
    "select timestamp_micros(n) as seen, struct(map('k', array(timestamp_micros(n))) as m) as deep,"
    " timestamp_ntz'1970-01-01' + interval '0.000001' second * n as naive"
    " from values (1729989000000000L), (1729992600000000L), (9223372036854775807L), (-9223372036854775807L) as v(n)"
)
ps.write(moments, "warehouse.main.texts", mode="append", columns={"seen": "text", "naive": "text"})
with duckdb.connect("warehouse.duckdb") as warehouse:
    print(warehouse.execute("select seen, naive from texts order by 1").fetchall())
ps.write(moments.where("seen < '2030-01-01'").where("seen > '2000-01-01'"), "lake.moments", mode="append")
# Spark's ORC holds a timestamp without a zone as its microseconds.
kept = pa.concat_tables(pa.orc.read_table(file) for file in Path("lake/moments").glob("*.orc")).to_pylist()
print(sorted((row["seen"], *row["deep"]["m"][0][1]) for row in kept))
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
        "[('-infinity', '-infinity'), ('2024-10-27 00:30:00+00', '2024-10-27 00:30:00'),"
        " ('2024-10-27 01:30:00+00', '2024-10-27 01:30:00'), ('infinity', 'infinity')]",
        "[(1729989000000000, 1729989000000000), (1729992600000000, 1729992600000000)]",
        "transform has no meaning for a Spark frame",
        "7",
        "the Spark session that ps.use_spark was given is stopped",
        "ps.use_spark takes a Spark session, not str",
    ]
