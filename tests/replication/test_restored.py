"""A target that was set back to an older copy of itself goes on from there, out of what the buffer keeps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.replicate.health import Obstructed
from tests.replication.stand import BAG, ITEMS, Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

TABLES = (*ITEMS, *BAG, "insert into bag select 'old' from generate_series(1, 30)")
Make = Callable[..., Stand]


def backed_up(stand: Stand, folder: Path) -> Path:
    """All files of a target that nobody has open."""
    path: Path = stand.target.path  # type: ignore[attr-defined]  # of a file
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy2(file, folder / file.name)
    return folder


def restored(stand: Stand, folder: Path) -> None:
    path: Path = stand.target.path  # type: ignore[attr-defined]  # as above
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    for file in folder.iterdir():
        shutil.copy2(file, path.parent / file.name)


def lived_on(stand: Stand) -> None:
    """A day later: several agents have worked, and the tables have other rows, and another form."""
    for mark in ("one", "two"):
        stand.start()
        stand.source.execute(
            f"update items set name = '{mark} ' || id where id % 3 = 0",
            f"insert into bag select '{mark}' from generate_series(1, 10)",
            "delete from bag where ctid = (select ctid from bag limit 1)",
            "delete from items where id = (select max(id) from items)",
        )
        if mark == "two":
            stand.source.execute("alter table items add column extra int default 7")
        stand.sync()
        stand.stop()


@pytest.mark.parametrize("target", ["duckdb", "sqlite"])
def test_a_target_restored_from_yesterday_heals_itself(target: str, make: Make, tmp_path: Path) -> None:
    stand = make(target)
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    stand.stop()
    backup = backed_up(stand, tmp_path / "backup")
    lived_on(stand)
    restored(stand, backup)
    assert stand.target.query("select count(*) from bag") == [(30,)]
    stand.source.execute("update items set name = 'after' where id < 10", "insert into bag values ('after')")
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "bag")


def test_one_that_is_older_than_the_buffer_is_a_gap(make: Make, tmp_path: Path) -> None:
    stand = make("sqlite", buffer={"segment_ms": 5, "retain": "0s", "max_bytes": "1B"})
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    stand.stop()
    backup = backed_up(stand, tmp_path / "backup")
    lived_on(stand)
    before = sorted(stand.log.iterdir())
    stand.start()
    await_true(lambda: sorted(stand.log.iterdir())[0] != before[0], 30)  # it is trimmed
    stand.stop()
    restored(stand, backup)
    stand.start()
    await_true(lambda: stand.error is not None, 30, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, Obstructed)
    assert error.state == "gap"
    assert "older than all that the buffer keeps" in error.why
