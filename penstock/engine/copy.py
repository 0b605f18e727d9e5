"""The fused copy: a task reads a partition and feeds the sink in one Python worker.

The data never enters the JVM, and never comes to the driver: what comes back is one receipt per
partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.base import Partition, Progress, Receipt, RunContext, Sink
from penstock.engine import status
from penstock.engine.job import Job, collected
from penstock.engine.task import CopyTask, Names, Piece, Work
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
    named = tuple(names)
    pieces = [Piece(partition, sink, part, named) for part, partition in enumerate(partitions)]
    receipts = copy_pieces(spark, pieces, run, on_progress)
    if [receipt.part for receipt in receipts] != list(range(count)):
        raise SparkError(
            f"{count} partitions were read, but {len(receipts)} receipts came back",
            why=f"parts {', '.join(str(receipt.part) for receipt in receipts)}",
            kept="nothing was committed",
            remedy="run again",
        )
    return receipts


def copy_pieces(
    spark: SparkSession, pieces: Sequence[Work], run: RunContext, on_progress: Progress | None = None
) -> list[Receipt]:
    """Carry out pieces of one or several loads; they begin in this order.

    A task each. Only where more tasks would run than may: as many tasks as may, each with some of the pieces.
    """
    count = len(pieces)
    if count == 0:
        return []
    most = run.at_once if run.at_once is not None and run.at_once < status.cores(spark) else count
    frame = spark.range(0, count, 1, min(count, most)).mapInArrow(CopyTask(tuple(pieces), run), "receipt string")
    return Job(spark, collected(frame), run, on_progress).receipts()
