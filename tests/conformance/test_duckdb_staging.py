"""Staging as Parquet files: attempts, full disks, and a folder that the user named."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends import staging
from penstock.errors import SourceError, StagingLost, TargetError
from penstock.schema import Column
from tests.conformance.duckdb_bench import BACKEND, INTS, Files, ints, load_batches

# ---------------------------------------------------------------- tasks


def test_racing_attempts_leave_one_receipt_and_one_file(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda _: sink.write(3, ints(*range(1000))), range(8)))
    assert len(set(receipts)) == 1
    assert [path.name for path in area.folder.glob("*.parquet")] == [receipts[0].ref]
    assert sink.write(3, ints(1)) == receipts[0]
    assert area.files(0, [receipts[0]])
    area.close()
    assert not (files.folder / "stage").exists()


def test_a_failed_task_leaves_neither_file_nor_receipt(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ints(1, 2)
        raise SourceError("the link broke")

    with pytest.raises(SourceError):
        area.sink(0, INTS).write(0, broken())
    assert [path.name for path in area.folder.iterdir()] == [staging.TOKEN]
    area.close()


def test_a_worker_without_the_token_writes_nothing(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    with pytest.raises(StagingLost, match="is not here"):
        replace(sink, folder=files.folder).write(0, ints(1))
    shutil.rmtree(area.folder)
    with pytest.raises(StagingLost, match="is not here"):
        sink.write(0, ints(1))
    area.close()


def test_other_columns_than_planned_are_refused_by_name(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, [Column("a", pa.int64()), Column("b", pa.int64())])
    swapped = pa.record_batch({"b": pa.array([2], pa.int64()), "a": pa.array([1], pa.int64())})
    receipt = sink.write(0, iter([swapped]))
    assert pq.read_table(area.folder / receipt.ref).to_pylist() == [{"a": 1, "b": 2}]
    with pytest.raises(TargetError, match="other columns"):
        sink.write(1, ints(1))
    area.close()


def test_a_full_disk_is_said_and_leaves_nothing(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    batches = (pa.record_batch({"id": pa.array(range(n, n + 100_000), pa.int64())}) for n in range(0, 10**6, 10**5))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(TargetError, match="the disk is full"):
            sink.write(0, batches)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in area.folder.iterdir()] == [staging.TOKEN]
    area.close()


def test_free_space_is_checked_before_staging(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FREE_FLOOR", 2**60)
    with pytest.raises(TargetError, match="the disk is full"):
        staging.StagingArea.create(files.folder / "stage", files.run())
    assert files.leftovers() == []
    assert not (files.folder / "stage").exists()


# ---------------------------------------------------------------- what cannot be removed


def refuse(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """From now on the file system refuses to remove such files, as a broken disk does."""
    unlink = Path.unlink

    def broken(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == suffix:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", broken)


def test_a_file_that_stays_keeps_no_lock_and_is_left_to_the_next_sweep(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    with monkeypatch.context() as patched:
        refuse(patched, ".parquet")
        load.commit([receipt])
        load.close()
        assert [path.name for path in files.config("target").staging_base.iterdir()] == [plan.run.run_id]
        with pytest.raises(TargetError, match="Input/output error"):
            load_batches(files, INTS, *ints(2))
    load_batches(files, INTS, *ints(2))
    assert files.sql("target", "select id from t order by id") == [(1,), (2,)]
    assert files.leftovers() == []


def test_a_lock_file_that_stays_is_no_lock(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        refuse(patched, ".lock")
        load_batches(files, INTS, *ints(1))
        assert list(files.folder.rglob("*.lock"))
        load_batches(files, INTS, *ints(2))
    load_batches(files, INTS, *ints(3))
    assert files.sql("target", "select count(*) from t") == [(3,)]


def test_what_cannot_be_removed_does_not_hide_that_the_disk_is_full(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(staging, "sync", full)
        refuse(patched, ".part")
        with pytest.raises(TargetError, match="the disk is full"):
            area.sink(0, INTS).write(0, ints(1))
    area.close()


def test_a_sweep_beside_runs_that_come_and_go(files: Files) -> None:
    base, stop = files.folder / "stage", threading.Event()

    def come_and_go() -> int:
        runs = 0
        while not stop.is_set():
            area = staging.StagingArea.create(base, files.run())
            area.sink(0, INTS).write(0, ints(1))
            area.close()
            runs += 1
        return runs

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(come_and_go) for _ in range(2)]
        try:
            for _ in range(3_000):
                staging.sweep(base)
        finally:
            stop.set()
        assert all(run.result() > 0 for run in runs)


# ---------------------------------------------------------------- a folder of the user's


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fill(folder: Path) -> list[str]:
    """What a user might keep there, with names as a run's too."""
    hexadecimal = uuid.uuid4().hex
    for name in ("photos/a.jpg", "pgdata/PG_VERSION", f"{hexadecimal}/notes.txt", "other.lock", "empty/.keep"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    stranger = folder / uuid.uuid4().hex
    stranger.mkdir()
    (stranger / staging.TOKEN).write_text("of something else")
    return everything(folder)


def test_the_sweep_takes_nothing_that_is_not_a_runs_own(tmp_path: Path) -> None:
    before = fill(tmp_path)
    dead, unborn, half = (tmp_path / uuid.uuid4().hex for _ in range(3))
    for folder in (dead, unborn, half):
        folder.mkdir()
    (dead / staging.TOKEN).write_text(dead.name)
    (dead / "t0-p0-x.parquet").write_text("left")
    (half / staging.TOKEN).touch()
    assert sorted(staging.sweep(tmp_path)) == sorted([dead.name, unborn.name, half.name])
    assert everything(tmp_path) == before


def test_a_load_leaves_the_users_staging_folder_as_it_was(files: Files, tmp_path: Path) -> None:
    chosen = tmp_path / "large-disk"
    before = fill(chosen)
    config = files.config("target", staging=str(chosen))
    plan = files.plan(INTS)
    load = BACKEND.target(config, plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    (staged,) = chosen.rglob(receipt.ref)
    assert staged.parent.parent == chosen / "penstock-staging"
    load.commit([receipt])
    load.close()
    assert everything(chosen) == before


def test_an_empty_staging_folder_of_the_user_stays(files: Files, tmp_path: Path) -> None:
    chosen = tmp_path / "large-disk"
    chosen.mkdir()
    plan = files.plan(INTS)
    BACKEND.target(files.config("target", staging=str(chosen)), plan.run).begin(plan).close()
    assert chosen.is_dir()
    assert everything(chosen) == []


def test_a_staging_folder_that_is_not_there_is_named(files: Files, tmp_path: Path) -> None:
    plan = files.plan(INTS)
    with pytest.raises(TargetError, match=rf"there is no folder {tmp_path}/nowhere:"):
        BACKEND.target(files.config("target", staging=str(tmp_path / "nowhere")), plan.run).begin(plan)


def test_a_removal_that_was_killed_is_known_to_the_next_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = tmp_path / uuid.uuid4().hex
    dead.mkdir()
    for name in (staging.TOKEN, "a.parquet", "z.parquet"):
        (dead / name).write_text(dead.name)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(staging.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            staging.sweep(tmp_path)
    assert staging.sweep(tmp_path) == (dead.name,)
    assert everything(tmp_path) == []


def test_a_removal_that_was_killed_among_folders_is_known_to_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / uuid.uuid4().hex
    (dead / "region=eu").mkdir(parents=True)
    for name in (staging.TOKEN, "region=eu/a.parquet", "region=eu/z.parquet"):
        (dead / name).write_text(dead.name)
    whole = shutil.rmtree

    def killed(folder: Path, **_: object) -> None:
        """The token of a run's folder first, as a folder is listed in any order."""
        if (folder / staging.TOKEN).exists():
            (folder / staging.TOKEN).unlink()
            raise KeyboardInterrupt
        whole(folder)

    with monkeypatch.context() as patched:
        patched.setattr(staging.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            staging.sweep(tmp_path)
    assert staging.sweep(tmp_path) == (dead.name,)
    assert everything(tmp_path) == []


def test_a_receipt_that_stands_keeps_its_files_whatever_fails_after_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink, whole = area.sink(0, INTS), staging.sync

    def broken(path: Path) -> None:
        if path == area.folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        whole(path)

    with monkeypatch.context() as patched:
        patched.setattr(staging, "sync", broken)
        receipt = sink.write(0, ints(1, 2, 3))
    assert sink.write(0, ints(9)) == receipt
    [path] = area.files(0, [receipt])
    assert pq.read_metadata(path).num_rows == 3
    area.close()
