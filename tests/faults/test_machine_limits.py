"""A full disk and a folder that cannot be written: a clear error, and the target as before.

A full disk is had by a limit on the size of files, which any account may set, and as root also by
a small file system of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness import DuckDBHarness, Harness, SQLiteHarness
from tests.faults.test_all_or_nothing import REPO

pytestmark = [pytest.mark.postgres, pytest.mark.faults]

MEGABYTE = 1024 * 1024
KINDS = ("duckdb", "sqlite")
# About 8 MB that no compression makes smaller.
ROWS = (
    "select n as id, string_agg(md5(n::text || m), '') as v from generate_series(1, 2000) n, generate_series(1, 128) m"
)
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


class Small:
    """Appends what the source has to a file that holds three rows."""

    def __init__(self, source: Harness, folder: Path, target: Path, **options: Any) -> None:
        self.folder = folder
        self.target = SQLiteHarness(target) if target.suffix == ".sqlite" else DuckDBHarness(target)
        self.target.execute("create table items (id integer, v varchar)", "insert into items values (0, 'old')")
        source.execute(f"create table items as {ROWS} group by n")
        self.connections = {"from_": source.options(), "to": self.target.options() | options}

    def run(self, before: Callable[[], None] | None = None) -> dict[str, Any]:
        """The error that it ends with."""
        spec = self.folder / "spec.json"
        pipeline = {"name": "p", "place": "test", "source": "from_", "target": "to.main.items", "mode": "append"}
        pipeline |= {"table": "public.items"}
        spec.write_text(json.dumps({"root": str(self.folder), "connections": self.connections, "pipeline": pipeline}))
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.bare", str(spec)],
            cwd=REPO, text=True, capture_output=True, check=False, timeout=90,
            preexec_fn=before,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        error: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
        return error

    def unchanged(self) -> None:
        assert self.target.query("select id, v from items") == [(0, "old")]
        assert self.target.leftovers() == []


def limit(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for 66 MB, or where that may not be made, a folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=68m", "tmpfs", str(folder)], check=False, capture_output=True
        ).returncode
        == 0
    )
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def said_well(error: dict[str, Any], kind: str) -> None:
    """`NotNow` of the target's own disk: a replication waits for it. Of staging, a `TargetError`."""
    assert error["error"] == kind, error
    assert "disk is full" in error["what"], error
    assert error["kept"] == "nothing was committed"
    assert error["remedy"]


def test_full_disk_for_staging(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    small = Small(harness("postgres"), tmp_path, tmp_path / "w.duckdb")
    said_well(small.run(limit(2 * MEGABYTE)), "TargetError")
    small.unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_for_the_database_file(harness: Callable[[str], Harness], tmp_path: Path, kind: str) -> None:
    """Staging, which is compressed, has room; the database's own log has not."""
    source = harness("postgres")
    small = Small(source, tmp_path, tmp_path / f"w.{kind}")
    source.execute("update items set v = repeat('x', 4096)")
    said_well(small.run(limit(2 * MEGABYTE)), "NotNow")
    small.unchanged()


def test_full_disk_of_its_own(harness: Callable[[str], Harness], tmp_path: Path, tiny: Path) -> None:
    """Too little room for staging to begin with is found before a row is read."""
    small = Small(harness("postgres"), tmp_path, tiny / "w.duckdb")
    (tiny / "other").write_bytes(b"x" * 8 * MEGABYTE)
    said_well(small.run(limit(MEGABYTE)), "TargetError")
    small.unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_for_spilling_and_commit_with_staging_elsewhere(
    harness: Callable[[str], Harness], tmp_path: Path, tiny: Path, kind: str
) -> None:
    elsewhere = tmp_path / "staging"
    elsewhere.mkdir()
    small = Small(harness("postgres"), tmp_path, tiny / f"w.{kind}", staging=str(elsewhere))
    if kind == "duckdb":
        small.target.execute("checkpoint")
    free = os.statvfs(tiny).f_bavail * os.statvfs(tiny).f_frsize
    if free < 100 * MEGABYTE:
        (tiny / "other").write_bytes(b"x" * (free - MEGABYTE))
    error = small.run(None if free < 100 * MEGABYTE else limit(MEGABYTE))
    said_well(error, "NotNow")
    (tiny / "other").unlink(missing_ok=True)
    small.unchanged()
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


# ---------------------------------------------------------------- folders that cannot be written


def as_anyone() -> None:
    """Root may write everywhere: not in a process without this right."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["folder", "file", "staging"])
def test_read_only_target(harness: Callable[[str], Harness], tmp_path: Path, what: str, kind: str) -> None:
    folder, elsewhere = tmp_path / "closed", tmp_path / "staging"
    folder.mkdir()
    elsewhere.mkdir()
    options = {"staging": str(elsewhere)} if what == "staging" else {}
    small = Small(harness("postgres"), tmp_path, folder / f"w.{kind}", **options)
    closed = {"folder": folder, "file": small.target.path, "staging": elsewhere}[what]
    mode = closed.stat().st_mode
    closed.chmod(0o555)
    try:
        error = small.run(as_anyone)
    finally:
        closed.chmod(mode)
    assert error["error"] == "TargetError", error
    assert "cannot write" in error["what"]
    assert str(closed) in error["what"]
    assert "ermission denied" in error["why"]
    assert "writable" in error["remedy"]
    small.unchanged()
