"""The fused copy: a task reads a partition and feeds the sink in one Python worker.

The data never enters the JVM, and never comes to the driver: what comes back is one receipt per
partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.base import Partition, Progress, Receipt, RunContext, Sink
from penstock.engine.job import Job, collected
from penstock.engine.task import CopyTask, Names
from penstock.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(
    spark: SparkSession,
    partitions: Sequence[Partition],
    sink: Sink,
    names: Names,
    run: RunContext,
    on_progress: Progress | None = None,
) -> list[Receipt]:
    """Copy every partition into the sink; exactly one receipt for each, in order.

    `names` gives for each column its name in the batches and its form on the wire.
    """
    count = len(partitions)
    if count == 0:
        return []
    task = CopyTask(tuple(partitions), sink, tuple(names), run)
    frame = spark.range(0, count, 1, count).mapInArrow(task, "receipt string")
    receipts = Job(spark, collected(frame), run, on_progress).receipts()
    if [receipt.part for receipt in receipts] != list(range(count)):
        raise SparkError(
            f"{count} partitions were read, but {len(receipts)} receipts came back",
            why=f"parts {', '.join(str(receipt.part) for receipt in receipts)}",
            kept="nothing was committed",
            remedy="run again",
        )
    return receipts
