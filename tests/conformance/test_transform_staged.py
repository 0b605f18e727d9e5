"""`transforms_pre` of targets without SQL: Spark SQL over `staged`, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import PlanRefused, TransformError, Unsupported
from penstock.run.pipeline import stage_with_spark
from tests.conformance.harness import Flow, Harness, MemoryHarness

pytestmark = pytest.mark.spark

ITEMS = pa.table(
    {"id": pa.array([1, 2, 3, 4], pa.int64()), "name": [" a ", "b", None, "B"], "price": pa.array([1, 2, 3, 4])}
).cast(pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(38, 12)}))
CLEAN = (
    "select id, trim(name) as name, price from staged where name is not null",
    "select *, row_number() over (partition by lower(name) order by id) as nth from staged",
    "select id, name, price from staged where nth = 1",
)


@pytest.fixture
def flow(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    source = harness("memory")
    assert isinstance(source, MemoryHarness)
    source.store["main.items"] = ITEMS
    return Flow(source, harness("memory"), tmp_path, stage_with_spark)


def test_each_statement_makes_what_the_next_one_sees(flow: Flow) -> None:
    planned = flow.plan(transforms_pre=CLEAN)
    assert (planned.path, planned.sql) == ("spark", CLEAN)
    assert planned.path_reason == "transforms_pre runs in Spark: Memory runs no SQL of its own"
    # Behind a transform, and before the columns get their names.
    flow.run(
        transform="select * from source where id < 4", transforms_pre=CLEAN, columns={"name": {"rename": "called"}}
    )
    assert isinstance(flow.target, MemoryHarness)
    made = flow.target.store["main.items"]
    assert made.schema.field("price").type == pa.decimal128(38, 12)
    assert sorted(zip(made["id"].to_pylist(), made["called"].to_pylist(), strict=True)) == [(1, "a"), (2, "b")]


def test_a_statement_reads_the_views_whole_that_the_transform_read_in_part(flow: Flow) -> None:
    """Pruned by the transform alone, `s.*` would stand for its columns, and the others be missing in the target."""
    flow.run(
        transform="select id from source where id < 3",
        transforms_pre=["select * from staged", "select s.* from staged t join source s on s.id = t.id"],
    )
    assert isinstance(flow.target, MemoryHarness)
    made = flow.target.store["main.items"]
    assert made.sort_by("id").to_pydict() == ITEMS.slice(0, 2).to_pydict()


def test_what_cannot_be_is_refused(flow: Flow) -> None:
    with pytest.raises(Unsupported, match="Memory runs no SQL of its own"):
        flow.run(transforms_pre=CLEAN, transforms_post=["select 1"])
    with pytest.raises(PlanRefused, match='path = "fused" is refused'):
        flow.run(transforms_pre=CLEAN, path="fused")
    with pytest.raises(TransformError, match="the statement is no query") as caught:
        flow.run(transforms_pre=[CLEAN[0], "delete from staged where id = 1"])
    assert caught.value.place == "transforms_pre[1]"
    with pytest.raises(TransformError, match="SQL is wrong") as caught:
        flow.run(transforms_pre=["select nme from staged"])
    assert (caught.value.place, "line 1" in caught.value.why) == ("transforms_pre[0]", True)
