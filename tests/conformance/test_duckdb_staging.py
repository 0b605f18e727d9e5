"""A staging folder that the user named: what is not a run's own stays."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from penstock.backends import staging
from penstock.errors import TargetError
from tests.conformance.test_duckdb_backend import BACKEND, INTS, Files, ints


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


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
