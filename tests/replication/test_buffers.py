"""A buffer that is full, slow, away or cannot be written to is a state: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.backends.changelog.chain import PIECE
from penstock.backends.postgres.stream import WAITING_BYTES
from penstock.errors import ConfigError
from penstock.observe.failpoints import ENV
from penstock.replicate.health import Obstructed
from penstock.replicate.patience import AWAY, FULL, SLOW, UNWRITABLE
from penstock.replicate.resync import mark_for_copy
from penstock.state import open_store
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.stand import ITEMS, Stand
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

Make = Callable[..., Stand]


def streaming(stand: Stand) -> Stand:
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    await_true(lambda: slot(stand)[0])
    stand.sync()  # what came before was the copy's, perhaps: this comes by the capture
    return stand


def await_waiting(stand: Stand, state: str) -> str:
    """Until it says that it waits for this, or, of "", for nothing. Returns what it says."""

    def says() -> bool:
        if stand.error is not None:
            raise stand.error
        assert stand.seen is not None
        return bool(stand.seen["waiting"].startswith(state) if state else not stand.seen["waiting"])

    await_true(says, 30, lambda: stand.seen)
    assert stand.seen is not None
    return str(stand.seen["waiting"])


def slot(stand: Stand) -> tuple[int, int]:
    """Which backend holds the slot, and what was confirmed to it."""
    [found] = stand.source.query(
        "select active_pid, (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
        f" where slot_name = '{stand.replication.slot_name}'"
    )
    return found


def changed(stand: Stand, mark: str) -> int:
    """Work that the source commits now. Returns a place before it."""
    place = source_end(stand)
    stand.source.execute(f"update items set name = '{mark} ' || id where id % 2 = 0", "delete from items where id = 1")
    return place


def source_end(stand: Stand) -> int:
    [(place,)] = stand.source.query("select (pg_current_wal_insert_lsn() - '0/0')::int8")
    return int(place)


def nothing_is_confirmed_and_the_link_lives(stand: Stand, before: tuple[int, int], place: int) -> None:
    pid, confirmed = slot(stand)
    assert pid == before[0]
    assert confirmed <= place


def agrees_after(stand: Stand, before: tuple[int, int]) -> None:
    await_waiting(stand, "")
    stand.sync()
    stand.assert_agrees("items")
    assert slot(stand)[0] == before[0]  # nothing had to be started again


# ---------------------------------------------------------------- away


@pytest.mark.parametrize("empty", [False, True], ids=["gone", "empty"])
def test_a_folder_that_goes_away_is_waited_for(make: Make, *, empty: bool) -> None:
    """With `empty`, there is an empty one instead, as where a disk is not mounted."""
    stand = streaming(make("sqlite"))
    before = slot(stand)
    away = stand.log.rename(stand.log.with_name("away"))
    if empty:
        stand.log.mkdir()
    place = changed(stand, "away")
    await_waiting(stand, AWAY)
    nothing_is_confirmed_and_the_link_lives(stand, before, place)
    if empty:
        stand.log.rmdir()  # raises if anything was written beneath
    away.rename(stand.log)
    agrees_after(stand, before)


def test_a_start_without_the_buffer_is_refused_and_not_a_new_beginning(make: Make) -> None:
    stand = streaming(make("sqlite"))
    stand.stop()
    away = stand.log.rename(stand.log.with_name("away"))
    stand.log.mkdir()
    refused_without_buffer(stand)
    stand.log.rmdir()
    changed(stand, "meanwhile")
    away.rename(stand.log)  # its disk was not mounted
    stand.start()
    stand.sync()
    stand.assert_agrees("items")
    stand.stop()
    shutil.rmtree(stand.log)  # and now it is gone for good
    changed(stand, "later")
    refused_without_buffer(stand)
    mark_for_copy(stand.project(), stand.replication)
    stand.start()
    stand.sync()
    stand.assert_agrees("items")


def refused_without_buffer(stand: Stand) -> None:
    stand.start()
    await_true(lambda: stand.error is not None, 30, lambda: stand.seen)
    error, stand.error = stand.error, None
    assert isinstance(error, Obstructed)
    assert error.state == "buffer lost"
    assert str(stand.log) in error.why
    assert "resync" in error.remedy
    stand.stop()


# ---------------------------------------------------------------- full, read-only, slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """One of its own, with room for 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(filler: Path, leaving: int = 0) -> None:
    free = os.statvfs(filler.parent)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - leaving))


def buffered(make: Make, folder: Path, **options: str) -> Stand:
    return make("sqlite", buffer={"segment_ms": 5, "path": str(folder), **options})


def test_a_disk_that_is_full_is_waited_for(make: Make, disk: Path) -> None:
    stand = streaming(buffered(make, disk / "buffer"))
    before = slot(stand)
    filler = disk / "filler"
    fill(filler)
    place = changed(stand, "full")
    assert "No space left" in await_waiting(stand, UNWRITABLE)
    nothing_is_confirmed_and_the_link_lives(stand, before, place)
    filler.unlink()
    agrees_after(stand, before)
    assert not [entry for entry in os.listdir(disk / "buffer") if entry.startswith(".")]


