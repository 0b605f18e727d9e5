"""Ends that Spark itself reads and writes: the run goes through Spark, and is otherwise like any other."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.backends import registry
from penstock.engine import status
from penstock.errors import Cancelled, PlanRefused, TransformError
from penstock.run.pipeline import stage_with_spark
from tests.conformance.frame_folder import FrameSource
from tests.conformance.harness import Flow, Harness
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

METADATA = "Metadata-Version: 2.1\nName: penstock-frame-folder\nVersion: 1.0\n"
POINTS = "[penstock.backends]\nframefolder = tests.conformance.frame_folder:FrameFolder\n"
COLUMNS = "id, name, cast(price as varchar), cast(seen at time zone 'UTC' as varchar), cast(ref as varchar), tags[1]"


class FrameHarness(Harness):
    backend = "framefolder"
    schema = "main"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self) -> dict[str, Any]:
        return {"type": "framefolder", "path": str(self.folder)}

    def execute(self, *statements: str) -> None:
        raise AssertionError("it runs no statement")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        raise AssertionError("it runs no statement")


@pytest.fixture
def frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameHarness]:
    info = tmp_path / "site" / "penstock_frame_folder-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(info.parent)
    for cached in (registry._points, registry.backend):
        cached.cache_clear()
    yield FrameHarness(tmp_path / "lake")
    for cached in (registry._points, registry.backend):
        cached.cache_clear()


@pytest.fixture
def into(frames: FrameHarness, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into what Spark writes."""
    source = harness("postgres")
    source.execute(
        "create table items (id int primary key, name text, price numeric(38,12), seen timestamptz, ref uuid,"
        " tags text[])",
        "insert into items select n, 'n' || n, n / 7.0, timestamptz '2024-03-31 02:30+01', gen_random_uuid(),"
        " array['a', null] from generate_series(1, 1000) n",
    )
    return Flow(source, frames, tmp_path, stage_with_spark)


def test_spark_writes_and_reads_it(
    into: Flow, frames: FrameHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    first = into.run(columns={"name": {"rename": "called"}})
    assert (first.path, first.rows, first.inserted) == ("spark", 1000, 1000)
    assert first.bytes
    assert json.loads(first.plan or "")["path_reason"] == "Spark's own Parquet writer writes it"
    assert into.run(mode="truncate", columns={"name": {"rename": "called"}}).rows == 1000
    out = Flow(frames, harness("duckdb"), tmp_path, stage_with_spark)
    record = out.run(columns={"called": {"rename": "name"}})
    assert (record.path, record.inserted) == ("spark", 1000)
    planned = json.loads(record.plan or "")
    assert planned["path_reason"] == "Spark's own Parquet reader reads it"
    assert planned["partition_reason"] == "Spark's own Parquet reader splits it"
    select = f"select {COLUMNS} from items order by 1"
    assert out.target.query(select) == into.source.query(select)


def test_a_transform_between_them_reads_only_what_it_names(into: Flow, frames: FrameHarness, tmp_path: Path) -> None:
    into.run()
    copy = Flow(frames, frames, tmp_path, stage_with_spark)
    planned = copy.plan(transform="select id, price * 2 as price from source", target="to.copies")
    assert planned.path_reason == (
        "a transform runs in Spark; Spark's own Parquet reader reads it; Spark's own Parquet writer writes it"
    )
    assert "2 of 6 columns are read: the transform names no other" in planned.notes
    assert copy.run(transform="select id from source where id <= 10", target="to.copies").rows == 10


@pytest.mark.parametrize("path", ["native", "fused"])
def test_another_path_is_refused(into: Flow, path: str) -> None:
    with pytest.raises(PlanRefused, match=f'path = "{path}" is refused') as caught:
        into.run(path=path)
    said = "Spark's own Parquet writer writes it" if path == "fused" else "are different systems"
    assert said in caught.value.why


def test_a_value_that_stops_it_is_told_and_nothing_is_left(into: Flow, frames: FrameHarness) -> None:
    with pytest.raises(TransformError, match="a value made the transform fail") as caught:
        into.run(transform="select id, 1 / (id - 500) as price from source")
    assert "DIVIDE_BY_ZERO" in caught.value.why
    assert list(frames.folder.iterdir()) == []


def test_a_reader_of_other_types_is_refused(
    into: Flow, frames: FrameHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would cast, and nobody would be told what was lost."""
    into.run()
    read = FrameSource.frame

    def rounded(self: FrameSource, *rest: Any) -> Any:
        return read(self, *rest).selectExpr("id", "name", "cast(price as decimal(38,2)) as price")

    monkeypatch.setattr(FrameSource, "frame", rounded)
    with pytest.raises(PlanRefused, match=r"column price is decimal\(38,2\) in Spark") as caught:
        Flow(frames, frames, tmp_path, stage_with_spark).run(
            transform="select id, name, price from source", target="to.copies"
        )
    assert caught.value.why == "the plan says decimal(38,12)"


def test_cancel_reaches_spark_s_own_writer(into: Flow, frames: FrameHarness) -> None:
    """It must not write on behind the abort that removes what it staged."""

    def interrupt() -> None:
        await_true(lambda: list(frames.folder.glob("*-staging/_temporary/**/*.parquet")), 60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Cancelled) as caught:
        into.run(transform="select a.id from source a cross join range(100000000)")
    assert caught.value.kept == "nothing was committed"
    [record] = into.store.runs()
    spark = status.existing()
    assert spark is not None
    assert not status.is_busy(spark, status.tag_of(record.run_id))
    assert list(frames.folder.iterdir()) == []
