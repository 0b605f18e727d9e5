"""Rows that the caller hands over: an Arrow table or reader, a pandas frame, a Spark frame.

They are a source like any other, without a connection. Arrow rows go to the tasks as files in the
run's staging, never inside a closure; a reader is written to a file first, batch by batch, so that
no more than a batch of it is in memory and an attempt after the first finds every row again. A Spark
frame stays in Spark: nothing of it is ever collected.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa

from penstock.backends.base import (
    Backend,
    Capabilities,
    ConnectionConfig,
    Cursor,
    ReadRequest,
    ReadsFrames,
    RunContext,
    Source,
    Split,
    TableInfo,
    Target,
    Window,
)
from penstock.backends.exchange import Exchange
from penstock.backends.memory.capabilities import CAPABILITIES
from penstock.backends.memory.read import MemorySource
from penstock.backends.memory.store import Store, StoredTable
from penstock.backends.memory.types import canonical_table
from penstock.errors import ConfigError, SourceError, Unsupported
from penstock.run.frames import from_pandas
from penstock.schema import Column, Schema, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "python"  # what stands for the connection in plans and in the history
TABLE = "data"


class HandedConfig(ConnectionConfig):
    type: Literal["python"] = "python"
    name: str = NAME


class Handed(Backend):
    """What the caller handed over, in the place of a backend."""

    capabilities: Capabilities = replace(CAPABILITIES, name=NAME, title="Rows of the caller", writes=False)  # type: ignore[misc]  # one of its own
    config = HandedConfig
    staged = True  # tasks of a session of ours read it

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        raise Unsupported(f"rows of the caller are no target of run {run.run_id} ({config.name})")

    def test(self, config: ConnectionConfig) -> str:
        del config
        return "rows of the caller"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        del config
        return []

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        del a, b
        return False, "the rows come from the caller"


class HandedTable(Handed):
    """An Arrow table, in memory or mapped from a file."""

    def __init__(self, table: pa.Table, notes: tuple[str, ...] = ()) -> None:
        self._store = Store(NAME)
        self._store.put({TableName(None, TABLE): StoredTable(canonical_table(table))})
        self._notes = notes

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        del config
        return _TableSource(self._store, request, run, self._notes)


class _TableSource(MemorySource):
    def __init__(self, store: Store, request: ReadRequest, run: RunContext, notes: tuple[str, ...]) -> None:
        super().__init__(store.snapshot(), request, run)
        self._told = notes

    def notes(self) -> tuple[str, ...]:
        return (*self._told, *super().notes())


class HandedFrame(Handed):
    """A Spark frame of a session that is the user's."""

    staged = False

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        del config, request, run
        return FrameSource(self._frame)


class FrameSource(Source, ReadsFrames):
    """A Spark frame as it is: it goes on in its own session."""

    reader = "the frame's own Spark session"

    def __init__(self, given: DataFrame) -> None:
        self.given = given

    def schema(self) -> Schema:
        from penstock.engine.sparktypes import from_spark

        return from_spark(self.given.schema)

    def primary_key(self) -> tuple[str, ...]:
        return ()

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        del columns, want, window
        return Split((), "the frame has its own")

    def upper(self, cursor: Cursor) -> str:
        raise Unsupported(f"a Spark frame has no window by {cursor.column}", remedy="leave incremental out")

    def frame(self, spark: SparkSession, columns: Sequence[Column], schema: StructType) -> DataFrame:
        del spark, columns, schema
        return self.given


@contextmanager
def handed(data: Any, staging: Path) -> Iterator[Handed]:
    """What a caller's rows are, for as long as they are read."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield HandedTable(data)
    elif isinstance(data, pa.RecordBatchReader):
        with _spooled(data, staging) as table:
            yield HandedTable(table)
    elif _is(data, "pandas", "DataFrame"):
        table, notes = from_pandas(data)
        yield HandedTable(table, notes)
    elif _is(data, "pyspark", "DataFrame"):
        yield HandedFrame(data)
    else:
        _refuse(data)


@contextmanager
def _spooled(reader: pa.RecordBatchReader, staging: Path) -> Iterator[pa.Table]:
    """The reader's rows in a file, mapped: however many they are, no more than a batch is in memory."""
    run = RunContext(uuid.uuid4().hex, NAME, staging / NAME)
    exchange = Exchange(run)
    schema = canonical_table(reader.schema.empty_table()).schema
    try:
        file = exchange.file(schema, lambda: _canonical(reader, run))
        exchange.write()
        with pa.memory_map(str(file)) as mapped:
            yield pa.ipc.open_file(mapped).read_all()
    finally:
        exchange.close()


def _canonical(reader: pa.RecordBatchReader, run: RunContext) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            width = batch.nbytes // max(batch.num_rows, 1) + 1
            rows = max(1, min(run.batch_rows, run.batch_bytes // width))
            yield from canonical_table(pa.Table.from_batches([batch])).to_batches(max_chunksize=rows)
    except OSError as error:  # not of the file that they are written to
        raise SourceError(
            "the reader that was handed over failed",
            why=error.strerror or type(error).__name__,
            kept="nothing was touched",
            remedy="make it anew, and call ps.write again",
        ) from error


def _is(data: Any, package: str, name: str) -> bool:
    """Whether it is such a frame, without importing what it would come from."""
    return any(cls.__name__ == name and cls.__module__.partition(".")[0] == package for cls in type(data).__mro__)


def _refuse(data: Any) -> NoReturn:
    raise ConfigError(
        f"ps.write takes rows, not {type(data).__name__}",
        why="it knows an Arrow table, batch or reader, a pandas DataFrame and a Spark DataFrame",
        remedy="pa.table({…}) makes an Arrow table; of rows in a database, ps.sync copies them",
    )
