"""Old segments in packs: each is there once, whoever reads, writes or dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.changelog import packs
from penstock.backends.changelog.chain import Chain, Fenced
from penstock.backends.changes import StoredChanges
from penstock.errors import StateError
from penstock.observe.failpoints import ENV, OLD
from penstock.replicate.buffer import Buffer
from tests.unit.changelog_rows import Disk, fill, position, same, segment, streamed, version

SEGMENTS = 4  # in a pack of these tests


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SEGMENTS", SEGMENTS)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "log")


def filled(chain: Chain, count: int) -> Chain:
    fill(chain, *(segment(at * 10, at * 10 + 10) for at in range(count)))
    return chain


def pack_all(chain: Chain) -> int:
    made = 0
    while chain.pack():
        made += 1
    return made


def files(chain: Chain) -> list[str]:
    return sorted(f"{int(Path(name).stem)}{Path(name).suffix}" for name in os.listdir(chain.folder))


def assert_has(chain: Chain, first: int, last: int) -> None:
    """Each once, and what it was."""
    for one in (chain, Chain(chain.folder)):
        assert one.numbers() == list(range(first, last + 1))
        assert (one.first(), one.last()) == (first, last)
        assert [number for number, _ in one.after(first - 1)] == list(range(first, last + 1))
        assert all(same(one.read(number), segment(number * 10 - 10, number * 10)) for number in range(first, last + 1))
    read = Buffer(Chain(chain.folder)).behind(position(first * 10 - 10), 10_000)
    assert [one.number for one in read] == list(range(first, last + 1))


def test_old_segments_become_few_files_and_are_read_where_they_are(chain: Chain) -> None:
    filled(chain, 18)
    before = chain.bytes()
    assert pack_all(chain) == 3
    assert files(chain) == [
        *("0.pack", "12.segment", "13.segment", "14.segment", "15.segment", "16.segment", "17.segment", "18.segment"),
        *("4.pack", "8.pack"),
    ]
    assert before < chain.bytes() < before + 3 * 100
    assert_has(chain, 1, 18)
    assert not chain.pack()
    assert chain.end() == (18, position(180))
    # And it goes on.
    chain.append(segment(180, 190), 19)
    assert pack_all(chain) == 1
    assert_has(chain, 1, 19)


def test_segments_that_are_large_stay_as_they_are(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(chain, 12)
    second = sum(chain.path(number).stat().st_size for number in (4, 5, 6, 7))
    monkeypatch.setattr(packs, "MOST_BYTES", second - 1)  # the first pack has three
    assert pack_all(chain) == 1
    assert_has(chain, 1, 12)


def test_a_pack_goes_as_a_whole_with_its_pieces(chain: Chain) -> None:
    for number in range(1, 13):
        file, crc = chain.put(streamed(3))
        stored = StoredChanges(version(), file, 3, crc, 0)
        chain.append(segment(number * 10 - 10, number * 10, stored=[stored]), number)
    before = chain.bytes()
    assert pack_all(chain) == 2
    chain.sweep()  # what a segment in a pack names is named
    assert len(list(chain.folder.glob("*.changes"))) == 12
    assert chain.remove_until(2) == 0
    assert chain.first() == 1
    held = chain.bytes()
    freed = chain.remove_until(6)
    assert (chain.first(), chain.last()) == (4, 12)
    assert len(list(chain.folder.glob("*.changes"))) == 9
    assert chain.bytes() == held - freed < before
    chain.remove()
    assert not chain.folder.exists()


def test_a_buffer_with_packs_is_trimmed_by_need_and_by_age(chain: Chain) -> None:
    filled(chain, 20)
    now = time.time()
    for number in range(1, 21):
        os.utime(chain.path(number), (now, now - 1000 + number * 10))
    buffer = Buffer(chain)
    everything = chain.bytes()
    buffer.trim(position(0), retain=3600, most_bytes=1 << 30)
    assert len(list(chain.folder.glob("*.pack"))) == 4
    assert_has(chain, 1, 20)
    # The second pack ends with number 7: its age is that of it, and the first one's is that of number 3.
    buffer.trim(position(200), retain=1000 - 65, most_bytes=1 << 30)
    assert_has(chain, 4, 20)
    buffer.trim(position(69), retain=0, most_bytes=1 << 30)
    assert_has(chain, 4, 20)  # somebody needs its last segment
    buffer.trim(position(200), retain=3600, most_bytes=everything // 2)
    assert_has(chain, 12, 20)
    buffer.trim(position(200), retain=-1, most_bytes=1 << 30)
    assert_has(chain, 20, 20)
    assert buffer.end == position(200)


@pytest.mark.parametrize("clock", ["right", "set back", "set on"])
def test_a_piece_is_found_to_be_named_without_reading_all(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """The log of a day in which a large transaction was: each start looks for what names its pieces."""
    now = time.time()
    pieces = []
    for number in range(1, 61):
        stored = []
        if number in (5, 30):
            for _ in range(3):
                file, crc = chain.put(streamed(3))
                stored.append(StoredChanges(version(), file, 3, crc, 0))
                os.utime(chain.folder / file, (now, now + number))
        chain.append(segment(number * 10 - 10, number * 10, stored=stored), number)
        os.utime(chain.path(number), (now, now + number))
        pieces += [one.file for one in stored]
    pack_all(chain)
    by = {"right": 0, "set back": -1000, "set on": 1000}[clock]
    for file in pieces:
        os.utime(chain.folder / file, (now, (chain.folder / file).stat().st_mtime + by))
    read: list[int] = []
    footer = Chain.footer

    def noted(one: Chain, number: int) -> dict[str, Any]:
        read.append(number)
        return footer(one, number)

    monkeypatch.setattr(Chain, "footer", noted)
    Chain(chain.folder).sweep()
    assert sorted(path.name for path in chain.folder.glob("*.changes")) == sorted(pieces)
    assert len(read) < 10 or clock != "right"
    orphan, _ = chain.put(streamed(1))
    Chain(chain.folder).sweep()
    assert sorted(path.name for path in chain.folder.glob("*.changes")) == sorted(pieces)
    assert orphan not in pieces


# ---------------------------------------------------------------- a crash

KILLED = (
    "import sys; from pathlib import Path; from penstock.backends.changelog import packs;"
    " from penstock.backends.changelog.chain import Chain; packs.SEGMENTS = int(sys.argv[2]);"
    " chain = Chain(Path(sys.argv[1])); chain.pack()"
)


@pytest.mark.parametrize("failpoint", [*OLD, "pack.removed twice"])
def test_a_pack_that_is_not_done_is_done_by_the_next(chain: Chain, failpoint: str, tmp_path: Path) -> None:
    filled(chain, 14)
    pack_all(chain)
    for number in range(15, 21):
        chain.append(segment(number * 10 - 10, number * 10), number)
    for _ in failpoint.split():
        armed = {ENV: f"{failpoint.split()[0]}=kill"}
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(chain.folder), str(SEGMENTS)], env=os.environ | armed, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert_has(chain, 1, 20)
    after = Chain(chain.folder)
    after.sweep()
    assert pack_all(after) >= 1
    assert_has(after, 1, 20)
    assert len(list(after.folder.glob("*.pack"))) == 4
    assert [name for name in os.listdir(after.folder) if name.startswith(".")] == []
    assert not after.path(15).exists()
    assert after.path(16).exists()


def test_a_pack_is_on_the_disk_with_its_name_before_a_segment_goes(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(chain, 12)
    chain.pack()
    disk = Disk(monkeypatch)
    real = os.unlink

    def unlink(path: Any, **options: Any) -> None:
        disk.calls.append(("unlink", Path(path).name))
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    chain.pack()
    monkeypatch.undo()
    temporary = f".{4:020d}.{chain.writer}"
    assert [(call, name.partition(":")[0]) for call, name in disk.calls] == [
        ("fsync", temporary),
        ("link", f"{4:020d}.pack"),
        ("unlink", temporary),
        ("fsync", "log/"),
        *(("unlink", f"{number:020d}.segment") for number in (4, 5, 6, 7)),
    ]


def test_a_pack_that_is_damaged_is_found_so(chain: Chain) -> None:
    filled(chain, 12)
    chain.pack()
    pack = chain.pack_path(1)
    whole = pack.read_bytes()
    for size in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        pack.write_bytes(whole[:size] or b"x")
        with pytest.raises(StateError, match="is damaged"):
            chain.read(2)
    for place in range(0, len(whole), 61):
        torn = bytearray(whole)
        torn[place] ^= 255
        pack.write_bytes(bytes(torn))
        for number in (1, 2, 3):
            try:
                assert same(chain.read(number), segment(number * 10 - 10, number * 10))  # it was in another one
            except StateError:
                continue


# ---------------------------------------------------------------- others at the same log


def test_a_writer_that_was_replaced_stays_fenced_when_its_number_is_packed(chain: Chain) -> None:
    filled(chain, 2)
    stale = Chain(chain.folder)
    after = Chain(chain.folder, turn=(0, 1))
    after.claim(position(0))
    for number in range(4, 14):
        after.append(segment(number * 10 - 10, number * 10), number)
    assert pack_all(after) == 2
    with pytest.raises(Fenced):
        stale.append(segment(20, 30), 3)
    assert not stale.path(3).exists()


def test_nor_does_it_count_what_it_links_to_a_number_that_is_packed(chain: Chain) -> None:
    filled(chain, 13)
    chain.remove_until(1)  # so the rest of what would be the first pack stays
    assert pack_all(chain) == 1
    stale = Chain(chain.folder)
    with pytest.raises(Fenced):
        stale.append(segment(31, 40), 4)
    assert not chain.path(4).exists()
    assert_has(chain, 2, 13)
    # One that dies before it finds that out.
    chain.path(5).write_bytes(chain.path(13).read_bytes())
    assert_has(chain, 2, 13)


def test_a_segment_that_is_packed_while_it_is_looked_for_is_found(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(chain, 12)
    reader = Chain(chain.folder)
    real = Path.exists
    asked: list[str] = []

    def exists(path: Path, **options: Any) -> bool:
        found = real(path, **options)
        if not asked:
            asked.append(path.name)
            pack_all(chain)  # just when it was seen not to be there
        return found

    monkeypatch.setattr(Path, "exists", exists)
    assert same(reader.read(2), segment(10, 20))
    assert asked == [f"{0:020d}.pack"]


@pytest.mark.parametrize("seen", [1, 0])
def test_a_listing_that_lacks_what_was_packed_meanwhile_is_made_again(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """It began before there was a pack, and came to the segments after they were gone."""
    filled(chain, 12)
    young = [chain.path(number).name for number in range(8, 13)]
    listings = [[chain.path(number).name for number in range(1, 1 + seen)] + young]
    pack_all(chain)
    listings.append(os.listdir(chain.folder))
    monkeypatch.setattr(os, "listdir", lambda _: listings.pop(0))
    assert Chain(chain.folder).numbers() == list(range(1, 13))
    assert listings == []


def test_two_that_pack_at_once_leave_each_segment_once(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was replaced, and does not know it yet: neither must end because of the other."""
    filled(chain, 12)
    other = Chain(chain.folder)
    encode = packs.encode

    def late(segments: Iterator[pa.Buffer]) -> Iterator[pa.Buffer | bytes]:
        monkeypatch.setattr(packs, "encode", encode)
        assert other.pack()  # all of it, while we are about to begin
        return encode(segments)

    monkeypatch.setattr(packs, "encode", late)
    with pytest.raises(FileNotFoundError):  # which is waited for, as a disk is
        chain.pack()
    assert_has(chain, 1, 12)
    assert pack_all(chain) == 1
    assert_has(chain, 1, 12)
    assert not [name for name in os.listdir(chain.folder) if name.startswith(".")]
