"""Partitions and sinks of the engine's own tests: generated rows into Parquet with a receipt beside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.backends.base import Partition, Receipt, Sink
from penstock.errors import DataError, LinkLost, PenstockError
from penstock.schema import Column
from tests.waiting import await_true

BATCH = 50_000
MEETING_SECONDS = 60.0
WIRE = [("id", Column("id", pa.int64())), ("label", Column("name", pa.string()))]


def meet(folder: Path) -> None:
    """Wait until two workers are at work."""
    (folder / str(os.getpid())).touch()
    await_true(lambda: len(list(folder.iterdir())) >= 2, MEETING_SECONDS, lambda: "no second worker came")


@dataclass(frozen=True)
class Numbers(Partition):
    """Rows `start` … `stop`: an id and its text. With `meeting`, not before two workers are at work."""

    start: int
    stop: int
    meeting: Path | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        if self.meeting is not None:
            meet(self.meeting)
        for start in range(self.start, self.stop, BATCH):
            ids = pa.array(range(start, min(start + BATCH, self.stop)), pa.int64())
            yield pa.RecordBatch.from_pydict({"label": pc.cast(ids, pa.string()), "id": ids})


@dataclass(frozen=True)
class Table(Partition):
    """Given batches, as IPC bytes."""

    data: bytes

    @staticmethod
    def of(*batches: pa.RecordBatch) -> Table:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return Table(sink.getvalue().to_pybytes())

    def read(self) -> Iterator[pa.RecordBatch]:
        yield from pa.ipc.open_stream(self.data)


@dataclass(frozen=True)
class Failing(Partition):
    """Gives a row, then fails: always, or only until `once` exists."""

    error: PenstockError
    once: Path | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64()), "label": pa.array(["1"])})
        if self.once is None:
            raise self.error
        if not self.once.exists():
            self.once.touch()
            raise self.error


@dataclass(frozen=True)
class Crashing(Partition):
    """Its worker dies by SIGKILL: always, or only until `once` exists."""

    once: Path | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64()), "label": pa.array(["1"])})
        if self.once is None or not self.once.exists():
            if self.once is not None:
                self.once.touch()
            os.kill(os.getpid(), 9)


@dataclass(frozen=True)
class Endless(Partition):
    """Rows for ever; `marker` appears with the first."""

    marker: Path

    def read(self) -> Iterator[pa.RecordBatch]:
        number = 0
        while True:
            self.marker.touch()
            yield pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64()), "label": pa.array(["x"])})
            number += 1
            time.sleep(0.01)


@dataclass(frozen=True)
class ParquetSink(Sink):
    """Stages a part as a file and makes its receipt by an exclusive link: the first attempt wins."""

    folder: Path
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("id", pa.int64()), ("name", pa.string())]))

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        rows = size = 0
        name = f"{part}-{os.getpid()}-{time.monotonic_ns()}.parquet"
        with pq.ParquetWriter(self.folder / name, self.schema) as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
                rows, size = rows + batch.num_rows, size + batch.nbytes
        receipt = Receipt(0, part, rows, size, name, os.getpid())
        draft = self.folder / f"{name}.receipt"
        draft.write_text(json.dumps(receipt.to_record()))
        try:
            os.link(draft, self.folder / f"{part}.receipt")
        except FileExistsError:
            return Receipt(**json.loads((self.folder / f"{part}.receipt").read_text()))
        return receipt

    def read(self, receipts: list[Receipt]) -> pa.Table:
        return pa.concat_tables([pq.read_table(self.folder / receipt.ref, schema=self.schema) for receipt in receipts])


LOST = LinkLost("the server went away", why="connection reset", remedy="run again")
UNFIT = DataError("column price holds a value that does not fit", why="numeric(5,2)", keys=("id=7", "id=9"))
