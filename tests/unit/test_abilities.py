"""What a target cannot do is told for all pipelines at once, with file and line, before any of them runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigErrors, Unsupported
from penstock.project import abilities, load
from penstock.state import open_store

PROJECT = """\
[connections.db]
type = "duckdb"
path = "d.duckdb"

[connections.lake]
type = "files"
path = "lake"

[pipelines.merged]
source = "db"
table = "main.t"
target = "lake.merged"
mode = "merge"
keys = ["id"]
order_by = "at desc"

[pipelines.hourly]
source = "db"
table = "main.t"
target = "lake.hourly"
mode = "append"
partition_by = ["hour(at)"]
ttl = { column = "at", keep = "30d" }

[pipelines.well]
source = "db"
table = "main.t"
target = "lake.well"
mode = "append"
"""
TOLD = [
    ("penstock.toml:9", "Files does not take mode merge"),
    ("penstock.toml:9", "Files runs no SQL, and order_by is SQL"),
    ("penstock.toml:17", "Files does not take ttl"),
    ("penstock.toml:17", "Files is not partitioned by hour(at)"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "penstock.toml").write_text(PROJECT)
    return tmp_path


def test_all_that_targets_cannot_do_is_found_without_opening_one(project: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(project).check()
    assert [(Path(error.place).name, error.what) for error in caught.value.findings] == TOLD
    assert all(isinstance(error, Unsupported) and error.remedy for error in caught.value.findings)
    assert not (project / "d.duckdb").exists()


def test_nothing_is_run_while_one_of_the_pipelines_cannot_be(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    answer = CliRunner().invoke(app, ["run", "--all"])
    assert answer.exit_code != 0
    told = load(project)
    with open_store(told.state_location) as store:
        assert store.runs() == []
    assert not (project / "lake").exists()


def test_what_is_well_runs_by_its_own_name(project: Path) -> None:
    told = load(project)
    abilities.check(told, [told.pipelines["well"]])
    with pytest.raises(ConfigErrors):
        abilities.check(told, told.pipelines.values())
