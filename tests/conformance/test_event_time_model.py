"""History by event time against a model: any events, cut into any loads, in any order, give one table.

The planner's own statements are run on a real DuckDB in memory, as in `test_modes_model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.base import RAW
from penstock.backends.duckdb.capabilities import CAPABILITIES
from penstock.backends.sql import Counts, run_steps
from penstock.errors import DataError, Unsupported
from penstock.load.plan import LoadRequest, plan_load
from penstock.project.model import Pipeline
from penstock.schema import Column, Schema
from tests.conformance.test_modes_model import RUN, TABLE, Planned, Session

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = st.integers(0, 2)
TIMES = st.integers(0, 7)
VALUES = st.none() | st.sampled_from(["a", "b", ""])


@dataclass(frozen=True, order=True)
class Event:
    key: int
    time: int
    value: str | None
    seq: int = 0


Version = tuple[int, str | None, int, int | None, bool]


class History:
    """A target that is loaded with one list of events after the other."""

    def __init__(self, **options: Any) -> None:
        self.session = Session()
        self.target = Planned(self.session)
        self.options = {"name": "p", "source": "s", "table": "t", "target": "w.items", "mode": "scd2"} | {
            "event_time": "at",
            "max_delete_ratio": 1,
            "allow_empty": True,
        }
        self.options |= options
        self.schema = Schema.of(
            [
                Column("at", pa.timestamp("us", "UTC")),
                Column("id", pa.int64(), nullable=False),
                Column("value", pa.string()),
                Column("seq", pa.int64()),
            ]
        )

    def load(self, events: Sequence[Event], *, full_refresh: bool = False, **options: Any) -> Counts:
        pipeline = Pipeline.model_validate(self.options | options)
        existing = self.target.inspect(TABLE)
        request = LoadRequest(pipeline, self.schema, ("id",), TABLE, existing, RUN, full_refresh=full_refresh)
        planned = plan_load(request, self.target, CAPABILITIES)
        planned.require("test")
        rows = {
            "at": [START + timedelta(hours=event.time) for event in events],
            "id": [event.key for event in events],
            "value": [event.value for event in events],
            "seq": [event.seq for event in events],
        }
        self.session.connection.register("staged_rows", pa.table(rows, schema=self.schema.arrow()))
        self.session.execute(f"create or replace temp table {RAW} as select * from staged_rows")
        counts = Counts()
        self.session.execute("begin")
        try:
            run_steps(self.session, planned.load.tables[0], counts, savepoints=False)
        except BaseException:
            self.session.execute("rollback")
            raise
        self.session.execute("commit")
        for kind in ("view", "table"):
            for (name,) in self.session.query(
                f"select {kind}_name from duckdb_{kind}s() where temporary and starts_with({kind}_name, '_penstock')"
            ):
                self.session.execute(f"drop {kind} temp.{name}")
        return counts

    def rows(self) -> list[tuple[Any, ...]]:
        return self.session.query(
            'select id, value, epoch_us(valid_from), epoch_us(valid_to), is_current, seq, "at" = valid_from,'
            " row_hash like '2:%'"
            " from items order by id, valid_from"
        )

    def versions(self) -> list[Version]:
        """Bounds as hours after the start."""
        assert all(row[6] and row[7] for row in self.rows())
        return [(key, value, hour(begin), hour(end), current) for key, value, begin, end, current, *_ in self.rows()]


def hour(micros: int | None) -> float | None:
    return None if micros is None else micros / 3_600_000_000 - START.timestamp() / 3600


def modelled(events: Sequence[Event]) -> list[Version]:
    """Every event is a version, and each ends where the next of its key begins."""
    found: list[Version] = []
    for key in sorted({event.key for event in events}):
        own = sorted({(event.time, event.value) for event in events if event.key == key}, key=lambda pair: pair[0])
        ends = [time for time, _ in own[1:]] + [None]
        found += [(key, value, time, end, end is None) for (time, value), end in zip(own, ends, strict=True)]
    return found


@st.composite
def loads(draw: st.DrawFn, events: Sequence[Event]) -> list[list[Event]]:
    """The events in any order, some of them more than once, cut into loads."""
    again = draw(st.lists(st.sampled_from(events), max_size=5)) if events else []
    arriving = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.lists(st.integers(0, len(arriving)), max_size=4)))
    return [list(arriving[a:b]) for a, b in zip([0, *cuts], [*cuts, len(arriving)], strict=True)]


ONE_PER_MOMENT = st.dictionaries(st.tuples(KEYS, TIMES), VALUES, max_size=14).map(
    lambda found: [Event(key, time, value) for (key, time), value in found.items()]
)
SEVERAL = st.lists(st.builds(Event, KEYS, TIMES, VALUES, st.integers(0, 3)), max_size=14)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), events=ONE_PER_MOMENT)
def test_event_time_is_the_same_history_in_any_order_of_arrival(data: st.DataObject, events: list[Event]) -> None:
    history = History()
    inserted = 0
    for part in data.draw(loads(events)):
        inserted += history.load(part).inserted
    assert history.versions() == modelled(events)
    assert inserted == len(events)
    repeated = history.load(events)
    assert (repeated.inserted, repeated.updated, repeated.deleted) == (0, 0, 0)
    assert history.versions() == modelled(events)


@settings(deadline=None, max_examples=20)
@given(data=st.data(), events=SEVERAL)
def test_event_time_order_by_wins_in_any_order_of_arrival(data: st.DataObject, events: list[Event]) -> None:
    events = [replace(event, value=["a", "b", "", None][event.seq]) for event in events]
    history = History(order_by="seq desc")
    for part in data.draw(loads(events)):
        history.load(part)
    winners: dict[tuple[int, int], Event] = {}
    for event in events:
        best = winners.get((event.key, event.time), event)
        winners[event.key, event.time] = max(best, event, key=lambda one: one.seq)
    assert history.versions() == modelled(list(winners.values()))
    assert [(row[0], row[5]) for row in history.rows()] == [
        (event.key, event.seq) for event in sorted(winners.values(), key=lambda one: (one.key, one.time))
    ]


def foremost(events: set[Event]) -> set[Event]:
    return {event for event in events if event.seq == max(other.seq for other in events)}


@settings(deadline=None, max_examples=30)
@given(data=st.data(), events=SEVERAL)
def test_event_time_two_values_that_order_by_does_not_tell_apart_are_an_error_and_change_nothing(
    data: st.DataObject, events: list[Event]
) -> None:
    history = History(order_by="seq desc")
    held: dict[tuple[int, int], Event] = {}
    for part in data.draw(loads(events)):
        moments: dict[tuple[int, int], set[Event]] = {}
        for event in part:
            moments.setdefault((event.key, event.time), set()).add(event)
        first = {moment: foremost(some) for moment, some in moments.items()}
        all_of = {
            moment: foremost(some | {held.get(moment, *some)}) for moment, some in first.items() if len(some) == 1
        }
        wrong = {moment[0] for moment in moments if len(all_of.get(moment, ())) != 1}
        if wrong:
            with pytest.raises(DataError, match="order_by does not say which of two rows wins") as caught:
                history.load(part)
            assert {f"id={key}" for key in wrong} >= set(caught.value.keys) > set()
        else:
            history.load(part)
            held |= {moment: next(iter(some)) for moment, some in all_of.items()}
        assert (history.versions() if history.target.inspect(TABLE) else []) == modelled(list(held.values()))


def test_event_time_order_by_does_not_choose_between_the_target_and_its_equal() -> None:
    history = History(order_by="seq desc")
    history.load([Event(1, 1, "b", 1), Event(1, 2, "c", 1)])
    for value in ("a", "z"):  # whichever sorts first
        with pytest.raises(DataError, match=r"began at the same time, is equal in seq desc, and has other") as caught:
            history.load([Event(1, 1, value, 1), Event(2, 1, "new", 1)])
        assert (caught.value.keys, "--full-refresh" in caught.value.remedy) == (("id=1",), True)
    assert history.load([Event(1, 1, "a", 0), Event(1, 1, "z", 0), Event(1, 1, "b", 1)]).updated == 0
    assert history.versions() == modelled([Event(1, 1, "b"), Event(1, 2, "c")])
    history.load([Event(1, 1, "z", 1)], full_refresh=True)
    assert history.versions() == modelled([Event(1, 1, "z"), Event(1, 2, "c")])


@settings(deadline=None, max_examples=20)
@given(data=st.data(), events=SEVERAL)
def test_event_time_two_values_of_one_moment_are_an_error_and_change_nothing(
    data: st.DataObject, events: list[Event]
) -> None:
    history = History(ignore=["seq"])
    held: dict[tuple[int, int], str | None] = {}
    for part in data.draw(loads(events)):
        moments: dict[tuple[int, int], set[str | None]] = {}
        for event in part:
            moments.setdefault((event.key, event.time), set()).add(event.value)
        wrong = {
            moment[0]
            for moment, values in moments.items()
            if len(values | ({held[moment]} if moment in held else set())) > 1
        }
        if wrong:
            with pytest.raises(DataError, match="one key has different values at one time") as caught:
                history.load(part)
            assert {f"id={key}" for key in wrong} >= set(caught.value.keys) > set()
        else:
            history.load(part)
            held |= {moment: next(iter(values)) for moment, values in moments.items()}
        expected = modelled([Event(key, time, value) for (key, time), value in held.items()])
        assert (history.versions() if history.target.inspect(TABLE) else []) == expected


@settings(deadline=None, max_examples=20)
@given(states=st.lists(ONE_PER_MOMENT, min_size=1, max_size=5))
def test_event_time_keys_that_vanish_are_closed_and_open_again_when_seen(states: list[list[Event]]) -> None:
    """Loads are full extracts here; ends by the clock are told apart from times of events, which lie before it."""
    history = History(deletes="close", order_by="value")
    known: dict[int, set[int]] = {}
    gone: set[int] = set()
    for state in states:
        counts = history.load(state)
        seen = {event.key for event in state}
        assert counts.deleted == len(known.keys() - gone - seen)
        gone = (gone | known.keys()) - seen
        for event in state:
            known.setdefault(event.key, set()).add(event.time)
        for key, times in known.items():
            versions = [version for version in history.versions() if version[0] == key]
            assert [version[2] for version in versions] == sorted(times)
            assert [version[3] for version in versions[:-1]] == sorted(times)[1:]
            assert [version[4] for version in versions] == [False] * (len(times) - 1) + [key not in gone]
            assert (versions[-1][3] is None) == (key not in gone)


def test_event_time_is_refused_by_a_target_that_cannot() -> None:
    history = History()
    request = LoadRequest(Pipeline.model_validate(history.options), history.schema, ("id",), TABLE, None, RUN)
    with pytest.raises(Unsupported, match="DuckDB does not take event_time") as caught:
        plan_load(request, history.target, replace(CAPABILITIES, event_time=False))
    assert caught.value.kept == "nothing was touched"


def closed_at(history: History, key: int, time: int) -> None:
    """As if the target's clock had stood there when the key was found gone."""
    history.load([Event(99, 0, "x")], deletes="close")
    history.session.execute(
        f"update items set valid_to = timestamptz '2026-01-01 00:00+00' + interval '{time} hours'"
        f" where id = {key} and valid_to > now() - interval '1 minute'"
    )


