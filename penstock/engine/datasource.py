"""The partitions of a run as a Spark Python data source, so that a transform can read them.

`read` yields Arrow batches of exactly the Spark schema. The partitions travel inside the pickled
class: options would be printed in plans, and a partition may hold a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.backends.base import Partition, RunContext
from penstock.engine.convert import forth
from penstock.engine.task import conform, failure, tell, unexpected
from penstock.errors import Kind, PenstockError
from penstock.schema import Schema


def source_class(partitions: Sequence[Partition], schema: Schema, run: RunContext, view: str) -> tuple[str, type]:
    """A data source class for one view of one run, and the format name under which it is to be registered."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from penstock.engine.sparktypes import to_spark

    name = f"penstock_{run.run_id}_{view}"
    spark_schema = to_spark(schema)
    pieces = tuple(partitions)

    class Piece(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
        def __init__(self, number: int) -> None:
            self.number = number

    class Reader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
        def partitions(self) -> Sequence[Any]:
            return [Piece(number) for number in range(len(pieces))] or [Piece(-1)]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            if partition.number >= 0:
                yield from batches(pieces[partition.number], schema, run)

    class Source(DataSource):  # type: ignore[misc]  # pyspark is untyped here
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> Any:
            return spark_schema

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  Spark's own signature
            return Reader()

    return name, Source


def batches(partition: Partition, schema: Schema, run: RunContext) -> Iterator[pa.RecordBatch]:
    """A partition's batches as Spark wants them. Errors are told beside the data: Spark carries only text."""
    error: PenstockError
    try:
        for batch in conform(partition.read(), [(column.name, column) for column in schema]):
            arrays = [forth(array) for array in batch.columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(schema.names))
        return
    except PenstockError as known:
        error = known
    except Exception as unknown:  # noqa: BLE001  becomes an error record, told by the driver
        error = unexpected(unknown)
    if error.kind is not Kind.TRANSIENT:
        # Raised only to end the task; the driver takes the record and cancels the rest.
        tell(run, error)
    raise failure(error)
