"""Local staging for targets with one writer: tasks leave Parquet or Arrow files, the driver loads them.

A folder per run:

    <base>/<run>.lock          held by the run's driver as long as it lives
    <base>/<run>/token         the run's id, read by every task before it writes
    <base>/<run>/t0-p3-<attempt>.parquet
    <base>/<run>/r0-p3.json    the receipt of part 3 of table 0; the first attempt to link it wins
    <base>/<run>/kept          where the next start of the run goes on with what is there

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
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.backends.base import Receipt, RunContext, Sink
from penstock.backends.locks import BY_PROJECT, FileLock, ProcessLock, cannot_write
from penstock.backends.stored import stored_schema, to_stored
from penstock.errors import Busy, StagingLost, TargetError
from penstock.observe.failpoints import failpoint
from penstock.schema import Column

TOKEN = "token"  # noqa: S105  a file's name
KEPT = "kept"  # a file of a run that goes on after its process has died: a sweep leaves its folder alone
RUN_ID = re.compile(r"[0-9a-f]{32}")  # how the folder of a run is named
# Below this, staging is not even begun: a run that dies of a full disk takes others with it.
FREE_FLOOR = 64 * 1024 * 1024
# A sweep looks at a lock file that nobody holds for an instant only.
SWEEP_SECONDS = 10.0
# Fast on both sides and half the size of nothing; zstd saves a third more and costs twice the CPU.
COMPRESSION = "lz4"


# ---------------------------------------------------------------- workers


@dataclass(frozen=True)
class StagingSink(Sink):
    """Stages one table's parts as files, each part with its receipt in one step: first attempt wins.

    A target with files of its own says in `_stage` how they are written; the protocol is the same.
    """

    folder: Path
    run_id: str
    table: int
    elsewhere: str = field(default="", kw_only=True)  # what to do where the folder's disk is full

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        check_token(self.folder, self.run_id)
        if (done := self._receipt(part)) is not None:
            return done
        stem = f"t{self.table}-p{part}-{uuid.uuid4().hex}"
        made: list[Path] = []
        receipt: Receipt | None = None
        published = False
        try:
            receipt = self._stage(part, stem, batches, made)
            failpoint("sink.staged")
            # If we died here, the file is whole but nothing names it: it will not be loaded.
            winner = self._publish(receipt, stem)
            published = winner == receipt
        except OSError as error:
            # The link may have been made before it: then every attempt gets this receipt, and its files count.
            if receipt is None or self._receipt(part) != receipt:
                raise self._failed(error) from error
            winner, published = receipt, True
        finally:
            for path in () if published else made:
                with suppress(OSError):  # swept with the folder; it must not hide what went wrong
                    path.unlink()
        # If we died here, the receipt stands, and the next attempt at this part returns it.
        failpoint("sink.receipt")
        return winner

    @abstractmethod
    def _stage(self, part: int, stem: str, batches: Iterator[pa.RecordBatch], made: list[Path]) -> Receipt:
        """Write the part's files, whole and on the disk; `stem` is this attempt's own.

        Every path is noted in `made` before it exists: an attempt that fails or loses takes them away.
        """

    def _publish(self, receipt: Receipt, stem: str) -> Receipt:
        """Make the receipt durable unless another attempt has; whichever receipt counts."""
        temporary = self.folder / f"{stem}.receipt"
        try:
            with temporary.open("w") as file:
                json.dump(receipt.to_record(), file)
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
            with suppress(OSError):
                temporary.unlink()

    def _receipt_file(self, part: int) -> Path:
        return self.folder / f"r{self.table}-p{part}.json"

    def _receipt(self, part: int) -> Receipt | None:
        try:
            return Receipt(**json.loads(self._receipt_file(part).read_text()))
        except FileNotFoundError:
            return None

    def _failed(self, error: OSError) -> Exception:
        if error.errno == errno.ENOENT:
            return StagingLost(
                f"the run's staging folder {self.folder} has vanished",
                kept="nothing was committed",
                remedy="run it again",
            )
        return cannot_write(error, self.folder, self.elsewhere)


@dataclass(frozen=True)
class FileSink(StagingSink):
    """Stages parts as files of one format, which the driver loads."""

    suffix: ClassVar[str]

    schema: pa.Schema

    @abstractmethod
    def _fill(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        """A whole file of all batches; the number of its rows. A broken one must not look whole."""

    def _stage(self, part: int, stem: str, batches: Iterator[pa.RecordBatch], made: list[Path]) -> Receipt:
        name = f"{stem}{self.suffix}"
        final, partial = self.folder / name, self.folder / f"{name}.part"
        made += [partial, final]
        rows = self._fill(partial, batches)
        sync(partial)
        partial.rename(final)
        return Receipt(self.table, part, rows, final.stat().st_size, name, os.getpid())


@dataclass(frozen=True)
class ParquetSink(FileSink):
    """For targets that read Parquet by themselves."""

    suffix: ClassVar[str] = ".parquet"

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


def staged_batches(file: pq.ParquetFile, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """What tasks have written, no more of it at once than a batch of theirs was.

    Arrow fills a batch by rows alone, across row groups: of wide rows the whole file would be one.
    """
    for group in range(file.num_row_groups):
        yield from file.iter_batches(row_groups=[group], columns=names, use_threads=False)


@dataclass(frozen=True)
class ArrowSink(FileSink):
    """For targets that keep Arrow: every type as it is."""

    suffix: ClassVar[str] = ".arrow"

    def _fill(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        failpoint("sink.open")
        return write_arrow(path, self.schema, batches, COMPRESSION)


def write_arrow(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None = None
) -> int:
    """One Arrow file, batch by batch; the number of its rows. Without its end a file is none.

    What is not compressed can be read where it lies, by mapping the file.
    """
    rows = 0
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file:
        writer = pa.ipc.new_file(file, schema, options=options)
        for batch in batches:
            if batch.num_rows:
                writer.write_batch(batch)
                rows += batch.num_rows
        writer.close()
    return rows


def check_token(folder: Path, run_id: str) -> None:
    """Prove that this is the driver's own folder, and that nobody has swept it."""
    try:
        found = (folder / TOKEN).read_text()
    except OSError:
        found = ""
    if found != run_id:
        raise StagingLost(
            f"the run's staging folder {folder} is not here",
            why="a worker does not find the token that the driver left in it",
            kept="nothing was committed",
            remedy="with workers on other machines, it must be in a folder that all of them share",
        )


