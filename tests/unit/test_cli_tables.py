"""`penstock tables list`, also of databases that nobody has loaded into yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb

PROJECT = """
[connections.duck]
type = "duckdb"
path = "new.duckdb"

[connections.lite]
type = "sqlite"
path = "new.sqlite"

[connections.shop]
type = "duckdb"
path = "shop.duckdb"
"""


def listed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "penstock.toml").write_text(PROJECT)
    with duckdb.connect(str(folder / "shop.duckdb")) as shop:
        shop.execute("create table if not exists orders (id int)")
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "tables", "list", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_database_that_its_first_load_will_make_is_no_error(tmp_path: Path) -> None:
    done = listed(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "main.orders" in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "duck is not there yet: the first load makes it",
        "lite is not there yet: the first load makes it",
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("new")] == []


def test_of_one_that_is_not_there_yet_the_list_is_empty(tmp_path: Path) -> None:
    done = listed(tmp_path, "lite")
    assert (done.returncode, done.stdout) == (0, "lite is not there yet: the first load makes it\n")
    shown = listed(tmp_path, "duck", "--output", "json")
    assert (shown.returncode, json.loads(shown.stdout)) == (0, [])


def test_a_file_that_is_none_of_its_kind_stays_an_error(tmp_path: Path) -> None:
    (tmp_path / "new.duckdb").write_text("no database")
    done = listed(tmp_path)
    assert done.returncode == 1
    assert "new.duckdb" in done.stderr
    assert "main.orders" in done.stdout
