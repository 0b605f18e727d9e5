"""ORC of others: what is declared is what the files hold, before Spark reads a row of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pytest

from penstock.errors import UNTOUCHED, PlanRefused, SourceError, Unsupported
from penstock.run.pipeline import stage_with_spark
from tests.conformance.files_harness import FilesHarness
from tests.conformance.files_lake import Lake
from tests.conformance.harness import DuckDBHarness, Flow

DATA: dict[str, object] = {"id": [1, 2], "name": ["a", None], "n": pa.array([7, None], pa.int16()), "v": [[1.5], []]}
DECLARED = {"id": "bigint", "name": "text", "n": "int", "v": "double[]"}
MOMENT = datetime(2024, 1, 1, 12, 0, 0, 500, UTC)


def put(lake: Lake, name: str, data: dict[str, object]) -> Path:
    path = lake.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    po.write_table(pa.table(data), path)
    return path


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (DECLARED | {"nmae": "text"}, "nmae is missing in the file"),
        ({"id": "bigint", "name": "text", "n": "int"}, "only the file has v"),
    ],
)
def test_orc_that_has_other_columns_than_declared_is_told(lake: Lake, declared: dict[str, str], why: str) -> None:
    put(lake, "t/a.orc", DATA)
    with pytest.raises(SourceError, match=why):
        lake.source("t", columns=declared)


@pytest.mark.parametrize(
    ("name", "type_"), [("id", "int"), ("id", "text"), ("name", "bigint"), ("v", "real[]"), ("v", "double")]
)
def test_orc_in_a_type_that_spark_would_change_it_into_is_refused(lake: Lake, name: str, type_: str) -> None:
    put(lake, "t/a.orc", DATA)
    with pytest.raises(PlanRefused, match=f"column {name} of .* is not read as"):
        lake.source("t", columns=DECLARED | {name: type_})


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("type_", ["timestamp", "timestamptz", "text"])
def test_orc_moments_of_others_are_refused(lake: Lake, zone: str | None, type_: str) -> None:
    """Spark stops at a part of a second before 1970, and at every moment that has a zone."""
    put(lake, "t/a.orc", {"at": pa.array([MOMENT], pa.timestamp("us", zone))})
    with pytest.raises(PlanRefused, match=r"column at of .* is not read as"):
        lake.source("t", columns={"at": type_})


def test_orc_in_folders_by_value_is_refused(lake: Lake) -> None:
    put(lake, "t/region=eu/a.orc", {"id": [1]})
    with pytest.raises(PlanRefused, match="is in a folder by value"):
        lake.source("t", columns={"id": "bigint", "region": "text"})


def test_orc_that_is_none_is_told(lake: Lake) -> None:
    lake.put("t/a.orc", b"ORC")
    with pytest.raises(SourceError, match="is not a whole ORC file"):
        lake.source("t", columns={"id": "bigint"})


@pytest.mark.spark
def test_orc_of_others_is_read_as_it_is(lake: Lake, tmp_path: Path) -> None:
    put(lake, "main/items/a.orc", DATA)
    tables = {"main.items": {"columns": DECLARED}}
    source, target = FilesHarness(lake.root, "orc", tables=tables), DuckDBHarness(tmp_path / "t.duckdb")
    flow = Flow(source, target, tmp_path, stage_with_spark)
    flow.run()
    found = flow.target.query("select id, name, n, v from items order by id")
    assert found == [(1, "a", 7, [1.5]), (2, None, None, [])]


@pytest.mark.parametrize(("mode", "remedy"), [("append", 'mode = "truncate"'), ("merge", "leave incremental out")])
def test_orc_is_not_read_by_windows(lake: Lake, tmp_path: Path, mode: str, remedy: str) -> None:
    put(lake, "main/items/a.orc", DATA)
    source = FilesHarness(lake.root, "orc", tables={"main.items": {"columns": DECLARED}})
    flow = Flow(source, DuckDBHarness(tmp_path / "t.duckdb"), tmp_path)
    with pytest.raises(Unsupported, match="Spark's own ORC reader reads no window") as caught:
        flow.run(mode=mode, keys=["id"], incremental="id", lag="0")
    assert caught.value.remedy.endswith(remedy)
    assert (caught.value.kept, caught.value.place) == (UNTOUCHED, "test")
    [record] = flow.store.runs()
    assert (record.state, (record.error or {})["place"]) == ("failed", "test")


@pytest.mark.spark
def test_a_file_is_written_in_stripes_that_a_task_can_hold(tmp_path: Path) -> None:
    """In ORC's own stripes of 64 MiB all of this would wait in the JVM until the end."""
    source = DuckDBHarness(tmp_path / "s.duckdb")
    texts = " || ".join(["md5(random()::text)"] * 12)
    source.execute(f"create table items as select i as id, {texts} as v from range(100_000) as r(i)")
    Flow(source, FilesHarness(tmp_path / "lake", "orc"), tmp_path, stage_with_spark).run()
    files = [po.ORCFile(path) for path in (tmp_path / "lake").rglob("*.orc")]
    assert sum(file.nrows for file in files) == 100_000
    assert max(file.nstripes for file in files) > 1
