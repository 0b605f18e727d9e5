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

from penstock.backends.files.place import META
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow, Harness, SQLiteHarness
from tests.faults.test_all_or_nothing import REPO

pytestmark = [pytest.mark.postgres, pytest.mark.faults]

MEGABYTE = 1024 * 1024
KINDS = ("duckdb", "sqlite")
FORMATS = ("parquet", "csv", "jsonl")
BY_OPTION = "free space there, or set `staging` of the connection to a folder on a larger disk"
BY_TARGET = "free space there, or load into a folder on a larger disk"
STAGED = [("w.duckdb", BY_OPTION), *((kind, BY_TARGET) for kind in FORMATS)]
# About 8 MB that no compression makes smaller.
ROWS = (
    "select n::int as id, string_agg(md5(n::text || m), '') as v"
    " from generate_series(1, 2000) as a(n), generate_series(1, 128) as b(m)"
)
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


class Small:
    """Appends what the source has to a table that holds a row."""

    def __init__(self, source: Harness, folder: Path, target: Path, **options: Any) -> None:
        self.folder = folder
        self.target = made(target)
        old = ("create table items (id integer, v varchar)", "insert into items values (0, 'old')")
        if isinstance(self.target, FilesHarness):  # their first load, which has a manifest
            seed = DuckDBHarness(folder / "seed.duckdb")
            seed.execute(*old)
            Flow(seed, self.target, folder).run()
        else:
            self.target.execute(*old)
        source.execute(f"create table items as {ROWS} group by n")
        self.table = f"{source.schema}.items"
        self.connections = {"from_": source.options(), "to": self.target.options() | options}

    def run(self, before: Callable[[], None] | None = None) -> dict[str, Any]:
        """The error that it ends with."""
        spec = self.folder / "spec.json"
        pipeline = {"name": "p", "place": "test", "source": "from_", "target": "to.main.items", "mode": "append"}
        pipeline |= {"table": self.table}
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


def made(path: Path) -> DuckDBHarness | SQLiteHarness | FilesHarness:
    """A database file by its ending, or a folder of files called after their format."""
    if path.name in FORMATS:
        return FilesHarness(path, path.name)
    return SQLiteHarness(path) if path.suffix == ".sqlite" else DuckDBHarness(path)


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


def said_well(error: dict[str, Any], kind: str, remedy: str = "") -> None:
    """`NotNow` of the target's own disk: a replication waits for it. Of staging, a `TargetError`."""
    assert error["error"] == kind, error
    assert "disk is full" in error["what"], error
    assert error["kept"] == "nothing was committed"
    assert error["remedy"] == remedy if remedy else error["remedy"]


@pytest.mark.parametrize(("name", "remedy"), STAGED, ids=[name for name, _ in STAGED])
def test_full_disk_for_staging(harness: Callable[[str], Harness], tmp_path: Path, name: str, remedy: str) -> None:
    small = Small(harness("duckdb" if name in FORMATS else "postgres"), tmp_path, tmp_path / name)
    said_well(small.run(limit(2 * MEGABYTE)), "TargetError", remedy)
    small.unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_for_the_database_file(harness: Callable[[str], Harness], tmp_path: Path, kind: str) -> None:
    """Staging, which is compressed, has room; the database's own log has not."""
    source = harness("postgres")
    small = Small(source, tmp_path, tmp_path / f"w.{kind}")
    source.execute("update items set v = repeat('x', 4096)")
    said_well(small.run(limit(2 * MEGABYTE)), "NotNow")
    small.unchanged()


@pytest.mark.parametrize(("name", "remedy"), STAGED[:2], ids=["duckdb", "files"])
def test_full_disk_of_its_own(
    harness: Callable[[str], Harness], tmp_path: Path, tiny: Path, name: str, remedy: str
) -> None:
    """Too little room for staging to begin with is found before a row is read."""
    small = Small(harness("postgres"), tmp_path, tiny / name)
    (tiny / "other").write_bytes(b"x" * 8 * MEGABYTE)
    said_well(small.run(limit(MEGABYTE)), "TargetError", remedy)
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
    assert not isinstance(small.target, FilesHarness)
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


@pytest.mark.parametrize(("what", "kind"), [("schema", "parquet"), ("meta", "csv"), ("meta", "jsonl")])
def test_read_only_folder_of_files(harness: Callable[[str], Harness], tmp_path: Path, what: str, kind: str) -> None:
    """The folder of a table's folder is looked at while planning, that of its manifests by the load."""
    small = Small(harness("duckdb"), tmp_path, tmp_path / kind)
    assert isinstance(small.target, FilesHarness)
    table = small.target.root / "main" / "items"
    closed = {"schema": table.parent, "meta": table / META}[what]
    mode = closed.stat().st_mode
    closed.chmod(0o555)
    try:
        error = small.run(as_anyone)
    finally:
        closed.chmod(mode)
    if what == "schema":
        assert error["error"] == "PlanRefused", error
        assert error["why"] == f"cannot write in {closed}: permission denied"
        assert error["kept"] == "nothing was touched"
        assert error["remedy"] == "see the plan: penstock plan p"
    else:
        assert error["error"] == "TargetError", error
        assert error["what"].startswith(f"cannot write in {closed}")
        assert error["why"] == "Permission denied"
        assert error["kept"] == "nothing was committed"
        assert error["remedy"] == "make the folder writable, or set another path"
    small.unchanged()
