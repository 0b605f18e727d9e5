"""ORC of others: what is declared is what the files hold, before Spark reads a row of them."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pytest

from penstock.backends.files import FilesBackend, FilesConfig
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


@pytest.mark.spark
@pytest.mark.parametrize(("table", "ids"), [('main."a.orc"', [1, 2]), ("main.a", [1, 2]), ('main."*.orc"', [1, 2, 3])])
def test_orc_of_others_is_read_as_one_file_and_by_a_pattern(
    lake: Lake, tmp_path: Path, table: str, ids: list[int]
) -> None:
    put(lake, "main/a.orc", {"id": [1, 2], "name": ["a", None]})
    put(lake, "main/b.orc", {"name": ["b"], "id": [3]})
    lake.put("main/c.csv", "id\n4\n")
    source = FilesHarness(lake.root, "orc", tables={table: {"columns": {"id": "bigint", "name": "text"}}})
    flow = Flow(source, DuckDBHarness(tmp_path / "t.duckdb"), tmp_path, stage_with_spark)
    assert flow.run(table=table).rows == len(ids)
    assert flow.target.query("select id, name from items order by 1") == list(zip(ids, ["a", None, "b"], strict=False))


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


@pytest.mark.parametrize(
    ("tables", "section"),
    [
        ({}, "[connections.lake.tables.'sales.items']"),
        ({"items": {"infer": True}}, "[connections.lake.tables.items]"),
        ({'sales."items"': {}}, "[connections.lake.tables.'sales.\"items\"']"),
    ],
)
def test_orc_that_is_not_declared_names_the_section_to_declare_it_in(
    lake: Lake, tables: dict[str, object], section: str
) -> None:
    put(lake, "sales/items/a.orc", DATA)
    with pytest.raises(PlanRefused, match=r"the columns of .* are not known") as caught:
        lake.source("sales.items", tables=tables)
    assert f"{section} columns = {{" in caught.value.remedy
    assert "nothing of it is inferred" in caught.value.why


def test_infer_is_told_to_have_no_effect_on_orc(lake: Lake) -> None:
    put(lake, "t/a.orc", {"id": [1], "name": ["7"]})
    source = lake.source("t", columns={"id": "bigint", "name": "text"}, infer=True)
    assert "infer has no effect on ORC, whose columns are declared" in source.notes()
    assert [str(column.type) for column in source.schema()] == ["int64", "string"]


def test_a_connection_says_who_reads_its_orc(lake: Lake) -> None:
    def answer(**options: str) -> str:
        return FilesBackend().test(FilesConfig.model_validate({"name": "lake", **options}))

    path = put(lake, "a.orc", {"id": [1]})
    spark = f"read by Spark {version('pyspark')}"
    assert answer(path=str(lake.root), format="orc") == f"a directory, {spark}"
    assert answer(path=str(path)) == f"a file, {spark}"
    assert answer(path=str(lake.root)) == f"a directory, read by pyarrow {pa.__version__}"


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
