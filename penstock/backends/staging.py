"""Local staging for targets with one writer: tasks leave Parquet files, the driver loads them.

A folder per run:

    <base>/<run>.lock          held by the run's driver as long as it lives
    <base>/<run>/token         the run's id, read by every task before it writes
    <base>/<run>/t0-p3-<attempt>.parquet
    <base>/<run>/r0-p3.json    the receipt of part 3 of table 0; the first attempt to link it wins

Only files named by a receipt are loaded. Never load by a glob: an attempt that lost its race, or
died before its receipt, has left a file that is whole and must not count. Nothing is removed but
a run's own: a folder named like a run that holds the token of that run, or nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.backends.base import Receipt, RunContext, Sink, as_record
from penstock.backends.locks import FileLock, cannot_write
from penstock.errors import DataError, StagingLost, TargetError, Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import Column
from penstock.schema.columns import TIMESTAMP_INFINITY

TOKEN = "token"  # noqa: S105  a file's name
RUN_ID = re.compile(r"[0-9a-f]{32}")  # how the folder of a run is named
# Below this, staging is not even begun: a run that dies of a full disk takes others with it.
FREE_FLOOR = 64 * 1024 * 1024
# Fast on both sides and half the size of nothing; zstd saves a third more and costs twice the CPU.
COMPRESSION = "lz4"


# ---------------------------------------------------------------- what the files hold


def stored_type(type_: pa.DataType) -> pa.DataType | None:
    """The type a Parquet file holds for a canonical type, None where it cannot hold it exactly."""
    if pa.types.is_timestamp(type_):
        # Parquet has no seconds; infinity would overflow on the way to a finer unit.
        return pa.timestamp("us", type_.tz) if type_.unit in {"s", "ms"} else type_
    if pa.types.is_decimal128(type_):
        return type_ if 0 <= type_.scale <= type_.precision else None
    if pa.types.is_list(type_):
        child = stored_type(type_.value_type)
        return None if child is None else pa.list_(child)
    if pa.types.is_map(type_):
        key, value = stored_type(type_.key_type), stored_type(type_.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if pa.types.is_struct(type_):
        fields = [(field.name, stored_type(field.type)) for field in type_]
        return pa.struct(fields) if fields and all(child is not None for _, child in fields) else None
    return type_ if type_ in _AS_THEY_ARE else None


_AS_THEY_ARE = frozenset(
    {
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.uuid(), pa.json_()),
        *(pa.date32(), pa.time64("us"), pa.time64("ns")),
    }
)


def stored_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a staging file; refuses what Parquet would change (durations, intervals)."""
    fields = []
    for column in columns:
        stored = stored_type(column.type)
        if stored is None:
            raise Unsupported(
                f"column {column.name!r} cannot be staged exactly",
                why=f"Parquet does not hold {column.type} as it is",
                remedy=f'columns.{column.name} = "text"',
            )
        fields.append(pa.field(column.name, stored))
    return pa.schema(fields)


