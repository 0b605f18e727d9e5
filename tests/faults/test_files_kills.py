"""Files, killed anywhere: the table is as before or as after, and the next run leaves nothing behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.observe.failpoints import NAMES, SOME
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness
from tests.faults.test_all_or_nothing import ROWS, Bare, promised
from tests.waiting import await_true

pytestmark = pytest.mark.faults

FORMATS = ("parquet", "csv", "jsonl")
PUBLISHING = sorted(name for name in SOME if name.startswith("publish."))


class FilesBare(Bare):
    def count(self) -> int:
        """Rows by manifests; every row must be there once."""
        if not self.target.has_table("items"):
            return 0
        ids = self.files.table("items").column("id").to_pylist()
        assert len(ids) == len(set(ids))
        return len(ids)

    @property
    def files(self) -> FilesHarness:
        assert isinstance(self.target, FilesHarness)
        return self.target


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], FilesBare]:
    def build(file_format: str) -> FilesBare:
        return FilesBare(DuckDBHarness(tmp_path / "s.duckdb"), FilesHarness(tmp_path / "lake", file_format), tmp_path)

    return build


@pytest.mark.parametrize("state", ["first", "later"])
@pytest.mark.parametrize(("place", "name"), list(enumerate(sorted([*NAMES, "publish.file"]))))
def test_sigkill_at_every_failpoint(make: Callable[[str], FilesBare], place: int, name: str, state: str) -> None:
    # The formats take turns: where a process dies has little to do with what it writes.
    bare = make(FORMATS[(place + (state == "later")) % len(FORMATS)])
    before = 0
    if state == "later":
        bare.run_here()
        before = ROWS
        bare.source.execute(f"insert into items select n, 'y' from generate_series({ROWS + 1}, {2 * ROWS}) as g(n)")
    if name.startswith("sweep"):
        assert bare.run("sink.staged=kill").returncode == -signal.SIGKILL
    killed = bare.run(f"{name}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    after = promised().get(name, "as after") == "as after"
    assert bare.count() == (before + ROWS if after else before)
    bare.run_here()
    assert bare.count() == before + ROWS
    assert bare.target.leftovers() == []
    own = [path for path in (bare.files.root / "main" / "items").iterdir() if path.name != "_penstock"]
    assert len(own) == (2 if state == "later" else 1)


TRUNCATE = {"mode": "truncate", "incremental": None, "lag": None}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "folder") for name in (*PUBLISHING, "commit.done")),
        *((name, "by value") for name in (*PUBLISHING, "commit.done")),
        *((name, "items.csv") for name in ("commit.loaded", "commit.done", "publish.file")),
    ],
)
def test_sigkill_while_a_truncate_publishes(make: Callable[[str], FilesBare], name: str, kind: str) -> None:
    bare = make("csv")
    bare.source.execute("update items set name = 'x' || (id % 3)")
    table = kind if kind == "items.csv" else "items"
    options = TRUNCATE | {"target": f'to.main."{table}"', "partition_by": ["name"] if kind == "by value" else []}
    assert bare.run(**options).returncode == 0
    bare.source.execute(f"update items set id = id + {ROWS}")
    killed = bare.run(f"{name}=kill", **options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first = ROWS if name != "commit.loaded" else 0
    found = bare.files.table(table).column("id").to_pylist()
    assert sorted(found) == list(range(first + 1, first + ROWS + 1))
    assert bare.run(**options).returncode == 0
    found = bare.files.table(table).column("id").to_pylist()
    assert sorted(found) == list(range(ROWS + 1, 2 * ROWS + 1))
    assert bare.target.leftovers() == []
    data = [path for path in (bare.files.root / "main").rglob("*.csv") if path.is_file()]
    assert len(data) == (3 if kind == "by value" else 1)


def test_two_runs_at_once_the_second_says_so_and_another_table_is_free(make: Callable[[str], FilesBare]) -> None:
    bare = make("jsonl")
    marker = bare.root / "pause"
    first = bare.start(f"copy.done=pause:{marker}")
    try:
        await_true(marker.exists)
        second = bare.run()
        error = json.loads(second.stderr.splitlines()[-1])
        assert error["error"] == "Busy"
        assert str(first.pid) in error["why"]
        other = bare.run(name="q", target="to.main.others")
        assert other.returncode == 0, other.stderr
        marker.unlink()
        assert first.wait(60) == 0, first.stderr.read() if first.stderr else ""
    finally:
        first.kill()
        first.communicate()
    assert bare.count() == ROWS
    assert bare.target.leftovers() == []
