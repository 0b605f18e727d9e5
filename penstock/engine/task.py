"""The worker's side of a Spark task: read, conform, feed the sink, send back one line of JSON.

Data and permanent errors travel back as records, because a raised exception loses kind, remedy
and keys, and Spark logs its text. Only transient ones are raised, in one line without keys, so
that Spark tries the task again. Never commits to the target and never lets an exception's own
text out: it might hold a cell's value or a secret.
"""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.backends.base import Partition, RunContext, Sink
from penstock.errors import DataError, Kind, PenstockError
from penstock.observe.process import start_of
from penstock.schema import Column

MARK = "PENSTOCK-ERROR "  # before the JSON of a transient error in the text that Spark carries
COUNTER_SECONDS = 1.0  # how often a task rewrites its counter

Names = Sequence[tuple[str, Column]]  # a column's name in the batches that are read; its form on the wire


class TransientFailure(Exception):
    """Raised out of a task so that Spark tries it again; its text is `MARK` and a record."""


def failure(error: PenstockError) -> TransientFailure:
    record = error.to_record() | {"keys": []}  # Spark logs this text, and keys stay out of logs
    return TransientFailure(MARK + json.dumps(record))


def record_in(text: str) -> dict[str, Any] | None:
    """The record that `failure` put into a text that Spark has wrapped into its own, and may have cut off."""
    _, mark, rest = text.partition(MARK)
    if not mark:
        return None
    try:
        record: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    except json.JSONDecodeError:
        return None
    return record


