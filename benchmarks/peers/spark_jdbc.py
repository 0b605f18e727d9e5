"""Spark's own JDBC source into Parquet, then DuckDB's `read_parquet`: the usual way on Spark, warm session.

Two partitions over the key, 10,000 rows per fetch. Runs in Penstock's environment.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

PINS = None
JOBS = {"duckdb"}
DRIVER = ("org.postgresql", "postgresql", "42.7.8")
PARTITIONS = 2
FETCH_ROWS = 10_000


def start(settings: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{PARTITIONS}]")
        .config("spark.jars", settings["jar"])
        .config("spark.driver.memory", settings["driver_memory"])
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    return settings | {"spark": spark}


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    import duckdb

    end = settings["source"]
    files = Path(settings["folder"]) / "spark_jdbc"
    shutil.rmtree(files, ignore_errors=True)
    frame = (
        settings["spark"]
        .read.format("jdbc")
        .option("url", f"jdbc:postgresql://{end['host']}:{end['port']}/{end['database']}")
        .option("driver", "org.postgresql.Driver")
        .option("user", end["user"])
        .option("password", end["password"])
        .option("dbtable", job["table"])
        .option("fetchsize", FETCH_ROWS)
        .option("partitionColumn", "id")
        .option("lowerBound", 1)
        .option("upperBound", job["rows"])
        .option("numPartitions", PARTITIONS)
        .load()
    )
    frame.write.parquet(str(files))
    with duckdb.connect(job["path"]) as session:
        session.execute(f"create table {job['target_table']} as from read_parquet('{files}/*.parquet')")
    shutil.rmtree(files)
