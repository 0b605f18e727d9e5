"""A flush that is folded ahead counts only where it would have been made just so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Event

import pytest

from penstock.backends.change_target import TableFailed
from penstock.backends.changes import TRANSACTIONS, Batch, Position
from penstock.errors import DataError
from penstock.replicate.ahead import Ahead, Made
from penstock.replicate.apply import Changes
from penstock.schema import TableName

HERE, THERE = Position("1/1", 10, 11), Position("1/1", 20, 21)
MADE = Made(HERE, {}, (), Changes(THERE, Batch(TRANSACTIONS.empty_table(), ())), (), {})


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    made = Ahead()
    yield made
    made.close()


def test_it_is_made_while_others_work_and_taken_once(ahead: Ahead) -> None:
    def make(over: Event) -> Made:
        assert over.wait(10)
        return MADE

    with ahead.making(make):
        pass  # it is over only behind this
    assert ahead.taken(HERE, {}) is MADE
    assert ahead.taken(HERE, {}) is None


def test_one_behind_another_position_is_made_anew(ahead: Ahead) -> None:
    with ahead.making(lambda _: MADE):
        pass
    assert ahead.taken(THERE, {}) is None


def test_one_for_other_tables_is_made_anew(ahead: Ahead) -> None:
    with ahead.making(lambda _: replace(MADE, kept={TableName("public", "gone"): None})):  # type: ignore[dict-item]
        pass
    assert ahead.taken(HERE, {}) is None


def test_one_that_fails_is_left_to_the_flush_itself(ahead: Ahead) -> None:
    def fail(_: Event) -> Made:
        raise TableFailed(TableName("public", "torn"), DataError("it contradicts itself"))

    with ahead.making(fail):
        pass
    assert ahead.taken(HERE, {}) is None
