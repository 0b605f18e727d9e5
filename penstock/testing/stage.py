"""Rows moved in this process, one partition after the other: quick for a few rows, and without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.backends.base import Partition, Receipt, Sink
from penstock.project.model import Project
from penstock.run.pipeline import stage_with_spark
from penstock.run.prepare import Prepared


def stage_here(
    project: Project, prepared: Prepared, sink: Sink, on_progress: Callable[[int, int], None]
) -> list[Receipt]:
    """What Spark's tasks do, in turn. A transform is Spark's own work, so that one goes there."""
    if prepared.transform is not None:
        return stage_with_spark(project, prepared, sink, on_progress)
    receipts = []
    for part, partition in enumerate(prepared.split.partitions):
        receipts.append(sink.write(part, _renamed(partition, dict(prepared.wires()))))
        on_progress(sum(receipt.rows for receipt in receipts), 0)
    return receipts


def _renamed(partition: Partition, wires: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for batch in partition.read():
        yield batch.rename_columns([wires[name].name for name in batch.schema.names])