def lost(why: str) -> StagingLost:
    return StagingLost(
        "what was staged is not what the tasks reported",
        why=why,
        kept="nothing was committed",
        remedy="run it again; if it happens twice, look for something that cleans the staging area",
    )


def make_folders(folder: Path) -> None:
    """A folder and those above it, each on the disk in its own parent: a file in it is lost with any of them."""
    levels = [folder, *folder.parents]
    there = next(place for place, level in enumerate(levels) if level.exists())
    # From above, each on the disk before the next is made. If we die in between, the last one may not be: whoever
    # comes next finds it there, and begins with it.
    for place in range(there, -1, -1):
        if place < there:
            levels[place].mkdir(exist_ok=True)
        with suppress(PermissionError):  # of a folder that others have made and we may only pass
            sync(levels[place].parent)


def sync_folders(paths: Iterable[Path], base: Path) -> None:
    """Bring the entries of all folders on the way from `base` to these files to the disk."""
    on_the_way = {folder for path in paths for folder in path.parents if folder.is_relative_to(base)}
    for folder in sorted(on_the_way):
        sync(folder)


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

    def __init__(self, base: Path, run: RunContext, lock: FileLock, elsewhere: str = "") -> None:
        self.base = base
        self.elsewhere = elsewhere
        self.run_id = run.run_id
        self.folder = base / run.run_id
        self._lock = lock

    @staticmethod
    def create(base: Path, run: RunContext, *, keeps: bool = False, elsewhere: str = "") -> StagingArea:
        """An empty folder. Its lock comes first: a sweep between the two would take it for dead.

        With `keeps`, one that an earlier start of the run has left, with all that is in it. `elsewhere` says
        what to do where its disk is full.
        """
        try:
            area = StagingArea(base, run, _lock_run(base, run, elsewhere), elsewhere)
            if keeps and (area.folder / KEPT).exists():
                return area
            try:
                area.folder.mkdir()
                area._check_space()
                token = area.folder / TOKEN
                token.write_text(run.run_id)
                sync(token)
                if keeps:
                    (area.folder / KEPT).touch()
                sync(area.folder)
            except BaseException:  # Ctrl-C too: what was begun is this run's to remove
                area.close()
                raise
        except OSError as error:
            raise cannot_write(error, base if base.parent.is_dir() else base.parent, elsewhere) from error
        return area

    @staticmethod
    def base_of(run: RunContext) -> Path:
        """In the project's own staging: for targets that have no place of their own."""
        base = run.staging.parent / "write"
        try:
            base.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(error, base.parent, BY_PROJECT) from error
        return base

    def sink(self, table: int, columns: Sequence[Column]) -> ParquetSink:
        return ParquetSink(self.folder, self.run_id, table, stored_schema(columns), elsewhere=self.elsewhere)

    def arrow_sink(self, table: int, schema: pa.Schema) -> ArrowSink:
        return ArrowSink(self.folder, self.run_id, table, schema, elsewhere=self.elsewhere)

    def files(self, table: int, receipts: Sequence[Receipt]) -> list[Path]:
        """The files that the receipts name, proved to be there, whole, and of no part twice."""
        mine = sorted((receipt for receipt in receipts if receipt.table == table), key=lambda receipt: receipt.part)
        if len({receipt.part for receipt in mine}) != len(mine):
            raise lost("a part has two receipts")
        return [self._proved(receipt) for receipt in mine]

    def receipts(self) -> list[Receipt]:
        """Of all parts that are durable."""
        return [Receipt(**json.loads(path.read_text())) for path in sorted(self.folder.glob("r[0-9]*-p*.json"))]

    def _proved(self, receipt: Receipt) -> Path:
        path = self.folder / receipt.ref
        try:
            whole = path.stat().st_size == receipt.bytes
            if path.suffix == ParquetSink.suffix:  # an Arrow file's rows are counted when it is read
                whole = whole and pq.read_metadata(path).num_rows == receipt.rows
        except (OSError, pa.ArrowInvalid) as error:
            raise lost(f"the file of part {receipt.part} cannot be read") from error
        if not whole:
            raise lost(f"the file of part {receipt.part} is not what its receipt says")
        return path

    def _check_space(self) -> None:
        if shutil.disk_usage(self.folder).free < FREE_FLOOR:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def leave(self) -> None:
        """Let go and remove nothing: what is there counts, and the next run does with it what this one could not."""
        self._lock.release()

    def close(self) -> None:
        """Remove what was staged, then let go: in the other order a sweep might race with us. Safe twice.

        What cannot be removed stays for the next sweep; it must not keep the lock, nor take the place of the
        error that ended the run.
        """
        with suppress(OSError):
            _remove_run(self.folder)
        self._lock.release()
        with suppress(OSError):  # not empty: other runs have their folders in it
            self.base.rmdir()


