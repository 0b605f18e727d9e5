"""The session whose classes the archive keeps: a copy, a data source, a join, an aggregate.

Runs in the archive's own process and touches no user's data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.engine import gateway, session
from penstock.engine.java import JavaHome
from penstock.engine.task import pass_on
from penstock.errors import SparkError

MEMORY = "1g"


def run(java: JavaHome, options: list[str], folder: Path, seconds: float) -> None:
    """One session with `options`; returns when its JVM has ended by itself, the dump included."""
    jvm = gateway.launch(
        gateway.command(java, folder, MEMORY, options, "local[2]"), folder, gateway.environment(folder)
    )
    config = SimpleNamespace(
        master="local[2]", remote=None, driver_memory=MEMORY, executor_memory=None, shuffle_partitions=2, conf={}
    )
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-") as sockets:  # a Unix socket's path is short
            spark = session.session_in(jvm, session.settings(config, folder, Path(sockets)))
            _exercise(spark)
            spark.stop()
            jvm.gateway.shutdown()
        if jvm.process.stdin is not None:
            jvm.process.stdin.close()
        if jvm.process.wait(seconds) != 0:
            raise SparkError("the training session failed", why=gateway.last_line(jvm.log))
    finally:
        if jvm.process.poll() is None:
            jvm.process.kill()


def _exercise(spark: Any) -> None:
    spark.range(0, 2, 1, 2).mapInArrow(pass_on, "id long").collect()
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
        def read(self, partition: Any) -> Iterator[tuple[int, str]]:  # noqa: ARG002  Spark's own signature
            yield from [(1, "a"), (2, "b")]

    class Numbers(DataSource):  # type: ignore[misc]  # pyspark is untyped here
        @classmethod
        def name(cls) -> str:
            return "penstock_training"

        def schema(self) -> str:
            return "k int, v string"

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  Spark's own signature
            return Reader()

    apart = spark.newSession()
    apart.dataSource.register(Numbers)
    apart.read.format("penstock_training").load().createOrReplaceTempView("source")
    query = (
        "select a.k, upper(a.v) v, count(*) n, sum(cast(b.k as decimal(20,2))) s, max(current_timestamp()) t "
        "from source a left join source b on a.k = b.k where a.v is not null group by a.k, a.v order by 1"
    )
    apart.sql(query).coalesce(2).mapInArrow(pass_on, "k int, v string, n long, s decimal(30,2), t timestamp").collect()
