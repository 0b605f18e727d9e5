"""`penstock init`: what it writes, and that it never writes over anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import schema
from penstock.errors import ConfigError
from penstock.project import load
from penstock.scaffold import start

FILES = {*start.TEMPLATES.values(), schema.FILE, start.SHOP}


def init(folder: Path) -> start.Started:
    return start.start(folder, schema.text(), schema.FILE)


def test_the_new_project_loads_and_its_connections_are_whole(tmp_path: Path) -> None:
    made = init(tmp_path / "first")
    assert {path.name for path in made.folder.iterdir()} == FILES == set(made.files)
    project = load(made.folder)
    project.check()
    assert set(project.pipelines) == {"customers", "revenue"}
    assert (made.folder / schema.FILE).read_text() == schema.text()


def test_an_empty_folder_and_one_with_other_files_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    made = init(Path("."))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not any(step.command.startswith("cd ") for step in made.next)


def test_a_name_with_spaces_is_quoted_in_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init(Path("my first project")).next[0].command == "cd 'my first project'"


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_there_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        init(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert caught.value.kept
    assert caught.value.remedy


def test_a_link_to_nowhere_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(ConfigError, match=r"penstock\.toml"):
        init(tmp_path)
    assert not (tmp_path / "elsewhere.toml").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ConfigError, match="is no folder"):
        init(tmp_path / "taken")


def test_the_command_tells_as_json_what_it_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "init", "first", "--output", "json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert set(made["files"]) == FILES
    assert made["next"][0] == {"command": "cd first", "meaning": "the project"}
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "already holds penstock.toml, pipelines.py" in again.stderr