def test_event_time_the_end_of_a_key_stays_a_bound_between_its_events() -> None:
    history = History()
    history.load([Event(1, 1, "a"), Event(99, 0, "x")])
    closed_at(history, 1, 5)
    history.load([Event(1, 7, "b")])  # back, later
    assert history.versions()[:2] == [(1, "a", 1, 5, False), (1, "b", 7, None, True)]
    history.load([Event(1, 3, "c"), Event(1, 6, "d"), Event(1, 0, "e")])
    assert history.versions()[:5] == [
        (1, "e", 0, 1, False),
        (1, "a", 1, 3, False),
        (1, "c", 3, 5, False),
        (1, "d", 6, 7, False),
        (1, "b", 7, None, True),
    ]


def test_event_time_a_key_that_is_seen_again_with_nothing_later_was_never_gone() -> None:
    history = History()
    history.load([Event(1, 1, "a"), Event(99, 0, "x")])
    closed_at(history, 1, 5)
    assert history.load([Event(1, 1, "a")]).updated == 1
    assert history.versions()[0] == (1, "a", 1, None, True)
    closed_at(history, 1, 5)
    history.load([Event(1, 3, "b")])
    assert history.versions()[:2] == [(1, "a", 1, 3, False), (1, "b", 3, None, True)]
    closed_at(history, 1, 5)
    history.load([Event(1, 5, "c")])  # at the very moment
    assert history.versions()[:3] == [(1, "a", 1, 3, False), (1, "b", 3, 5, False), (1, "c", 5, None, True)]


def test_event_time_a_full_refresh_takes_the_sources_word() -> None:
    history = History()
    history.load([Event(1, 1, "a"), Event(1, 2, "b"), Event(2, 1, "c")])
    with pytest.raises(DataError, match="began at the same time with other values"):
        history.load([Event(1, 1, "A"), Event(1, 3, "d")])
    counts = history.load([Event(1, 1, "A"), Event(1, 2, "b"), Event(1, 3, "d")], full_refresh=True)
    assert (counts.inserted, counts.updated) == (1, 2)  # one replaced, one that ends now
    assert history.versions() == modelled([Event(1, 1, "A"), Event(1, 2, "b"), Event(1, 3, "d"), Event(2, 1, "c")])
    with pytest.raises(DataError, match="two rows of the load"):
        history.load([Event(1, 5, "x"), Event(1, 5, "y")], full_refresh=True)


def test_event_time_does_not_mix_with_a_history_by_load_time() -> None:
    history = History()
    history.load([Event(1, 1, "a")], event_time=None)
    with pytest.raises(DataError, match="was not made by this event time"):
        history.load([Event(1, 2, "b")])
    history.load([Event(2, 2, "b")])  # a key without such versions