def to_stored(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array as the file holds it."""
    if array.type == type_:
        return array
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(type_):
        return _finer(array, type_)
    return array.cast(type_)


def _finer(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Seconds or milliseconds as microseconds, infinities staying what they are."""
    numbers = array.cast(pa.int64())
    infinite = pc.equal(pc.abs(numbers), TIMESTAMP_INFINITY)
    factor = 1_000_000 if array.type.unit == "s" else 1_000
    try:
        scaled = pc.multiply_checked(pc.if_else(infinite, 0, numbers), factor)
    except pa.ArrowInvalid as error:
        raise DataError(
            "a timestamp is out of range",
            why=f"{array.type} reaches further than {type_}",
            kept="nothing was committed",
        ) from error
    return pc.if_else(infinite, numbers, scaled).cast(type_)


# ---------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True)
class ParquetSink(Sink):
    """Stages one table's parts as files."""

    folder: Path
    run_id: str
    table: int
    schema: pa.Schema

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        self._check_token()
        if (done := self._receipt(part)) is not None:
            return done
        name = f"t{self.table}-p{part}-{uuid.uuid4().hex}.parquet"
        final, partial = self.folder / name, self.folder / f"{name}.part"
        published = False
        try:
            rows = self._fill(partial, batches)
            sync(partial)
            partial.rename(final)
            failpoint("sink.staged")
            # If we died here, the file is whole but nothing names it: it will not be loaded.
            receipt = Receipt(self.table, part, rows, final.stat().st_size, name, os.getpid())
            winner = self._publish(receipt)
            published = winner == receipt
        except OSError as error:
            raise self._failed(error) from error
        finally:
            partial.unlink(missing_ok=True)
            if not published:
                final.unlink(missing_ok=True)
        # If we died here, the receipt stands, and the next attempt at this part returns it.
        failpoint("sink.receipt")
        return winner

    def _fill(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        rows = 0
        with pa.OSFile(str(path), "wb") as file:
            writer = pq.ParquetWriter(
                file,
                self.schema,
                compression=COMPRESSION,
                use_dictionary=False,
                write_statistics=False,
                store_schema=False,
            )
            try:
                failpoint("sink.open")
                for batch in batches:
                    if batch.num_rows:
                        writer.write_batch(self._stored(batch))
                        rows += batch.num_rows
                writer.close()
            except BaseException:
                # Its finaliser would put a footer under half the rows and make a valid file of them.
                writer.is_open = False
                raise
        return rows

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if sorted(batch.schema.names) != sorted(self.schema.names):
            raise TargetError(
                "a task got other columns than were planned",
                why=f"{', '.join(batch.schema.names)} instead of {', '.join(self.schema.names)}",
                kept="nothing was committed",
            )
        columns = [to_stored(batch.column(field.name), field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _publish(self, receipt: Receipt) -> Receipt:
        """Make the receipt durable unless another attempt has; whichever receipt counts."""
        temporary = self.folder / f"{receipt.ref}.receipt"
        try:
            with temporary.open("w") as file:
                json.dump(as_record(receipt), file)
                file.flush()
                os.fsync(file.fileno())
            try:
                # A link appears whole or not at all, and fails if the name is taken: two racing
                # attempts cannot both win, and nobody reads half a receipt.
                os.link(temporary, self._receipt_file(receipt.part))
            except FileExistsError:
                won = self._receipt(receipt.part)
                if won is None:
                    raise
                return won
            sync(self.folder)
            return receipt
        finally:
            temporary.unlink(missing_ok=True)

    def _receipt_file(self, part: int) -> Path:
        return self.folder / f"r{self.table}-p{part}.json"

    def _receipt(self, part: int) -> Receipt | None:
        try:
            return Receipt(**json.loads(self._receipt_file(part).read_text()))
        except FileNotFoundError:
            return None

    def _check_token(self) -> None:
        """Prove that this is the driver's own folder, and that nobody has swept it."""
        try:
            found = (self.folder / TOKEN).read_text()
        except OSError:
            found = ""
        if found != self.run_id:
            raise StagingLost(
                f"the run's staging folder {self.folder} is not here",
                why="a worker does not find the token that the driver left in it",
                kept="nothing was committed",
                remedy="with workers on other machines, set `staging` to a folder that all of them share",
            )

    def _failed(self, error: OSError) -> Exception:
        if error.errno == errno.ENOENT:
            return StagingLost(
                f"the run's staging folder {self.folder} has vanished",
                kept="nothing was committed",
                remedy="run it again",
            )
        return cannot_write(error, self.folder)


def sync(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- the driver


class StagingArea:
    """One run's folder, alive as long as its lock is held."""

    def __init__(self, base: Path, run: RunContext, lock: FileLock) -> None:
        self.base = base
        self.run_id = run.run_id
        self.folder = base / run.run_id
        self._lock = lock

    @staticmethod
    def create(base: Path, run: RunContext, *, expected_bytes: int | None = None) -> StagingArea:
        """An empty folder. Its lock comes first: a sweep between the two would take it for dead."""
        try:
            area = StagingArea(base, run, _lock_run(base, run))
            try:
                area.folder.mkdir()
                area._check_space(expected_bytes)
                token = area.folder / TOKEN
                token.write_text(run.run_id)
                sync(token)
                sync(area.folder)
            except BaseException:
                area.close()
                raise
        except OSError as error:
            raise cannot_write(error, base if base.parent.is_dir() else base.parent) from error
        return area

    def sink(self, table: int, columns: Sequence[Column]) -> ParquetSink:
        return ParquetSink(self.folder, self.run_id, table, stored_schema(columns))

    def files(self, table: int, receipts: Sequence[Receipt]) -> list[Path]:
        """The files that the receipts name, proved to be there, whole, and of no part twice."""
        mine = sorted((receipt for receipt in receipts if receipt.table == table), key=lambda receipt: receipt.part)
        if len({receipt.part for receipt in mine}) != len(mine):
            raise self._lost("a part has two receipts")
        return [self._proved(receipt) for receipt in mine]

    def _proved(self, receipt: Receipt) -> Path:
        path = self.folder / receipt.ref
        try:
            whole = path.stat().st_size == receipt.bytes and pq.read_metadata(path).num_rows == receipt.rows
        except (OSError, pa.ArrowInvalid) as error:
            raise self._lost(f"the file of part {receipt.part} cannot be read") from error
        if not whole:
            raise self._lost(f"the file of part {receipt.part} is not what its receipt says")
        return path

    def _lost(self, why: str) -> StagingLost:
        return StagingLost(
            "what was staged is not what the tasks reported",
            why=why,
            kept="nothing was committed",
            remedy="run it again; if it happens twice, look for something that cleans the staging area",
        )

    def _check_space(self, expected_bytes: int | None) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < max(expected_bytes or 0, FREE_FLOOR):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def remove(self) -> None:
        """Remove what was staged. Safe twice."""
        _remove_run(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove what was staged, then let go: in the other order a sweep might race with us."""
        self.remove()
        self._lock.release()
        _remove_empty(self.base)


def _lock_run(base: Path, run: RunContext) -> FileLock:
    while True:
        base.mkdir(parents=False, exist_ok=True)
        try:
            return FileLock.acquire(base / f"{run.run_id}.lock", run.run_id, run.pipeline, f"staging of {run.run_id}")
        except TargetError as error:
            # The base was empty, and the last run that used it removed it just now.
            if isinstance(error.__cause__, FileNotFoundError):
                continue
            raise


def sweep(base: Path) -> tuple[str, ...]:
    """Remove the folders of dead runs: those whose lock is free. Their names."""
    leftovers = sorted(path for path in base.iterdir() if _is_run(path)) if base.is_dir() else []
    dead = [
        (path, lock) for path in leftovers if (lock := FileLock.try_acquire(base / f"{path.name}.lock")) is not None
    ]
    try:
        if dead:
            failpoint("sweep.begin")
        for path, _ in dead:
            _remove_run(path)
    except OSError as error:
        raise cannot_write(error, base) from error
    finally:
        for _, lock in dead:
            lock.release()
    if dead:
        failpoint("sweep.done")
    for orphan in base.glob("*.lock") if base.is_dir() else ():
        if RUN_ID.fullmatch(orphan.stem) and (lock := FileLock.try_acquire(orphan)) is not None:
            lock.release()
    return tuple(path.name for path, _ in dead)


def _is_run(folder: Path) -> bool:
    """Whether a run has made this folder: whatever else lies in the base is somebody's own."""
    if not RUN_ID.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    if TOKEN not in names:
        return not names
    # A run that died while it wrote its token has left an empty one, and nothing beside it.
    text = (folder / TOKEN).read_text(errors="replace")
    return text == folder.name or (text == "" and names == {TOKEN})


def _remove_run(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a run's folder, the token last: if we died half way, the next sweep still knows it."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name != TOKEN and not entry.is_dir():
            entry.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=ignore_errors)


def _remove_empty(base: Path) -> None:
    try:
        base.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST}:
            raise