def _lock_run(base: Path, run: RunContext, elsewhere: str) -> FileLock:
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        with suppress(FileExistsError):  # `exist_ok` fails if it is removed at this moment
            base.mkdir()
        try:
            target = f"staging of {run.run_id}"
            return FileLock.acquire(base / f"{run.run_id}.lock", run.run_id, run.pipeline, target, elsewhere)
        except Busy:
            # Nobody else has this run's id: a sweep has found the file before it was locked.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        except TargetError as error:
            # The base was empty, and the last run that used it removed it just now.
            if isinstance(error.__cause__, FileNotFoundError):
                continue
            raise


def sweep(base: Path) -> tuple[str, ...]:
    """Remove the folders of dead runs: those whose lock is free. Their names."""
    dead: list[tuple[Path, FileLock]] = []
    try:
        for path in sorted(_entries(base)):
            if _is_run(path) and (lock := _try_lock(base / f"{path.name}.lock")) is not None:
                dead.append((path, lock))
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
    for orphan in _entries(base):
        if orphan.suffix == ".lock" and RUN_ID.fullmatch(orphan.stem) and (lock := _try_lock(orphan)) is not None:
            lock.release()
    return tuple(path.name for path, _ in dead)


def _try_lock(path: Path) -> FileLock | None:
    """The lock of a run that is dead; of one that has just ended, the base may be gone too."""
    try:
        return FileLock.try_acquire(path)
    except FileNotFoundError:
        return None


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing if another run has removed it meanwhile."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_run(folder: Path) -> bool:
    """Whether a run has made this folder: whatever else lies in the base is somebody's own."""
    if not RUN_ID.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in _entries(folder)}
    if KEPT in names:
        return False
    if TOKEN not in names:
        return not names
    try:
        text = (folder / TOKEN).read_text(errors="replace")
    except FileNotFoundError:
        return False  # its run ends at this moment
    # A run that died while it wrote its token has left an empty one, and nothing beside it.
    return text == folder.name or (text == "" and names == {TOKEN})


def _remove_run(folder: Path) -> None:
    """Remove a run's folder, the token last: if we died half way, or one file stays, a sweep still knows it."""
    failed: OSError | None = None
    # What is kept is so no more: a removal that dies half way is finished by a sweep.
    (folder / KEPT).unlink(missing_ok=True)
    for entry in _entries(folder):
        if entry.name == TOKEN:
            continue
        try:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # another sweep was faster
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def staged_under(
    lock: FileLock | ProcessLock,
    base: Path,
    run: RunContext,
    *,
    wanted: bool = True,
    keeps: bool = False,
    elsewhere: str = "",
) -> StagingArea | None:
    """What a load that holds its lock begins with: leftovers gone, and, where it is `wanted`, staging of its own.

    If it cannot be had, the lock is freed.
    """
    staging: StagingArea | None = None
    try:
        failpoint("load.begin")
        sweep(base)
        if wanted:
            staging = StagingArea.create(base, run, keeps=keeps, elsewhere=elsewhere)
        failpoint("load.staging")
    except BaseException:  # Ctrl-C too: nobody else frees the lock
        if staging is not None:
            staging.close()
        lock.release()
        raise
    return staging
