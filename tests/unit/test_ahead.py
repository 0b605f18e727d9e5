"""A flush that is folded ahead counts only where it would have been made just so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Condition, Event

import pyarrow as pa
import pytest

from penstock.backends.change_target import TableFailed
from penstock.backends.changes import TRANSACTIONS, Batch, Position
from penstock.errors import DataError
from penstock.replicate.ahead import Ahead, Made, one_ahead
from penstock.replicate.apply import Changes, Prepared, TablePlan
from penstock.schema import TableName

HERE, THERE = Position("1/1", 10, 11), Position("1/1", 20, 21)
EMPTY = pa.table({})
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


def plan(rounds: int) -> TablePlan:
    return TablePlan(None, ((),) * rounds)  # type: ignore[arg-type]  # only its rounds are counted


def test_the_rounds_of_a_flush_come_in_their_order_and_one_is_made_ahead() -> None:
    plans = [plan(2), plan(1)]  # told apart by their rounds
    begun: list[tuple[int, int]] = []
    came = Condition()

    def prepare(of: TablePlan, number: int) -> Prepared:
        with came:
            begun.append((plans.index(of), number))
            came.notify_all()
        return Prepared(truncated=bool(number), upserts=EMPTY, deletes=EMPTY)

    wanted = [(0, 0), (0, 1), (1, 0)]
    with one_ahead(plans, prepare) as taken:
        for at, (table, number) in enumerate(wanted):
            assert taken(plans[table], number).truncated == bool(number)
            with came:  # the next one, and not the one after it
                assert came.wait_for(lambda until=at: begun == wanted[: until + 2], 10)


def test_a_round_that_fails_does_so_in_its_turn() -> None:
    def prepare(_: TablePlan, number: int) -> Prepared:
        if number == 1:
            raise DataError("it contradicts itself")
        return Prepared(truncated=False, upserts=EMPTY, deletes=EMPTY)

    table = plan(2)
    with one_ahead([table], prepare) as taken:
        taken(table, 0)
        with pytest.raises(DataError, match="contradicts"):
            taken(table, 1)
