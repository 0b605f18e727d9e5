"""A rule of docs/explanation/rules.md, section 1: nothing but its own library touches a database file.

Closing any handle on a file drops the locks that SQLite holds on it in the same process. In a process of
its own, because an audit hook cannot be taken away.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MODES = {"append": {}, "truncate": {}, "merge": {"keys": ["id"]}}
CHILD = """
import json, os, sys
from pathlib import Path

from penstock.testing.stage import stage_here
from tests.conformance.harness import DuckDBHarness, Flow, SQLiteHarness

folder, (source, target), modes = Path(sys.argv[1]), sys.argv[2].split("-"), json.loads(sys.argv[3])
kinds = {"duckdb": DuckDBHarness, "sqlite": SQLiteHarness}
ends = {name: kinds[name](folder / f"w.{name}") for name in (source, target)}
for end in ends.values():
    end.execute("create table t (id integer primary key, v varchar)", "insert into t values (1, 'a'), (2, null)")
files = {str(end.path) + more for end in ends.values() for more in ("", "-wal", "-journal", "-shm", ".wal")}
opened, others = [], []

def hook(event, given):
    if event not in ("open", "sqlite3.connect", "os.truncate", "os.rename", "shutil.copyfile"):
        return
    for path in given[:2]:
        if isinstance(path, (str, bytes, os.PathLike)):
            path = os.path.realpath(os.fsdecode(path))
            (opened if path in files else others).append(f"{event} {path}")

sys.addaudithook(hook)
flow = Flow(ends[source], ends[target], folder, stage_here)
rows = [flow.run(mode=mode, table="main.t", **more).rows for mode, more in modes.items()]
found = ends[target].query("select count(*) from items")[0][0]
by_us = list(opened)
ends[source].path.open("rb").close()
print(json.dumps({"rows": rows, "found": found, "opened": by_us, "control": opened, "others": len(others)}))
"""


@pytest.mark.parametrize("pair", ["sqlite-duckdb", "duckdb-sqlite", "sqlite-sqlite", "duckdb-duckdb"])
def test_1_nothing_but_its_own_library_opens_a_database_file(tmp_path: Path, pair: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), pair, json.dumps(MODES)],
        cwd=REPO, text=True, capture_output=True, check=False, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rows"] == [2, 2, 2]
    assert told["found"] == 2
    assert told["opened"] == []
    # What was asked for is seen: staging, locks, and the file that the test itself opens.
    assert told["others"] > 0
    assert told["control"] == [f"open {tmp_path / ('w.' + pair.partition('-')[0])}"]
