"""Loads of memory stores: one moment, all or nothing, and what is told when one is stopped."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock import testing
from penstock.backends import registry
from penstock.backends.base import ReadRequest, Receipt, RunContext, Sink, Window
from penstock.errors import (
    Busy,
    Cancelled,
    DataError,
    LinkLost,
    PlanRefused,
    PlanStale,
    SourceError,
    StagingLost,
    Unsupported,
)
from penstock.observe import failpoints
from penstock.project import Project, decorators
from penstock.run import pipeline as runs
from penstock.run.prepare import Prepared
from penstock.schema import TableName
from tests.conformance.harness import Flow, Harness, MemoryHarness
from tests.conformance.memory_bench import ITEMS, Interfering, flow, here, store
from tests.faults.bare import stage_here

__all__ = ["flow", "here"]


def test_one_moment_what_is_put_in_meanwhile_is_not_read(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(prepared: Prepared) -> None:
        store(flow.source)["main.items"] = pa.table({"id": [99], "name": ["late"]})
        hand_out(prepared)

    from penstock.backends.memory.read import MemorySource

    hand_out = MemorySource.hand_out
    monkeypatch.setattr(MemorySource, "hand_out", late)
    flow.run()
    assert store(flow.source)["main.items"].column("id").to_pylist() == [99]  # it did come meanwhile
    assert store(flow.target)["main.items"].column("id").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("backend", ["memory", "duckdb:memory"])
def test_one_moment_is_that_of_every_table_beside(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    """As the tables of one transform are read."""
    here = harness(backend)
    here.execute("create table a as select 1 as n", "create table b as select 1 as n")
    kind = registry.backend(here.backend)
    config = kind.config(**here.options(), name="here")
    run = RunContext(uuid.uuid4().hex, "p", tmp_path / "staging" / "run")
    first = kind.source(config, ReadRequest(TableName("main", "a")), run)
    here.execute("insert into a values (2)", "insert into b values (2)")
    second = kind.beside(first, config, ReadRequest(TableName("main", "b")), run)
    with closing(first), closing(second):
        parts = [part for source in (first, second) for part in source.partitions(list(source.schema()), 1).partitions]
        for source in (first, second):
            source.hand_out()
        assert [batch.column("n").to_pylist() for part in parts for batch in part.read()] == [[1], [1]]
    assert not list((tmp_path / "staging").rglob("*.arrow"))


def test_a_plan_writes_nothing(flow: Flow, tmp_path: Path) -> None:
    assert flow.plan().partitions == 1
    assert not (tmp_path / ".penstock").exists()
    assert len(store(flow.target)) == 0


@pytest.mark.parametrize("point", ["load.staging", "sink.staged", "copy.done", "commit.begin", "commit.loaded"])
def test_a_load_that_fails_leaves_the_store_as_it_was(flow: Flow, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    flow.run()
    before = store(flow.target)["main.items"]

    monkeypatch.setenv(failpoints.ENV, f"{point}=raise")
    with pytest.raises(failpoints.FailpointError):
        flow.run(mode="truncate")
    assert store(flow.target)["main.items"] is before
    assert flow.target.leftovers() == []
    monkeypatch.delenv(failpoints.ENV)
    assert flow.run(mode="truncate").rows == 3


class Interrupt:
    """Ctrl-C before the line of this number, counted over these functions."""

    def __init__(self, *functions: Callable[..., object]) -> None:
        self._codes = {function.__code__ for function in functions}
        self._left = 0

    def __call__(self, at: int, call: Callable[[], object]) -> None:
        self._left = at
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in self._codes:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace


def test_an_interrupt_anywhere_in_the_commit_is_told_as_what_the_store_holds(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called cancelled with the rows there, the next run would append them a second time."""
    from penstock.backends.memory.store import Store
    from penstock.backends.memory.write import MemoryLoad

    commit, interrupt, at = MemoryLoad.commit, Interrupt(MemoryLoad.commit, Store.put), 0

    def interrupted(load: MemoryLoad, receipts: Any) -> Any:
        interrupt(at, lambda: commit(load, receipts))
        return load.result

    monkeypatch.setattr(MemoryLoad, "commit", interrupted)
    told, expected = [], 0
    while not told or told[-1] is not None:
        at += 1
        try:
            flow.run()
            told.append(None)
        except (KeyboardInterrupt, Cancelled) as error:
            told.append(type(error))
        expected += 0 if told[-1] is KeyboardInterrupt else 3
        assert store(flow.target).get("main.items", ITEMS.slice(3)).num_rows == expected, at
    assert {KeyboardInterrupt, Cancelled} < set(told)


@pytest.mark.parametrize("part", ["abort", "close"])
def test_trouble_while_cleaning_up_hides_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """In the place of Ctrl-C a lost link would be tried again, and the load that was cancelled committed."""
    from penstock.backends.memory.write import MemoryLoad

    clean, met = getattr(MemoryLoad, part), []

    def broken(load: MemoryLoad) -> None:
        clean(load)
        met.append(load)
        raise LinkLost("the server does not answer")

    for error in (KeyboardInterrupt(), DataError("two rows of one key", keys=("id=1",))):

        def stage(*_: object, error: BaseException = error) -> list[Receipt]:
            raise error

        flow.stage = stage
        with monkeypatch.context() as patched:
            patched.setattr(MemoryLoad, part, broken)
            with pytest.raises(type(error)) as caught:
                flow.run()
        assert caught.value is error
    assert len(set(map(id, met))) == 2  # of both loads, each more than once
    assert store(flow.target).get("main.items") is None
    assert [record.state for record in flow.store.runs()] == ["failed", "cancelled"]


