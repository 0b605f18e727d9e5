"""Plain PySpark, warm session, as it is written by hand: JDBC, Parquet, SQL. Runs in Penstock's environment.

Two partitions over the key, 10,000 rows per fetch and per batch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PINS = None
JOBS = {"duckdb", "parquet", "postgres", "join"}
DRIVER = ("org.postgresql", "postgresql", "42.7.8")
PARTITIONS = 2
FETCH_ROWS = 10_000
BATCH_ROWS = 10_000


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
    {"duckdb": _into_duckdb, "parquet": _into_parquet, "postgres": _into_postgres, "join": _join}[job["kind"]](
        settings, job
    )


def _into_parquet(settings: dict[str, Any], job: dict[str, Any]) -> None:
    _table(settings, job["table"], job["rows"]).write.mode("overwrite").parquet(job["path"])


def _into_duckdb(settings: dict[str, Any], job: dict[str, Any]) -> None:
    import duckdb

    files = Path(settings["folder"]) / "spark_jdbc"
    shutil.rmtree(files, ignore_errors=True)
    _table(settings, job["table"], job["rows"]).write.parquet(str(files))
    with duckdb.connect(job["path"]) as session:
        session.execute(f"create table {job['target_table']} as from read_parquet('{files}/*.parquet')")
    shutil.rmtree(files)


def _into_postgres(settings: dict[str, Any], job: dict[str, Any]) -> None:
    # `stringtype` lets the server make a uuid out of the text that Spark has for it.
    frame = settings["spark"].read.parquet(job["files"]).coalesce(PARTITIONS)
    options = _options(settings["target"], f"?stringtype=unspecified&{REWRITE}")
    frame.write.format("jdbc").options(**options).option("dbtable", job["target_table"]).option(
        "batchsize", BATCH_ROWS
    ).option("truncate", "true").mode("append").save()


def _join(settings: dict[str, Any], job: dict[str, Any]) -> None:
    for name, (table, rows) in job["views"].items():
        _table(settings, table, rows).createOrReplaceTempView(name)
    settings["spark"].sql(job["sql"]).write.mode("overwrite").parquet(job["path"])


# Spark sends a row at a time in a batch; the driver may join them into one statement.
REWRITE = "reWriteBatchedInserts=true"


def _options(end: dict[str, Any], more: str = "") -> dict[str, str]:
    return {
        "url": f"jdbc:postgresql://{end['host']}:{end['port']}/{end['database']}{more}",
        "driver": "org.postgresql.Driver",
        "user": end["user"],
        "password": end["password"],
    }


def _table(settings: dict[str, Any], table: str, rows: int) -> DataFrame:
    return (
        settings["spark"]
        .read.format("jdbc")
        .options(**_options(settings["source"]))
        .option("dbtable", table)
        .option("fetchsize", FETCH_ROWS)
        .option("partitionColumn", "id")
        .option("lowerBound", 1)
        .option("upperBound", rows)
        .option("numPartitions", PARTITIONS)
        .load()
    )
