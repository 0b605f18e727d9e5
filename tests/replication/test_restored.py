"""A target that was set back to an older copy of itself goes on from there, out of what the buffer keeps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.backends.changelog import packs
from penstock.backends.changelog.chain import Chain
from penstock.backends.changelog.snapshots import Snapshots
from penstock.backends.changes import TRANSACTIONS, Segment
from penstock.replicate.health import Obstructed
from tests.replication.conftest import drop_slot
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


def test_a_target_of_before_a_slot_was_lost_is_copied_again(make: Make, tmp_path: Path) -> None:
    """The buffer has segments of before and of after it: what lies between, nobody has captured."""
    stand = make("sqlite", on_slot_loss="recopy")
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    stand.stop()
    backup = backed_up(stand, tmp_path / "backup")
    drop_slot(stand.source, stand.replication.slot_name)
    stand.source.execute("update items set name = 'unseen' where id % 2 = 0", "delete from bag")
    stand.start()
    stand.sync()
    stand.source.execute("update items set name = 'seen' where id % 5 = 0", "insert into bag values ('seen')")
    stand.sync()
    stand.stop()
    restored(stand, backup)
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "bag")


def aged(stand: Stand) -> Chain:
    """A log with so many segments that the first of them are packed."""
    log = Chain(stand.log)
    log.turn = log.last_turn()
    found = log.end()
    assert found is not None
    number, end = found
    while number < 2 * packs.SEGMENTS:
        number += 1
        log.append(Segment(end, end, TRANSACTIONS.empty_table()), number)
    return log


def test_what_lies_in_packs_heals_a_target_and_feeds_others(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed where old segments are in a pack and in files of their own; and read again from the beginning."""
    stand = make("sqlite", apart=True, buffer={"segment_ms": 5, "keep_copy": True})
    stand.source.execute(*TABLES)
    stand.start()
    stand.sync()
    await_true(lambda: len(Snapshots(stand.log).newest()) == 2, 30)
    stand.stop()
    backup = backed_up(stand, tmp_path / "backup")
    stand.start()
    stand.source.execute(
        "update items set name = 'new ' || id where id % 3 = 0", "insert into bag select * from bag limit 7"
    )
    stand.sync()
    stand.stop()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda _: None)
        log = aged(stand)
    stand.start("pack.linked=kill")
    await_true(lambda: stand.died, 30)
    assert log.path(1).exists()
    assert log.pack_path(1).exists()
    stand.source.execute(
        "delete from items where id % 5 = 0", "delete from bag where ctid = (select ctid from bag limit 1)"
    )
    stand.start()
    stand.sync()
    await_true(lambda: not log.path(packs.SEGMENTS - 1).exists(), 30)
    stand.stop()
    restored(stand, backup)
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "bag")
    reader = make("duckdb", of=stand)
    reader.start()
    reader.sync()
    reader.assert_agrees("items", "bag")
