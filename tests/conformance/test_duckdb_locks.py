"""Who may open a DuckDB file, who may load into it, and what the next run sweeps."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.backends import staging
from penstock.backends.duckdb import connect
from penstock.backends.duckdb.connect import open_file
from penstock.backends.locks import FileLock
from penstock.errors import Busy, LinkLost
from tests.conformance.duckdb_bench import BACKEND, INTS, Files, ints, load_batches

# ---------------------------------------------------------------- the file


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that has the file open for writing, until its input is closed."""
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_held_by_another_process_is_waited_for_then_named(files: Files, read_only: bool) -> None:
    files.sql("source", "create table t as select 1 as id")
    with hold(files.folder / "source.duckdb") as holder:
        with pytest.raises(LinkLost, match=rf"process {holder.pid} .*0\.3 s") as raised:
            open_file(files.config("source", lock_timeout=0.3), read_only=read_only)
        assert raised.value.retryable
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(open_file, files.config("source"), read_only=read_only)
            assert holder.stdin is not None
            holder.stdin.close()
            waiting.result(timeout=20).close()


def test_one_process_has_one_writer_and_no_reader_beside_it(files: Files) -> None:
    files.sql("source", "create table t as select 1 as id")
    config = files.config("source", lock_timeout=0.1)
    readers = [open_file(config, read_only=True) for _ in range(2)]
    with pytest.raises(LinkLost, match="open in this process"):
        open_file(config, read_only=False)
    for reader in readers:
        reader.close()
    with open_file(config, read_only=False):
        for read_only in (True, False):
            with pytest.raises(LinkLost, match="open in this process"):
                open_file(config, read_only=read_only)
    open_file(config, read_only=False).close()


def test_a_reader_that_the_collector_closes_in_the_middle_of_an_opening_does_not_block_it(files: Files) -> None:
    """A forgotten generator may be finished wherever its thread allocates something."""
    files.sql("source", "create table t as select 1 as id")
    config = files.config("source", lock_timeout=0.1)

    def close_within() -> None:
        reader = open_file(config, read_only=True)
        with connect._registry.lock:
            reader.close()

    pool = ThreadPoolExecutor(1)
    pool.submit(close_within).result(timeout=20)
    open_file(config, read_only=False).close()


# ---------------------------------------------------------------- the run


def test_a_second_run_is_told_who_holds_the_target(files: Files) -> None:
    first = files.plan(INTS, files.run("first"))
    load = BACKEND.target(files.config("target"), first.run).begin(first)
    second = files.plan(INTS, files.run("second"))
    with pytest.raises(Busy, match=rf"pipeline 'first', run {first.run.run_id}, process {os.getpid()}"):
        BACKEND.target(files.config("target"), second.run).begin(second)
    load.close()
    BACKEND.target(files.config("target"), second.run).begin(second).close()
    assert files.leftovers() == []


def test_the_sweep_takes_dead_runs_and_spares_live_ones(files: Files) -> None:
    base = files.config("target").staging_base
    live = staging.StagingArea.create(base, files.run())
    dead = base / uuid.uuid4().hex
    dead.mkdir()
    (dead / staging.TOKEN).write_text(dead.name)
    (dead / "t0-p0-x.parquet").write_text("left")
    (base / f"{dead.name}.lock").touch()
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    assert not dead.exists()
    assert live.folder.exists()
    assert (live.folder / staging.TOKEN).exists()
    load.close()
    live.close()
    assert files.leftovers() == []


def test_a_killed_driver_frees_its_lock_and_the_next_run_sweeps(files: Files) -> None:
    lock = files.config("target").lock_file
    code = (
        "import os, sys; from pathlib import Path; from penstock.backends.locks import FileLock\n"
        f"FileLock.acquire(Path({str(lock)!r}), 'r', 'p', 't'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert FileLock.try_acquire(lock) is None
        holder.kill()
        holder.wait()
    load_batches(files, INTS, *ints(1))
    assert files.leftovers() == []
