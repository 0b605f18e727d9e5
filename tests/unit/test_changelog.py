"""The durable log: what is in the chain is whole, in order, and one writer's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.backends import changes
from penstock.backends.changelog import segment as form
from penstock.backends.changelog.chain import PIECE, Chain, Fenced
from penstock.backends.changes import StoredChanges
from penstock.errors import StateError
from penstock.replicate.buffer import Buffer
from tests.unit.changelog_rows import Disk, fill, position, same, segment, streamed, version


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "new" / "log")


# ---------------------------------------------------------------- reading and writing


def test_a_segment_comes_back_as_it_was(chain: Chain) -> None:
    stored = StoredChanges(version(table="big"), f"{'0' * 32}{PIECE}", 7, 4711, 1, (8, 9))
    written = segment(0, 10, 20, count=3, stored=[stored])
    size = chain.append(written, 1)
    assert same(chain.read(1), written)
    assert chain.path(1).stat().st_size == size == chain.bytes()
    assert os.listdir(chain.folder) == [chain.path(1).name]


def test_a_segment_without_transactions_says_how_far_the_log_has_gone(chain: Chain) -> None:
    chain.append(segment(10), 1)
    assert same(chain.read(1), segment(10))
    assert chain.end() == (1, position(10, 19))


def test_a_log_that_is_not_there_is_empty(chain: Chain) -> None:
    assert (chain.numbers(), chain.end(), chain.bytes(), list(chain.after(0))) == ([], None, 0, [])
    chain.sweep()


def test_segments_follow_each_other(chain: Chain) -> None:
    fill(chain, segment(0, 10), segment(10, 20), segment(20, 30))
    assert chain.numbers() == [1, 2, 3]
    assert chain.end() == (3, position(30))
    assert [(number, one.until.commit) for number, one in chain.after(1)] == [(2, 20), (3, 30)]


def test_positions_keep_all_their_bits(chain: Chain) -> None:
    last = 2**64 - 6
    chain.append(segment(2**63, last), 1)
    assert chain.end() == (1, position(last))
    assert chain.read(1).transactions["commit"].to_pylist() == [last]


# ---------------------------------------------------------------- damage


def test_a_file_that_was_cut_anywhere_is_no_segment(chain: Chain) -> None:
    chain.append(segment(0, 10), 1)
    whole = chain.path(1).read_bytes()
    for size in range(0, len(whole), 7):
        chain.path(1).write_bytes(whole[:size])
        with pytest.raises(StateError, match="is damaged") as caught:
            chain.read(1)
        assert "resync" in caught.value.remedy


def test_a_byte_that_has_changed_anywhere_is_found(chain: Chain) -> None:
    chain.append(segment(0, 10), 1)
    whole = chain.path(1).read_bytes()
    for at in range(0, len(whole), 5):
        torn = bytearray(whole)
        torn[at] ^= 0x40
        chain.path(1).write_bytes(bytes(torn))
        with pytest.raises(StateError, match="is damaged"):
            chain.read(1)


def test_a_segment_under_another_number_is_refused(chain: Chain) -> None:
    chain.append(segment(0, 10), 1)
    chain.path(1).rename(chain.path(2))
    with pytest.raises(StateError, match="number 1"):
        chain.read(2)


def test_a_segment_of_a_later_format_is_refused(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "FORMAT", 2)
    chain.append(segment(0, 10), 1)
    monkeypatch.undo()
    with pytest.raises(StateError, match="has format 2") as caught:
        chain.read(1)
    assert "newer" in caught.value.remedy


def test_a_gap_is_told_and_not_stepped_over(chain: Chain) -> None:
    fill(chain, segment(0, 10), segment(10, 20), segment(20, 30))
    chain.path(2).unlink()
    with pytest.raises(StateError, match="has a gap") as caught:
        chain.numbers()
    assert "2 is not" in caught.value.why
    assert "resync" in caught.value.remedy
    with pytest.raises(StateError, match="is gone"):
        chain.read(2)


# ---------------------------------------------------------------- two writers


def test_a_second_writer_is_fenced(chain: Chain) -> None:
    other = Chain(chain.folder)
    chain.append(segment(0, 10), 1)
    with pytest.raises(Fenced) as caught:
        other.append(segment(0, 15), 1)
    assert "stop one" in caught.value.remedy
    assert same(chain.read(1), segment(0, 10))
    assert os.listdir(chain.folder) == [chain.path(1).name]  # nothing half written is left of it


def test_our_own_append_again_is_taken_for_done(chain: Chain) -> None:
    """The answer to the first was lost: it is there, and nothing is there twice."""
    chain.append(segment(0, 10), 1)
    chain.append(segment(0, 10), 1)
    assert chain.numbers() == [1]
    assert same(chain.read(1), segment(0, 10))


def test_whoever_takes_over_fences_the_one_before_and_goes_on_at_the_true_end(chain: Chain) -> None:
    """The one before is slow to die: what it writes late must not fence the one that has replaced it."""
    chain.append(segment(0, 10), 1)
    after = Chain(chain.folder, turn=(0, 1))
    assert after.end() == (1, position(10))
    chain.append(segment(10, 20), 2)  # late
    assert after.claim(position(0)) == (3, position(20))
    with pytest.raises(Fenced):
        chain.append(segment(20, 30), 3)
    after.append(segment(20, 31), 4)
    assert [one.until.commit for one in Buffer(after).behind(position(10), 100)] == [20, 20, 31]


def test_a_claim_that_is_overtaken_goes_on_behind_what_was_written(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.append(segment(0, 10), 1)
    after = Chain(chain.folder, turn=(0, 1))
    link = os.link

    def overtaken(*given: Any) -> None:
        monkeypatch.undo()
        chain.append(segment(10, 20), 2)  # just before the name is taken
        link(*given)

    monkeypatch.setattr(os, "link", overtaken)
    assert after.claim(position(0)) == (3, position(20))


def test_an_agent_that_was_replaced_cannot_claim_the_log_back(chain: Chain) -> None:
    chain.turn = chain.following(epoch=1)
    chain.claim(position(0))
    later = Chain(chain.folder)
    later.turn = later.following(epoch=2)
    later.claim(position(0))
    again = Chain(chain.folder, turn=chain.turn)  # another capture of the same agent
    with pytest.raises(Fenced):
        again.claim(position(0))
    assert Chain(chain.folder, turn=later.turn).claim(position(0))[0] == 3


def test_the_agent_of_a_target_that_was_set_back_comes_after_those_before_it(chain: Chain) -> None:
    chain.turn = chain.following(epoch=7)
    chain.claim(position(0))
    restored = Chain(chain.folder)
    restored.turn = restored.following(epoch=3)
    assert restored.turn > chain.turn
    restored.claim(position(0))
    with pytest.raises(Fenced):
        chain.claim(position(0))


def test_a_claim_removes_what_the_dead_left_and_no_piece_of_a_later_one(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.append(segment(0, 10), 1)
    left, _ = chain.put(streamed(1))
    after = Chain(chain.folder, turn=(0, 1))
    later = Chain(chain.folder, turn=(0, 2))
    pieces: list[str] = []
    sweep = after.sweep

    def slowly(entries: Any) -> None:
        later.claim(position(0))
        pieces.append(later.put(streamed(1))[0])
        sweep(entries)

    monkeypatch.setattr(after, "sweep", slowly)
    after.claim(position(0))
    assert left not in os.listdir(chain.folder)
    assert pieces[0] in os.listdir(chain.folder)


def test_many_writers_of_one_number_leave_one_winner(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from penstock.backends.changelog.chain import Chain, Fenced;"
        "from tests.unit.changelog_rows import segment; chain = Chain(Path(sys.argv[1])); sys.stdin.readline()\n"
        "try: [chain.append(segment(n, n + 1), n + 1) for n in range(20)]\n"
        "except Fenced: sys.exit(3)\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdin=subprocess.PIPE) for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"\n")
        racer.stdin.close()
    assert sorted(racer.wait(60) for racer in racers) == [0, 3, 3, 3]
    chain = Chain(tmp_path / "log")
    assert chain.numbers() == list(range(1, 21))
    assert len({chain.footer(number)["writer"] for number in chain.numbers()}) == 1


# ---------------------------------------------------------------- what is left behind


def test_a_sweep_removes_what_the_dead_left_and_nothing_else(chain: Chain) -> None:
    named, crc = chain.put(streamed(3))
    chain.append(segment(0, 10, stored=[StoredChanges(version(), named, 3, crc, 0)]), 1)
    forgotten, _ = chain.put(streamed(1))
    half = chain.folder / f".{2:020d}.{'a' * 32}"
    half.write_bytes(b"half")
    own = chain.folder / f".{2:020d}.{chain.writer}"
    own.write_bytes(b"ours")
    stranger = chain.folder / "README"
    stranger.write_text("keep")
    chain.sweep()
    assert sorted(os.listdir(chain.folder)) == sorted([chain.path(1).name, named, own.name, stranger.name])
    assert forgotten not in os.listdir(chain.folder)


def test_a_piece_comes_back_without_what_was_rolled_back(chain: Chain) -> None:
    file, crc = chain.put(streamed(5))
    stored = StoredChanges(version(), file, 5, crc, 3, aborted=(8,))
    found = chain.piece(stored)
    assert found.rows["n0"].to_pylist() == ["0", "2", "4"]
    assert found.rows["tx"].to_pylist() == [3, 3, 3]
    assert found.rows.schema.field("tx") == changes.TX
    assert "sub" not in found.rows.column_names
    assert chain.piece(replace(stored, aborted=())).rows.num_rows == 5
    with pytest.raises(StateError, match="is damaged"):
        chain.piece(replace(stored, crc=crc + 1))
    with pytest.raises(StateError, match="is damaged"):
        chain.piece(replace(stored, rows=4))
    chain.drop(file)
    chain.drop(file)
    with pytest.raises(StateError, match="is gone"):
        chain.piece(stored)


def test_removing_frees_segments_with_their_pieces(chain: Chain) -> None:
    file, crc = chain.put(streamed(3))
    stored = StoredChanges(version(), file, 3, crc, 0)
    fill(chain, segment(0, 10, stored=[stored]), segment(10, 20), segment(20, 30))
    before = chain.bytes()
    freed = chain.remove_until(2)
    assert chain.numbers() == [3]
    assert not (chain.folder / file).exists()
    assert chain.bytes() == before - freed


# ---------------------------------------------------------------- a folder that is away


def test_a_log_does_not_go_on_in_an_empty_folder(chain: Chain) -> None:
    """Its disk is not mounted: what was written beneath it would be lost when it is."""
    fill(chain, segment(0, 10), segment(10, 20))
    away = chain.folder.rename(chain.folder.with_name("away"))
    for empty in (False, True):
        if empty:
            chain.folder.mkdir()
        with pytest.raises(FileNotFoundError):
            chain.append(segment(20, 30), 3)
        with pytest.raises(FileNotFoundError):
            chain.put(streamed(1))
    assert os.listdir(chain.folder) == []
    chain.folder.rmdir()
    away.rename(chain.folder)
    chain.append(segment(20, 30), 3)
    assert chain.end() == (3, position(30))


# ---------------------------------------------------------------- how much it holds


def test_many_segments_cost_no_more_to_write_than_few(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes, looks for room or for the end must not list them all."""
    fill(chain, segment(0, 10), segment(10, 20))
    assert chain.first() == 1
    before = chain.most_bytes()
    buffer = Buffer(chain)
    listed: list[object] = []
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, lambda *given: listed.append(given))
    size = chain.append(segment(20, 30), 3)
    assert chain.most_bytes() == before + size
    assert chain.end() == (3, position(30))
    assert [one.until.commit for one in buffer.behind(position(20), 10)] == [30]
    buffer.trim(position(30), retain=3600, most_bytes=before + size)
    assert (chain.first(), chain.last()) == (1, 3)
    assert listed == []
    monkeypatch.undo()
    buffer.trim(position(30), retain=3600, most_bytes=size)
    assert (chain.first(), chain.last()) == (3, 3)


