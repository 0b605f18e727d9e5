"""The engine on a real Spark: fused copies and transforms, retries, error receipts, cancel."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from penstock.backends.base import Partition, RunContext
from penstock.engine import job, session, status
from penstock.engine.copy import copy
from penstock.engine.task import folder_of
from penstock.engine.transform import transform
from penstock.errors import (
    Cancelled,
    DataError,
    LinkLost,
    PenstockError,
    TransformError,
)
from penstock.schema import Column, Logical, Schema
from tests.e2e.spark_parts import LOST, UNFIT, WIRE, Crashing, Endless, Failing, Numbers, ParquetSink, Table
from tests.waiting import await_true

pytestmark = pytest.mark.spark

CONFIG = SimpleNamespace(
    master="local[2]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)
NUMBERS = Schema.of([Column("id", pa.int64()), Column("label", pa.string())])


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return session.spark(CONFIG, tmp_path_factory.mktemp("project"))


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    return RunContext(uuid.uuid4().hex, "p", tmp_path / "staging")


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    folder = tmp_path / "target"
    folder.mkdir()
    return ParquetSink(folder)


def halves(rows: int, parts: int = 4, meeting: Path | None = None) -> list[Partition]:
    step = rows // parts
    return [Numbers(part * step, (part + 1) * step, meeting) for part in range(parts)]


def active_jobs(spark: Any) -> list[int]:
    return list(status.context(spark).statusTracker().getActiveJobsIds())


# ---------------------------------------------------------------- fused copy


def test_spark_moves_the_data_in_several_tasks_and_workers(
    spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    before = psutil.Process().memory_info().rss
    seen: list[tuple[int, int]] = []
    receipts = copy(
        spark, halves(1_000_000, meeting=meeting), sink, WIRE, run, lambda rows, size: seen.append((rows, size))
    )
    grown = psutil.Process().memory_info().rss - before
    assert [receipt.part for receipt in receipts] == [0, 1, 2, 3]
    assert len({receipt.pid for receipt in receipts}) >= 2
    assert os.getpid() not in {receipt.pid for receipt in receipts}
    assert sum(receipt.rows for receipt in receipts) == 1_000_000
    assert seen[-1] == (1_000_000, sum(receipt.bytes for receipt in receipts))
    assert seen == sorted(seen)
    assert not run.staging.exists()
    assert grown < 32 * 1024 * 1024, "rows came to the driver"
    table = sink.read(receipts)
    assert table.column_names == ["id", "name"]
    assert sorted(table.column("id").to_pylist()) == list(range(1_000_000))


def test_sparks_own_status_tells_of_the_tasks(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    seen: list[int] = []
    tracker = status.context(spark).statusTracker()

    def watch(_rows: int, _size: int) -> None:
        for number in tracker.getActiveStageIds():
            seen.append(tracker.getStageInfo(number).numTasks)

    copy(spark, halves(2_000_000), sink, WIRE, run, watch)
    assert max(seen) == 4


def test_no_more_tasks_run_than_a_run_may_have(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    """Each has sessions of its own at a server that has others to serve."""
    seen: list[int] = []
    tracker = status.context(spark).statusTracker()

    def watch(_rows: int, _size: int) -> None:
        for number in tracker.getActiveStageIds():
            seen.append(tracker.getStageInfo(number).numTasks)

    receipts = copy(spark, halves(2_000_000), sink, WIRE, replace(run, at_once=1), watch)
    assert [receipt.part for receipt in receipts] == [0, 1, 2, 3]
    assert sum(receipt.rows for receipt in receipts) == 2_000_000
    assert set(seen) <= {1}
    assert len({receipt.pid for receipt in receipts}) == 1


def test_no_partition_is_no_job(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    assert copy(spark, [], sink, WIRE, run) == []


def test_an_empty_partition_leaves_a_receipt_of_no_rows(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    receipts = copy(spark, [Numbers(0, 0), Numbers(0, 3)], sink, WIRE, run)
    assert [receipt.rows for receipt in receipts] == [0, 3]


def test_a_transient_failure_is_retried_and_lands_once(
    spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path
) -> None:
    receipts = copy(spark, [Failing(LOST, tmp_path / "failed"), Numbers(10, 20)], sink, WIRE, run)
    assert [receipt.rows for receipt in receipts] == [1, 10]
    assert sorted(sink.read(receipts).column("id").to_pylist()) == [1, *range(10, 20)]


def test_a_killed_worker_is_replaced_and_its_rows_land_once(
    spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path
) -> None:
    receipts = copy(spark, [Crashing(tmp_path / "killed"), Numbers(10, 20)], sink, WIRE, run)
    assert [receipt.rows for receipt in receipts] == [1, 10]


def test_after_the_last_attempt_the_transient_error_is_raised(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    with pytest.raises(LinkLost) as raised:
        copy(spark, [Failing(LOST)], sink, WIRE, run)
    assert (raised.value.what, raised.value.why, raised.value.remedy) == (LOST.what, LOST.why, LOST.remedy)
    assert raised.value.__cause__ is None


def test_workers_that_always_die_are_told_in_one_line(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    with pytest.raises(LinkLost, match="a Spark worker was lost") as raised:
        copy(spark, [Crashing()], sink, WIRE, run)
    assert "\n" not in str(raised.value)


def test_an_error_receipt_has_class_keys_and_ends_the_others(
    spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as raised:
        copy(spark, [Failing(UNFIT), Endless(tmp_path / "marker")], sink, WIRE, run)
    assert (raised.value.what, raised.value.why, raised.value.keys) == (UNFIT.what, UNFIT.why, UNFIT.keys)
    assert not run.staging.exists()
    await_true(lambda: active_jobs(spark) == [], 5)


def test_a_mismatch_of_types_names_the_column(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    wire = [("id", Column("id", pa.int32())), WIRE[1]]
    with pytest.raises(PenstockError, match="column id came as int64: the plan says int32"):
        copy(spark, [Numbers(0, 5)], sink, wire, run)


def test_cancel_leaves_no_job_and_no_busy_worker(
    spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path
) -> None:
    markers = [tmp_path / "a", tmp_path / "b"]
    busy: list[int] = []

    def interrupt() -> None:
        await_true(lambda: all(marker.exists() for marker in markers))
        busy.extend(job.busy(folder_of(run)))
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(Cancelled):
        copy(spark, [Endless(marker) for marker in markers], sink, WIRE, run)
    watcher.join()
    assert len(busy) == 2
    assert not run.staging.exists()
    await_true(lambda: active_jobs(spark) == [], 5)
    receipts = copy(spark, [Numbers(0, 5)], sink, WIRE, RunContext(uuid.uuid4().hex, "p", tmp_path / "next"))
    assert receipts[0].rows == 5


def test_cancel_ends_only_its_own_jobs(spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path) -> None:
    other = RunContext(uuid.uuid4().hex, "other", tmp_path / "other")
    outcome: list[object] = []
    marker = tmp_path / "m"

    def cancelled() -> None:
        try:
            copy(spark, [Endless(marker)], sink, WIRE, run)
        except PenstockError as error:
            outcome.append(error)

    running = threading.Thread(target=cancelled)
    running.start()
    await_true(marker.exists)
    status.cancel(spark, status.tag_of(other.run_id))
    assert running.is_alive()
    status.cancel(spark, status.tag_of(run.run_id))
    running.join(10)
    assert len(outcome) == 1


# ---------------------------------------------------------------- transforms


def every_type() -> tuple[Schema, pa.RecordBatch]:
    ids = [uuid.uuid4(), uuid.uuid4()]
    columns: dict[str, pa.Array] = {
        "flag": pa.array([True, None]),
        "tiny": pa.array([-128, 127], pa.int8()),
        "big": pa.array([2**63 - 1, None], pa.int64()),
        "u8": pa.array([255, None], pa.uint8()),
        "u32": pa.array([2**32 - 1, 0], pa.uint32()),
        "u64": pa.array([2**64 - 1, 0], pa.uint64()),
        "f": pa.array([float("nan"), -0.0]),
        "price": pa.array(["12345678901234567890123456.789012345678", None]).cast(pa.decimal128(38, 12)),
        "word": pa.array(["", None]),
        "raw": pa.array([b"\x00\xff", None]),
        "day": pa.array([2**31 - 1, -719162], pa.int32()).view(pa.date32()),
        "at": pa.array([2**63 - 1, 0]).view(pa.timestamp("us", "UTC")),
        "local": pa.array([-(2**63) + 1, 5]).view(pa.timestamp("us")),
        "second": pa.array([2**63 - 1, 5]).view(pa.timestamp("s")),
        "u": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([i.bytes for i in ids], pa.binary(16))),
        "j": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1.00}', None])),
        "clock": pa.array([86_399_999_999, None]).view(pa.time64("us")),
        "amount": pa.array(["NaN", "1" * 60]),
        "tags": pa.array([["a", None], []]),
        "us": pa.array([[ids[0].bytes], None], pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid())),
        "pair": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])),
    }
    logical = {"amount": Logical("numeric")}
    schema = Schema.of([Column(n, a.type, logical.get(n), f"postgres:{n}") for n, a in columns.items()])
    return schema, pa.RecordBatch.from_pydict(columns)


def wires(schema: Schema) -> list[tuple[str, Column]]:
    return [(column.name, column) for column in schema]


def carried_out(spark: Any, run: RunContext, sink: ParquetSink, *plan: Any) -> pa.Table:
    made = transform(spark, *plan, run)
    receipts = made.write(sink, wires(made.schema), run)
    return sink.read(receipts) if receipts else pa.table({})


class Memory(ParquetSink):
    """Parquet has no uint64 or decimals trouble here, but no list of uuids: kept as an Arrow file."""

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Any:
        from penstock.backends.base import Receipt

        made = list(batches)
        with pa.OSFile(str(self.folder / f"{part}.arrow"), "wb") as file, pa.ipc.new_file(file, made[0].schema) as out:
            for batch in made:
                out.write_batch(batch)
        return Receipt(0, part, sum(batch.num_rows for batch in made), ref=f"{part}.arrow")

    def read(self, receipts: Any) -> pa.Table:
        return pa.concat_tables([pa.ipc.open_file(self.folder / receipt.ref).read_all() for receipt in receipts])


@pytest.mark.parametrize("sql", ["select * from source", "select * from source union all select * from source"])
def test_every_type_goes_through_spark_unchanged(spark: Any, run: RunContext, tmp_path: Path, sql: str) -> None:
    schema, batch = every_type()
    plan = transform(spark, [Table.of(batch)], schema, sql, run)
    text = {"u": "uuid", "j": "json", "clock": "time"}
    for column in plan.schema:
        assert column.native == f"postgres:{column.name}"
        if column.name in text:
            assert (column.type, column.logical) == (pa.string(), Logical(text[column.name]))
        else:
            assert (column.type, column.logical) == (schema[column.name].type, schema[column.name].logical)
    sink = Memory(tmp_path)
    table = sink.read(plan.write(sink, wires(plan.schema), run))
    from penstock.engine.convert import forth

    for name in batch.schema.names:
        wanted = forth(batch.column(name)) if name in text else batch.column(name)
        got = table.column(name).combine_chunks()
        got = got.chunk(0) if isinstance(got, pa.ChunkedArray) else got
        for start in range(0, len(got), 2):
            piece = got.slice(start, 2)
            assert piece.type == wanted.type
            if name == "f":
                assert piece.view(pa.int64()).equals(wanted.view(pa.int64()))
            else:
                assert piece.equals(wanted), name


def test_sql_transform_with_expressions_and_rename(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    sql = "select id * 2 as id, concat('n', label) as label from source where id % 2 = 0"
    plan = transform(spark, halves(1000, 2), NUMBERS, sql, run)
    assert plan.schema["label"] == Column("label", pa.string())
    receipts = plan.write(sink, WIRE, run)
    assert sum(receipt.rows for receipt in receipts) == 500
    table = sink.read(receipts).sort_by("id")
    assert table.slice(0, 2).to_pydict() == {"id": [0, 4], "name": ["n0", "n2"]}


def test_aggregate_and_empty_result(spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path) -> None:
    table = carried_out(
        spark, run, sink, halves(1000, 4), NUMBERS, "select count(*) as id, max(label) as name from source"
    )
    assert table.to_pydict() == {"id": [1000], "name": ["999"]}
    again = RunContext(uuid.uuid4().hex, "p", tmp_path / "again")
    assert carried_out(spark, again, sink, [], NUMBERS, "select id, label as name from source").num_rows == 0


def test_function_transform(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    def only_even(frame: Any) -> Any:
        return frame.where("id % 2 = 0").withColumnRenamed("label", "name")

    assert carried_out(spark, run, sink, halves(100, 2), NUMBERS, only_even).num_rows == 50


def test_names_with_dots_quotes_and_cases_that_collide(spark: Any, run: RunContext, tmp_path: Path) -> None:
    names = ["a.b", 'quo"te', "tick`", "Id", "id", "naïve ü", "select"]
    batch = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(len(names))], names=names)
    schema = Schema.of([Column(name, pa.int64()) for name in names])
    plan = transform(spark, [Table.of(batch)], schema, "select *, `a.b` + 1 as more from source", run)
    assert plan.schema.names == (*names, "more")
    sink = Memory(tmp_path)
    (row,) = sink.read(plan.write(sink, wires(plan.schema), run)).to_pylist()
    assert row == {**{name: place for place, name in enumerate(names)}, "more": 1}


def test_case_does_not_matter_where_no_names_collide(spark: Any, run: RunContext) -> None:
    assert transform(spark, [], NUMBERS, "select ID from source", run).schema.names == ("ID",)


@pytest.mark.parametrize(
    ("sql", "why", "shown"),
    [
        ("select id,\n  from from source", "line 2", "  from from source\n"),
        ("select nothing from source", "`nothing` cannot be resolved", "select nothing from source\n       ^"),
        ("select * from elsewhere", "`elsewhere` cannot be found", "select * from elsewhere\n              ^"),
    ],
)
def test_wrong_sql_is_shown_with_its_position(
    spark: Any, run: RunContext, capfd: pytest.CaptureFixture[str], sql: str, why: str, shown: str
) -> None:
    with pytest.raises(TransformError) as raised:
        transform(spark, [], NUMBERS, sql, run)
    assert capfd.readouterr() == ("", "")
    assert why in raised.value.why
    assert "\n" not in raised.value.why
    assert raised.value.remedy.startswith(shown)
    assert "at org.apache" not in str(raised.value)


def test_a_value_that_makes_sql_fail_is_not_shown(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    plan = transform(
        spark, [Numbers(4711, 4712)], NUMBERS, "select cast(concat('x', label) as bigint) as id, label from source", run
    )
    with pytest.raises(TransformError) as raised:
        plan.write(sink, WIRE, run)
    assert "CAST_INVALID_INPUT" in raised.value.why
    assert "line 1, position 8" in raised.value.why
    assert "4711" not in str(raised.value.to_record())


def test_a_failing_function_is_named_with_file_and_line(spark: Any, run: RunContext) -> None:
    def broken(frame: Any) -> Any:
        return frame.select(frame["id"], 1 / 0)

    with pytest.raises(TransformError) as raised:
        transform(spark, [], NUMBERS, broken, run)
    assert raised.value.place == f"{__file__}:{broken.__code__.co_firstlineno + 1}"
    assert raised.value.why == "ZeroDivisionError"

    def unknown(frame: Any) -> Any:
        return frame.select("nothing")

    with pytest.raises(TransformError, match="`nothing` cannot be resolved") as raised:
        transform(spark, [], NUMBERS, unknown, run)
    assert raised.value.place == f"{__file__}:{unknown.__code__.co_firstlineno + 1}"

    with pytest.raises(TransformError, match="returned NoneType"):
        transform(spark, [], NUMBERS, lambda frame: None, run)


def by_spark(frame: Any) -> Any:
    frame.selectExpr("cast(concat('x', label) as bigint)").collect()


def by_itself(frame: Any) -> Any:
    return {}[frame.first()["label"]]


@pytest.mark.parametrize(("function", "why"), [(by_spark, "CAST_INVALID_INPUT"), (by_itself, "KeyError")])
def test_a_function_that_looks_at_rows_and_fails_shows_none(
    spark: Any, run: RunContext, function: Callable[[Any], Any], why: str
) -> None:
    with pytest.raises(TransformError) as raised:
        transform(spark, [Numbers(4711, 4712)], NUMBERS, function, run)
    assert raised.value.why.startswith(why)
    assert raised.value.place == f"{__file__}:{function.__code__.co_firstlineno + 1}"
    assert "4711" not in str(raised.value.to_record())


def test_a_failing_udf_is_named_without_its_values(spark: Any, run: RunContext, sink: ParquetSink) -> None:
    from pyspark.sql.functions import udf

    def broken(value: str) -> str:
        raise ValueError(f"cannot take {value}")

    def apply(frame: Any) -> Any:
        return frame.select("id", udf(broken, "string")("label").alias("label"))

    plan = transform(spark, [Numbers(4711, 4712)], NUMBERS, apply, run)
    with pytest.raises(TransformError) as raised:
        plan.write(sink, WIRE, run)
    assert raised.value.why == "ValueError"
    assert raised.value.place == f"{__file__}:{broken.__code__.co_firstlineno + 1}"
    assert "4711" not in str(raised.value.to_record())


def test_errors_of_the_source_cross_a_transform(spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path) -> None:
    plan = transform(spark, [Failing(UNFIT), Numbers(0, 5)], NUMBERS, "select * from source", run)
    with pytest.raises(DataError) as raised:
        plan.write(sink, WIRE, run)
    assert (raised.value.what, raised.value.keys) == (UNFIT.what, UNFIT.keys)

    again = RunContext(uuid.uuid4().hex, "p", tmp_path / "again")
    once = [Failing(LOST, tmp_path / "failed"), Numbers(10, 20)]
    plan = transform(spark, once, NUMBERS, "select * from source", again)
    (tmp_path / "fresh").mkdir()
    fresh = ParquetSink(tmp_path / "fresh")
    table = fresh.read(plan.write(fresh, WIRE, again))
    assert sorted(table.column("id").to_pylist()) == [1, *range(10, 20)]


def test_a_result_cannot_leave_as_another_type(spark: Any, run: RunContext) -> None:
    plan = transform(spark, [], NUMBERS, "select id, label from source", run)
    assert plan.refusals([("id", Column("id", pa.int32())), ("label", Column("label", pa.string()))]) == [
        "column id cannot leave the transform as int32: there it is int64 (cast it in the transform)"
    ]


def test_a_transform_can_be_cancelled(spark: Any, run: RunContext, sink: ParquetSink, tmp_path: Path) -> None:
    marker = tmp_path / "m"
    plan = transform(spark, [Endless(marker)], NUMBERS, "select * from source", run)

    def interrupt() -> None:
        await_true(marker.exists)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(Cancelled):
        plan.write(sink, WIRE, run)
    watcher.join()
    await_true(lambda: active_jobs(spark) == [], 5)