def unexpected(error: BaseException) -> PenstockError:
    """An exception that nobody mapped: its class and place, never its text."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return PenstockError(
        "a task failed unexpectedly",
        why=f"{type(error).__module__}.{type(error).__qualname__}{place}".removeprefix("builtins."),
        kept="nothing was committed",
        remedy="run again; if it fails in the same place, report it with this line",
    )


# ---------------------------------------------------------------- counters


def folder_of(run: RunContext) -> Path:
    return run.staging / "tasks"


@cache
def _started(pid: int) -> str | None:
    """Asked once in each worker: where there is no /proc, another process is started to answer."""
    return start_of(pid)


@dataclass
class Counter:
    """A small file of one attempt: how far it is, and which process to end when the run is cancelled."""

    path: Path
    rows: int = 0
    bytes: int = 0
    done: bool = False
    written: float = field(default=0.0)

    @staticmethod
    def of(run: RunContext, part: int) -> Counter:
        from pyspark import TaskContext

        context = TaskContext.get()
        # By Spark's partition, whose attempts are counted once: on a transform's way a part is an attempt.
        place, attempt = (part, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        counter = Counter(folder_of(run) / f"{place}.{attempt}.json")
        # The driver has made the folder. A worker on another machine may not see it, or not be let in:
        # then nobody sees how far this task is, and it ends with its job.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            counter.write()
        return counter

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            if time.monotonic() - self.written >= COUNTER_SECONDS:
                with suppress(OSError):  # progress that cannot be told stops no copy
                    self.write()

    def write(self) -> None:
        pid = os.getpid()
        state = {"pid": pid, "started": _started(pid), "host": socket.gethostname()}
        state |= {"rows": self.rows, "bytes": self.bytes, "done": self.done}
        replace_text(self.path, json.dumps(state))
        self.written = time.monotonic()

    def end(self) -> None:
        """Say that the worker is free. If it is killed before this, its pid is gone, which says the same.

        Never raises: on a full disk, or when the run's folder is gone, it would hide what ended the task.
        """
        self.done = True
        try:
            self.write()
        except OSError:
            with suppress(OSError):
                self.path.unlink()  # takes no room, and says that nobody is busy here


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


# ---------------------------------------------------------------- batches


def conform(batches: Iterator[pa.RecordBatch], names: Names) -> Iterator[pa.RecordBatch]:
    """The batches with exactly the wire's columns, found by name and of exactly the wire's types."""
    schema = pa.schema([pa.field(wire.name, wire.type, wire.nullable) for _, wire in names])
    seen: pa.Schema | None = None
    places: list[int] = []
    for batch in batches:
        if seen is None or batch.schema != seen:
            places = [_place(batch.schema, name, wire) for name, wire in names]
            seen = batch.schema
        arrays = [batch.column(place) for place in places]
        for (name, wire), array in zip(names, arrays, strict=True):
            if not wire.nullable and array.null_count:
                raise DataError(
                    f"column {name} holds NULL", why="its schema says that it cannot", kept="nothing was committed"
                )
        # A query of no columns of ours is refused at planning, so every batch knows its length.
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _place(schema: pa.Schema, name: str, wire: Column) -> int:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        raise PenstockError(
            f"column {name} " + ("came more than once" if found else "is missing in what was read"),
            why=f"the source gave {', '.join(schema.names)}",
            kept="nothing was committed",
            remedy="run again: the table may have changed since the run was planned",
        )
    place: int = found[0]
    if schema.field(place).type != wire.type:
        raise PenstockError(
            f"column {name} came as {schema.field(place).type}",
            why=f"the plan says {wire.type}",
            kept="nothing was committed",
            remedy="run again: the table may have changed since the run was planned",
        )
    return place


# ---------------------------------------------------------------- tasks


def carry_out(run: RunContext, part: int, batches: Callable[[], Iterator[pa.RecordBatch]], sink: Sink) -> str:
    """One part from its batches into the sink: the JSON of its receipt, or of an error record."""
    error: PenstockError
    counter: Counter | None = None
    try:
        counter = Counter.of(run, part)
        receipt = sink.write(part, counter.counted(batches()))
        return json.dumps({"receipt": receipt.to_record()})
    except TransientFailure:
        raise  # of a Spark Python data source, below us in the same worker
    except PenstockError as known:
        error = known
    except OSError as broken:
        error = PenstockError(
            f"a task failed: {os.strerror(broken.errno) if broken.errno else type(broken).__name__}",
            why=type(broken).__name__,
            kept="nothing was committed",
            remedy=f"check the folder {run.staging}",
        )
    except Exception as unknown:  # noqa: BLE001  becomes an error record, told by the driver
        error = unexpected(unknown)
    finally:
        if counter is not None:
            counter.end()
        # The worker waits beside the driver's commit, which has a use for what Arrow would keep for the next task.
        pa.default_memory_pool().release_unused()
    # Outside of the handlers: a chained exception's text would reach Spark's log.
    if error.kind is Kind.TRANSIENT:
        raise failure(error)
    tell(run, error)
    return json.dumps({"error": error.to_record()})


def tell(run: RunContext, error: PenstockError) -> None:
    """Leave an error where the driver looks while the other tasks still run.

    On a full disk it is not left: it travels with the task's own end, only later.
    """
    path = folder_of(run) / f"{uuid.uuid4().hex}.error"
    beside = path.with_suffix(".part")
    with suppress(OSError):
        # Only for this user's eyes: the record may hold key values.
        with os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump({"error": error.to_record()}, file)
        beside.replace(path)


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` runs to warm a session up: nothing."""
    yield from batches


RESULT = pa.schema([pa.field("receipt", pa.string())])


class Work(Protocol):
    """What one task carries out: rows that it makes or reads, into a sink."""

    @property
    def part(self) -> int: ...  # as the sink counts

    @property
    def sink(self) -> Sink: ...

    def read(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class Piece:
    """What one task copies."""

    partition: Partition
    sink: Sink
    part: int  # as the sink counts
    names: Names

    def read(self) -> Iterator[pa.RecordBatch]:
        return conform(self.partition.read(), self.names)


@dataclass(frozen=True)
class CopyTask:
    """What `mapInArrow` runs on the fused path: row `i` of the range is piece `i`."""

    pieces: tuple[Work, ...]
    run: RunContext

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for number in batch.column(0).to_pylist():
                piece = self.pieces[number]
                line = carry_out(self.run, piece.part, piece.read, piece.sink)
                yield pa.RecordBatch.from_arrays([pa.array([line])], schema=RESULT)