def test_pieces_count_when_a_segment_names_them(chain: Chain) -> None:
    """Else the capture of a transaction larger than its limit would wait for room before it has read the end of it."""
    chain.append(segment(0, 10), 1)
    before = chain.bytes()
    file, crc = chain.put(streamed(3))
    assert chain.most_bytes() == chain.bytes() == before
    size = chain.append(segment(10, 20, stored=[StoredChanges(version(), file, 3, crc, 0)]), 2)
    whole = before + size + (chain.folder / file).stat().st_size
    assert chain.most_bytes() == chain.bytes() == whole


# ---------------------------------------------------------------- a power cut


def test_a_segment_is_on_the_disk_before_its_name_and_the_name_before_it_is_told(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.append(segment(0, 10), 1)
    disk = Disk(monkeypatch)
    size = chain.append(segment(10, 20), 2)
    monkeypatch.undo()
    temporary = f".{2:020d}.{chain.writer}"
    assert disk.calls == [
        ("fsync", f"{temporary}:{size}"),  # all of its bytes
        ("link", chain.path(2).name),
        ("fsync", "log/"),
    ]


def test_the_folder_of_a_new_log_is_on_the_disk_too(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own entry lies in the folder above: a power cut would otherwise take all of it."""
    disk = Disk(monkeypatch)
    chain.append(segment(0, 10), 1)
    monkeypatch.undo()
    folders = [folder for call, folder in disk.calls if call == "mkdir" or folder.endswith("/")]
    above = f"{chain.folder.parents[1].name}/"
    assert folders[-5:] == ["new", above, "log", "new/", "log/"]


def test_a_piece_is_on_the_disk_before_it_is_named(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    chain.append(segment(0, 10), 1)
    disk = Disk(monkeypatch)
    name, _ = chain.put(streamed(3))
    size = (chain.folder / name).stat().st_size
    monkeypatch.undo()
    assert disk.calls == [("fsync", f"{name}:{size}")]


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_disk_that_refuses_leaves_no_segment_and_can_be_asked_again(
    call: str, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.append(segment(0, 10), 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        chain.append(segment(10, 20), 2)
    monkeypatch.undo()
    assert chain.numbers() == [1]
    chain.append(segment(10, 20), 2)
    assert same(chain.read(2), segment(10, 20))
    assert sorted(os.listdir(chain.folder)) == [chain.path(1).name, chain.path(2).name]