def test_a_table_that_was_only_made_may_be_replaced(tmp_path: Path) -> None:
    """Whoever only made it has brought no row that could be lost."""
    before, name = list(decorators.registered.tables), uuid.uuid4().hex
    project = testing.project(tmp_path, {name: {"type": "memory"}})
    try:

        @ps.table(connection=name, name="items")
        class Items(ps.ManagedTable):
            id: ps.Key[ps.BigInt]
            name: ps.Text | None

        ps.create(Items, project=project)
        with testing.without_spark():
            assert ps.write(ITEMS, Items, mode="truncate", project=project).inserted == 3
            assert ps.write(ITEMS, Items, mode="truncate", project=project).deleted == 3
    finally:
        decorators.registered.tables[:] = before


def _one_more(receipts: list[Receipt], _: Path) -> list[Receipt]:
    return [replace(receipt, rows=receipt.rows + 1) for receipt in receipts]


def _torn(receipts: list[Receipt], folder: Path) -> list[Receipt]:
    for receipt in receipts:
        (folder / receipt.ref).write_bytes(bytes(receipt.bytes))
    return receipts


def _gone(receipts: list[Receipt], folder: Path) -> list[Receipt]:
    for receipt in receipts:
        (folder / receipt.ref).unlink()
    return receipts


@pytest.mark.parametrize("spoil", [_one_more, _torn, _gone])
def test_staging_is_held_against_the_receipts(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[list[Receipt], Path], list[Receipt]]
) -> None:
    monkeypatch.setattr(runs, "ATTEMPTS", 1)

    def stage(project: Project, prepared: Prepared, sink: Sink, on_progress: Callable[[int, int], None]) -> Any:
        folder = flow.root / ".penstock" / "staging" / "write" / prepared.run.run_id
        return spoil(stage_here(project, prepared, sink, on_progress), folder)

    flow.stage = stage
    with pytest.raises(StagingLost):
        flow.run()
    assert len(store(flow.target)) == 0


@pytest.mark.parametrize("folder", ["read", "write"])
def test_what_a_killed_run_has_left_is_swept_by_the_next(flow: Flow, folder: str) -> None:
    dead = flow.root / ".penstock" / "staging" / folder / ("0" * 32)
    dead.mkdir(parents=True)
    (dead / "token").write_text(dead.name)
    (dead / "p0.arrow").touch()
    flow.run()
    assert not dead.exists()


def test_handing_out_takes_a_batch_of_memory_and_not_a_table(here: MemoryHarness, tmp_path: Path) -> None:
    rows = 2_000_000
    here.store["big"] = pa.table({"n": np.arange(rows), "m": np.arange(rows)})
    run = RunContext(uuid.uuid4().hex, "p", tmp_path / "staging" / "run", batch_bytes=2**20)
    kind = registry.backend("memory")
    source = kind.source(kind.config(**here.options(), name="here"), ReadRequest(TableName(None, "big")), run)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    with closing(source):
        window = Window("n", "5", str(rows))
        [part] = source.partitions(list(source.schema()), 1, window).partitions
        pa.set_memory_pool(pool)
        try:
            source.hand_out()
            assert 0 < pool.max_memory() < 4 * run.batch_bytes
        finally:
            pa.set_memory_pool(before)
        assert sum(batch.num_rows for batch in part.read()) == rows - 5


def test_two_loads_at_once_the_second_is_told_who_is_first(flow: Flow) -> None:
    told: list[BaseException] = []

    def second() -> None:
        try:
            Flow(flow.source, flow.target, flow.root).run(target="to.main.others")
        except Busy as busy:
            told.append(busy)

    def meanwhile() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    flow.stage = Interfering(meanwhile)
    flow.run()
    assert [str(one) for one in told if f"pipeline '{flow.name}', run" in str(one)]
    assert list(store(flow.target)) == ["main.items"]


def test_a_table_that_was_replaced_since_the_plan_is_planned_again(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.run()
    monkeypatch.setattr(runs, "BACKOFF_SECONDS", 0)
    other = pa.table({"id": ["text"], "name": ["x"]})
    flow.stage = Interfering(lambda: store(flow.target).__setitem__("main.items", other))
    with pytest.raises(PlanRefused, match="column id: int64 does not go into text"):
        flow.run()
    assert store(flow.target)["main.items"].to_pydict() == other.to_pydict()
    flow.stage = Interfering(lambda: store(flow.target).pop("main.items", None))
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    with pytest.raises(PlanStale, match="the table is gone"):
        flow.run(columns={"id": "text"})


def test_no_table_and_no_query(flow: Flow) -> None:
    with pytest.raises(SourceError, match=r"there is no table main\.none in the memory store .*it has main\.items"):
        flow.run(table="main.none")
    with pytest.raises(SourceError, match="the source has no column 'none'"):
        flow.run(partition_on="none")
    with pytest.raises(Unsupported, match="memory runs no query"):
        flow.run(query="select 1")
