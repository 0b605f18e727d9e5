"""Tasks that stage into Postgres, and the runs around them: attempts, lock, lease, sweep.

Each test's name tells the rule that it guards.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.backends.base import Native, Receipt, Verdict
from penstock.errors import Busy, DataError, SourceMoved
from tests.conformance.postgres_bench import Bench, Database, numbered

pytestmark = pytest.mark.postgres

# ---------------------------------------------------------------- tasks


def test_tasks_two_racing_attempts_stage_once(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    work = bench(one, two)
    loading, columns = work.begin()
    [piece] = work.source.partitions([s.column for s in columns], 1).partitions
    barrier = threading.Barrier(2)

    def attempt() -> Receipt:
        sink = pickle.loads(pickle.dumps(loading.sink(0)))  # noqa: S301  our own object
        batches = list(piece.read())
        barrier.wait()
        return sink.write(0, iter(batches))

    with ThreadPoolExecutor() as pool:
        receipts = [f.result() for f in [pool.submit(attempt), pool.submit(attempt)]]
    assert receipts[0] == receipts[1]
    assert loading.sink(0).write(0, piece.read()).rows == 1000
    assert loading.commit(receipts[:1]).inserted == 1000
    loading.close()


def test_tasks_a_failed_attempt_leaves_nothing(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    work = bench(one, two)
    loading, columns = work.begin()
    [piece] = work.source.partitions([s.column for s in columns], 1).partitions

    def broken() -> Iterator[pa.RecordBatch]:
        yield from piece.read()
        raise SourceMoved("gone", keys=("id=1",))

    with pytest.raises(SourceMoved) as caught:
        loading.sink(0).write(0, broken())
    assert caught.value.keys == ("id=1",)
    assert loading.commit(work.stage(loading, columns)).inserted == 1000
    loading.close()


def test_tasks_a_value_that_does_not_fit_is_told_with_column_and_key(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute(
        "create table t (id int primary key, v text)", "insert into t select n, 'ok' from generate_series(1, 5000) n"
    )
    one.execute("update t set v = 'much too long' where id = 4321")
    work = bench(one, two)
    columns = [
        s if s.source == "id" else replace(s, native=Native("character varying(5)", Verdict.CHECKED))
        for s in work.columns()
    ]
    with pytest.raises(DataError) as caught:
        work.load(columns)
    assert "'v'" in caught.value.what
    assert caught.value.keys == ("id=4321",)
    assert "much too long" not in str(caught.value.to_record())
    assert two.query("select to_regclass('public.t')") == [(None,)]
    assert two.leftovers() == []


def test_tasks_a_copy_ends_soon_after_the_server_has_refused_a_row(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    """The server goes on reading what it drops: the rest would be sent, and the row's key be forgotten."""
    one, two = database(), database()
    one.execute("create table t (id int primary key, v text)", "insert into t values (1, 'much too long')")
    work = bench(one, two)
    columns = [
        s if s.source == "id" else replace(s, native=Native("character varying(5)", Verdict.CHECKED))
        for s in work.columns()
    ]
    loading, _ = work.begin(columns)
    taken = 0

    def many() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        first = pa.record_batch([pa.array([1], pa.int32()), pa.array(["much too long"])], names=["id", "v"])
        rest = pa.record_batch([pa.array(range(10_000), pa.int32()), pa.array(["ok"] * 10_000)], names=["id", "v"])
        yield first
        while taken < 1000:
            taken += 1
            yield rest

    with pytest.raises(DataError) as caught:
        loading.sink(0).write(0, many())
    loading.close()
    assert caught.value.keys == ("id=1",)
    assert taken < 500


# ---------------------------------------------------------------- lock, lease, sweep


def test_lock_a_second_run_says_who_holds_the_target(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    first, second = bench(one, two), bench(one, two)
    loading, columns = first.begin()
    receipts = first.stage(loading, columns)
    with pytest.raises(Busy) as caught:
        second.begin()
    assert first.run.run_id in caught.value.why
    assert "pid" in caught.value.why
    assert loading.commit(receipts).inserted == 10
    loading.close()


def test_sweep_removes_dead_runs_and_never_a_live_one(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    numbered(one, 10, "u")
    numbered(one, 10, "w")
    live, dead, next_ = bench(one, two, "t"), bench(one, two, "u"), bench(one, two, "w")
    living, columns = live.begin()
    receipts = live.stage(living, columns)
    dying, its = dead.begin()
    dead.stage(dying, its)
    dying.close()  # as a killed driver leaves it: staging, receipts and lease stay
    runs = {dead.run.run_id, live.run.run_id}
    assert set(two.leftovers()) >= {f"{what} of {run}" for what in ("receipt", "lease") for run in runs}
    next_.load()
    left = two.leftovers()
    assert not any(dead.run.run_id in name for name in left)
    assert any(live.run.run_id in name for name in left)
    assert living.commit(receipts).inserted == 10
    living.close()
    assert two.leftovers() == []


def test_abort_leaves_nothing_and_is_safe_twice(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    numbered(one, 10)
    work = bench(one, two)
    loading, columns = work.begin()
    work.stage(loading, columns)
    loading.abort()
    loading.abort()
    loading.close()
    loading.close()
    assert two.leftovers() == []