def test_a_transaction_larger_than_limit_and_disk_is_taken_whole(make: Make, disk: Path) -> None:
    """Its pieces are written while it is open: for the limit they count when it is over, a full disk is waited for."""
    stand = buffered(make, disk / "buffer", max_bytes="100kB")
    [(name,)] = stand.source.query("select current_database()")
    stand.source.execute(f"alter database \"{name}\" set logical_decoding_work_mem = '64kB'")
    streaming(stand)
    before = slot(stand)
    filler = disk / "filler"
    fill(filler, leaving=100_000)
    stand.source.execute("insert into items select i, i % 7 from generate_series(1000, 250000) i")
    assert "No space left" in await_waiting(stand, UNWRITABLE)
    filler.unlink()
    await_true(lambda: any(entry.endswith(PIECE) for entry in os.listdir(disk / "buffer")))
    stand.sync()
    stand.source.execute("delete from items where id = 2")
    stand.sync()
    summed = "select count(*), sum(id), sum(length(name)) from items"
    assert [tuple(map(int, row)) for row in stand.source.query(summed)] == stand.target.query(summed)
    assert slot(stand)[0] == before[0]


def test_a_disk_that_becomes_read_only_is_waited_for(make: Make, disk: Path) -> None:
    stand = streaming(buffered(make, disk / "buffer", retain="0s"))
    before = slot(stand)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    place = changed(stand, "closed")
    assert "Read-only" in await_waiting(stand, UNWRITABLE)
    nothing_is_confirmed_and_the_link_lives(stand, before, place)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    agrees_after(stand, before)


class Impatient(PostgresHarness):
    """A source whose server ends a link of ours on which it hears nothing for so many seconds."""

    SECONDS = 2

    def options(self) -> dict[str, Any]:
        return super().options() | {"link_timeout": f"{self.SECONDS}s"}


def test_a_slow_disk_is_told_and_waited_for(
    make: Make, harness: Callable[[str], Harness], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For longer than the server waits for a word of ours, and while more comes than is read."""
    stop, disarmed = tmp_path / "stop", tmp_path / "disarmed"
    disarmed.touch()
    monkeypatch.setenv(ENV, f"segment.written=once:{disarmed}:pause:{stop}")
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    stand = streaming(make("sqlite", Impatient(source.dsn)))
    before = slot(stand)
    disarmed.unlink()
    place = changed(stand, "slow")
    await_true(stop.exists)
    rows = 2 * WAITING_BYTES // 1000
    stand.source.execute(f"insert into items select i, repeat(md5(i::text), 32) from generate_series(1000, {rows}) i")
    await_waiting(stand, SLOW)
    heard = f"select extract(epoch from reply_time)::float8 from pg_stat_replication where pid = {before[0]}"
    [(first,)] = stand.source.query(heard)
    await_true(lambda: stand.source.query(heard)[0][0] > first + 2 * Impatient.SECONDS, 30)
    nothing_is_confirmed_and_the_link_lives(stand, before, place)
    stop.unlink()
    agrees_after(stand, before)


# ---------------------------------------------------------------- its limit


def test_at_its_limit_capture_waits_and_goes_on_by_itself(make: Make) -> None:
    """Below it, a target that takes nothing does not slow capture down; at it, nothing is read or confirmed."""
    stand = streaming(make("sqlite", buffer={"segment_ms": 5, "max_bytes": "200kB"}))
    before = slot(stand)
    stand.ask("pause")
    changed(stand, "little")
    place = source_end(stand)
    await_true(lambda: slot(stand)[1] >= place)
    stand.source.execute(
        *(
            f"insert into items select i, md5(i::text) || md5((-i)::text) from generate_series({n}000, {n}999) i"
            for n in range(1, 10)
        )
    )
    end = source_end(stand)
    await_waiting(stand, FULL)
    nothing_is_confirmed_and_the_link_lives(stand, before, end - 1)
    stand.ask("resume")
    agrees_after(stand, before)


def test_that_it_waits_is_shown_while_a_flush_is_kept_waiting(make: Make) -> None:
    """By somebody who has locked the table at the target: just then the buffer fills."""
    stand = streaming(make("postgres", buffer={"segment_ms": 5, "max_bytes": "50kB"}))
    assert isinstance(stand.target, PostgresHarness)
    with psycopg.connect(stand.target.dsn) as other:
        other.execute("lock table items in access exclusive mode")
        changed(stand, "kept")
        blocked = (
            "select 1 from pg_stat_activity where application_name like 'penstock:%:apply' and wait_event_type = 'Lock'"
        )
        await_true(lambda: stand.target.query(blocked))
        stand.source.execute("insert into items select i, md5(i::text) from generate_series(1000, 4000) i")
        stand.source.execute("insert into items select i, md5(i::text) from generate_series(5000, 9000) i")
        await_true(lambda: shown(stand)["waiting"].startswith(FULL), 10, lambda: shown(stand))
        assert shown(stand)["error"] == ""
        assert stand.target.query(blocked)  # all the while
    await_waiting(stand, "")
    stand.sync()
    stand.assert_agrees("items")


def shown(stand: Stand) -> dict[str, Any]:
    """As `penstock replications show` has it."""
    with open_store(stand.store) as store:
        known = store.agent(stand.replication.name)
    return dict(known.status) if known is not None else {}


# ---------------------------------------------------------------- whose it is


def test_the_buffer_of_another_replication_is_left_alone(make: Make, tmp_path: Path) -> None:
    """Of another project, perhaps, which the file of this one does not know."""
    folder = tmp_path / "shared"
    one = streaming(buffered(make, folder))
    two = make("duckdb", one.source, buffer={"path": str(folder)})
    two.start()
    await_true(lambda: two.error is not None)
    error, two.error = two.error, None
    assert isinstance(error, ConfigError)
    assert one.replication.name in error.what
    changed(one, "on")
    one.sync()
    one.assert_agrees("items")
