"""The buffer as its readers see it: what lies behind a position, and what may go."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.changelog.chain import PIECE, Chain
from penstock.backends.changes import StoredChanges
from penstock.errors import LinkLost, StateError
from penstock.replicate.buffer import Buffer
from tests.unit.changelog_rows import fill, position, segment, version


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "new" / "log")


def test_a_buffer_gives_what_lies_behind_a_position(chain: Chain) -> None:
    last = replace(segment(30, 50, count=4), after=position(30, 39))
    fill(chain, segment(0, 10, 20), segment(20, 30), segment(30), last)
    buffer = Buffer(chain)
    assert buffer.end == position(50)

    def behind(commit: int, end: int | None = None, rows: int = 100) -> list[int]:
        return [one.until.commit for one in buffer.behind(position(commit, end), rows)]

    assert behind(0) == [20, 30, 30, 50]
    assert behind(10) == [20, 30, 30, 50]  # of the first, a transaction is still to come
    assert behind(20) == [30, 30, 50]
    assert behind(30) == [30, 50]  # the mark ends behind it
    assert behind(30, 39) == [50]
    assert behind(50) == []


def test_a_buffer_gives_at_least_one_and_else_no_more_than_so_many_rows(chain: Chain) -> None:
    fill(chain, segment(0, 10, count=5), segment(10, 20, count=5), segment(20, 30, count=5))
    buffer = Buffer(chain)
    for rows_wanted, count in ((1, 1), (5, 1), (9, 1), (10, 2), (100, 3)):
        assert len(buffer.behind(position(0), rows_wanted)) == count


def test_a_buffer_counts_the_rows_that_lie_in_pieces(chain: Chain) -> None:
    stored = StoredChanges(version(), f"{'0' * 32}{PIECE}", 50, 1, 0)
    fill(chain, segment(0, 10), segment(10, 20, stored=[stored]))
    assert len(Buffer(chain).behind(position(0), 20)) == 1


def test_a_buffer_sees_what_comes_after_it_was_opened(chain: Chain) -> None:
    buffer = Buffer(chain)
    assert (buffer.end, buffer.behind(position(0), 10)) == (None, [])
    chain.append(segment(0, 10), 1)
    assert [one.until.commit for one in buffer.behind(position(0), 10)] == [10]
    chain.append(segment(10, 20), 2)
    assert [one.until.commit for one in buffer.behind(position(10), 10)] == [20]
    assert buffer.end == position(20)


def test_what_two_threads_find_at_once_is_there_once(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(chain)
    fill(chain, segment(0, 10), segment(10, 20))
    footer = chain.footer
    other = threading.Thread(target=lambda: buffer.rows_behind(position(0)))

    def slowly(number: int) -> dict[str, Any]:
        if not other.ident:
            other.start()
            other.join(0.2)  # as far as it comes
        return footer(number)

    monkeypatch.setattr(chain, "footer", slowly)
    assert [one.number for one in buffer.behind(position(0), 100)] == [1, 2]
    other.join()
    assert [one.number for one in buffer.behind(position(0), 100)] == [1, 2]


def test_a_buffer_is_trimmed_by_need_and_by_age(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(chain, segment(0, 10), segment(10, 20), segment(20, 30))
    buffer = Buffer(chain)
    buffer.trim(position(20), retain=3600, most_bytes=1 << 30)
    assert chain.numbers() == [1, 2, 3]  # none is old enough
    later = time.time() + 7200
    monkeypatch.setattr("penstock.replicate.buffer.time.time", lambda: later)
    buffer.trim(position(15, 15), retain=3600, most_bytes=1 << 30)
    assert chain.numbers() == [2, 3]  # somebody needs the rest
    buffer.trim(position(30), retain=3600, most_bytes=1 << 30)
    assert chain.numbers() == [3]  # where we are stays
    assert buffer.end == position(30)
    assert [one.until.commit for one in buffer.behind(position(20), 10)] == [30]
    assert Buffer(chain).end == position(30)


def test_what_is_only_kept_makes_room_before_it_is_old(chain: Chain) -> None:
    fill(chain, segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40))
    buffer = Buffer(chain)
    sizes = [chain.path(number).stat().st_size for number in chain.numbers()]
    buffer.trim(position(30), retain=3600, most_bytes=sum(sizes))
    assert chain.numbers() == [1, 2, 3, 4]
    buffer.trim(position(30), retain=3600, most_bytes=sum(sizes) - 1)
    assert chain.numbers() == [2, 3, 4]  # no more than it must
    buffer.trim(position(20), retain=3600, most_bytes=0)
    assert chain.numbers() == [3, 4]  # what nobody has applied stays, whatever it takes


def test_a_buffer_that_begins_behind_a_position_has_a_gap(chain: Chain) -> None:
    """A target that was restored from a backup: older than what is kept, it must not go on as if nothing were."""
    fill(chain, segment(0, 10), segment(10, 20), segment(20, 30))
    chain.remove_until(1)
    buffer = Buffer(chain)
    with pytest.raises(StateError, match="has a gap") as caught:
        buffer.behind(position(5), 10)
    assert "resync" in caught.value.remedy
    assert [one.until.commit for one in buffer.behind(position(10), 10)] == [20, 30]


def test_a_buffer_whose_segments_do_not_meet_has_a_gap(chain: Chain) -> None:
    fill(chain, segment(0, 10), segment(15, 20))
    with pytest.raises(StateError, match="has a gap"):
        Buffer(chain).behind(position(5), 10)
    chain.append(segment(25, 30), 3)
    with pytest.raises(StateError, match="has a gap"):
        Buffer(chain).behind(position(20), 10)


@pytest.mark.parametrize("onto", [500, 5])
def test_nobody_goes_across_a_hole_and_what_lies_before_it_is_let_go(chain: Chain, onto: int) -> None:
    """A log that was begun anew, all tables copied; at a source that was set back, from a lower position on."""
    fill(chain, segment(0, 100), segment(100, 200))
    chain.claim(position(0), onto=position(onto))
    chain.append(segment(onto, onto + 10), 4)
    buffer = Buffer(chain)
    assert buffer.lacks(position(onto)) == ""
    assert [one.number for one in buffer.behind(position(onto), 100)] == [4]
    if onto > 200:
        for place in (150, 200):
            assert "were not captured" in buffer.lacks(position(place))
            with pytest.raises(StateError, match="has a gap"):
                buffer.behind(position(place), 100)
        assert len(Buffer(chain, foreign=True).behind(position(150), 100)) == 3
    buffer.trim(position(onto), retain=-1, most_bytes=1 << 30)
    assert chain.numbers() == [4]


def test_a_buffer_that_is_away_is_waited_for_and_not_called_a_gap(chain: Chain) -> None:
    fill(chain, segment(0, 10), segment(10, 20))
    buffer = Buffer(chain)
    away = chain.folder.rename(chain.folder.with_name("away"))
    with pytest.raises(LinkLost, match="is away"):
        buffer.behind(position(0), 10)
    buffer.trim(position(20), retain=0, most_bytes=0)
    away.rename(chain.folder)
    assert len(buffer.behind(position(0), 10)) == 2


def test_a_start_reads_no_more_than_what_lies_behind_its_position(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day has hundreds of thousands of segments, nearly all of them applied."""
    fill(chain, *(segment(at, at + 10) for at in range(0, 400, 10)))
    read: list[int] = []
    footer = chain.footer

    def noted(number: int) -> dict[str, Any]:
        read.append(number)
        return footer(number)

    monkeypatch.setattr(chain, "footer", noted)
    buffer = Buffer(chain)
    assert [one.until.commit for one in buffer.behind(position(370), 100)] == [380, 390, 400]
    assert (buffer.rows_behind(position(380)), buffer.end) == (2, position(400))
    assert read == [40, 39, 38]
    buffer.trim(position(400), retain=3600, most_bytes=1 << 30)
    assert read == [40, 39, 38]
    # One that falls back, to a backup perhaps, finds them all the same; and each is read once.
    read.clear()
    assert len(buffer.behind(position(200), 100)) == len(buffer.behind(position(200), 100)) == 20
    assert read == list(range(39, 20, -1))
    # Only those that go are read when they go.
    read.clear()
    buffer.trim(position(20), retain=-1, most_bytes=1 << 30)
    assert (chain.first(), sorted(set(read))) == (3, [1, 2, 3])
