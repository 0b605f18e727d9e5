"""ORC of which something is wrong: files that change, are damaged or differ, and runs that are killed half way."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as po
import pytest

from penstock.backends.base import ReadRequest
from penstock.backends.files.orc import OrcSource
from penstock.backends.files.pieces import Piece
from penstock.backends.files.read import FilesSource
from penstock.errors import NOT_COMMITTED, DataError, PenstockError, PlanRefused, SourceError, SourceMoved
from penstock.observe.failpoints import ENV
from penstock.run import pipeline as runs
from penstock.run.pipeline import Stage, stage_with_spark
from penstock.schema import TableName
from penstock.testing.stage import stage_here
from tests.conformance.files_harness import RUN, FilesHarness
from tests.conformance.files_lake import Lake
from tests.conformance.harness import DuckDBHarness, Flow, Harness
from tests.conformance.test_files_moments import changed
from tests.faults.test_all_or_nothing import ROWS, promised
from tests.faults.test_files_kills import FilesBare
from tests.waiting import await_true

COLUMNS = {"id": "bigint", "name": "text"}
SECRET = "mellon"  # in every cell: no error may show it


def put(path: Path, data: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    po.write_table(pa.table(data), path, **options)
    return path


def some(first: int, rows: int) -> dict[str, Any]:
    noise = random.Random(first)  # noqa: S311  no secret
    return {"id": range(first, first + rows), "name": [f"{SECRET}{noise.getrandbits(64):x}" for _ in range(rows)]}


def orc_of_others(root: Path, name: str = "main.items") -> FilesHarness:
    return FilesHarness(root, "orc", tables={name: {"columns": COLUMNS}})


def into_duckdb(source: Harness, tmp_path: Path, stage: Stage = stage_with_spark) -> Flow:
    return Flow(source, DuckDBHarness(tmp_path / "t.duckdb"), tmp_path, stage)


def into_duckdb_unread(source: Harness, tmp_path: Path) -> Flow:
    """Of what is refused at planning: no Spark is started for it."""
    return into_duckdb(source, tmp_path, stage_here)


def rows_of(files: FilesHarness) -> pa.Table:
    """All rows of a table of ours, by its manifests."""
    listing = FilesSource(files.config, ReadRequest(TableName("main", "items")), RUN).listing
    read = [po.read_table(Piece(entry).path()) for entry in listing.entries]
    return pa.concat_tables(read) if read else pa.table({"id": pa.array([], pa.int64())})


def nothing_of(flow: Flow, error: PenstockError) -> None:
    """Nothing is loaded or left, and what is told is neither a value nor Java's."""
    told = f"{error} {error.to_record()}"
    assert SECRET not in told
    assert "org.apache" not in told
    assert "\tat " not in told
    assert "Traceback" not in told
    assert "\n" not in str(error)
    assert error.kept == NOT_COMMITTED
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


# ---------------------------------------------------------------- files that change


@contextmanager
def meanwhile(
    monkeypatch: pytest.MonkeyPatch, failpoint: str, marker: Path, what: Callable[[], object]
) -> Iterator[None]:
    """Something that happens once, where the run first stops at a failpoint."""

    def wait() -> None:
        await_true(marker.exists, 60)
        try:
            what()
        finally:
            marker.unlink()

    monkeypatch.setenv(ENV, f"{failpoint}=once:{marker}.once:pause:{marker}")
    other = threading.Thread(target=wait, daemon=True)
    other.start()
    yield
    other.join(60)
    monkeypatch.delenv(ENV)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("when", "how"),
    [("load.begin", "replaced"), *(("copy.done", how) for how in ("replaced", "grown", "touched", "removed"))],
)
def test_nothing_is_loaded_of_orc_that_changes(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, how: str
) -> None:
    """After the plan and before the end, even where the new file is as long and as old as the one before it."""
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    path = put(lake.root / "main/items/a.orc", some(1, 100))
    put(lake.root / "main/items/b.orc", some(101, 100))
    flow = into_duckdb(orc_of_others(lake.root), tmp_path)
    with (
        meanwhile(monkeypatch, when, tmp_path / "pause", lambda: changed(path, how)),
        pytest.raises(SourceMoved, match=r"a\.orc was replaced, written to or removed") as caught,
    ):
        flow.run()
    nothing_of(flow, caught.value)


@pytest.mark.spark
def test_orc_that_changes_is_read_again_from_the_start(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(lake.root / "main/items/a.orc", some(1, 100))
    other = put(lake.root / "main/items/_other", some(1001, 50))
    flow = into_duckdb(orc_of_others(lake.root), tmp_path)
    with meanwhile(monkeypatch, "copy.done", tmp_path / "pause", lambda: other.replace(path)):
        assert flow.run().rows == 50
    assert flow.target.query("select count(*), min(id), max(id) from items") == [(50, 1001, 1050)]
    assert [record.state for record in flow.store.runs()].count("failed") == 1


# ---------------------------------------------------------------- files that are damaged


def test_orc_that_is_cut_off_is_told_at_planning(lake: Lake, tmp_path: Path) -> None:
    path = put(lake.root / "main/items/a.orc", some(1, 1000))
    whole = path.read_bytes()
    flow = into_duckdb_unread(orc_of_others(lake.root), tmp_path)
    for kept in (whole[: len(whole) // 2], whole[:-1], whole[:3], b""):
        path.write_bytes(kept)
        with pytest.raises(SourceError, match=r"a\.orc is not a whole ORC file") as caught:
            flow.run()
        nothing_of(flow, caught.value)


@pytest.mark.spark
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("compression", ["zlib", "zstd"])
def test_orc_with_a_damaged_stripe_under_a_whole_footer_stops_the_run(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, *, told: bool
) -> None:
    """Also in a session that was told to leave out what it cannot read."""
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    if told:
        read = OrcSource.frame

        def skipping(self: OrcSource, spark: Any, *rest: Any) -> Any:
            spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
            return read(self, spark, *rest)

        monkeypatch.setattr(OrcSource, "frame", skipping)
    path = put(lake.root / "main/items/a.orc", some(1, 50_000), compression=compression)
    put(lake.root / "main/items/b.orc", some(50_001, 10))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    path.write_bytes(data)
    assert po.ORCFile(path).nrows == 50_000
    flow = into_duckdb(orc_of_others(lake.root), tmp_path)
    with pytest.raises(SourceError, match=r"Spark could not read .*/items/a\.orc") as caught:
        flow.run()
    nothing_of(flow, caught.value)


# ---------------------------------------------------------------- files that differ


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"id": [1]}, "name is missing in the file"),
        ({"id": [1], "name": ["a"], "more": [1]}, "only the file has more"),
        ({"ID": [1], "name": ["a"]}, "id is missing in the file"),
    ],
)
def test_orc_files_of_other_columns_are_no_one_table(
    lake: Lake, tmp_path: Path, other: dict[str, Any], why: str
) -> None:
    put(lake.root / "main/items/a.orc", some(1, 10))
    put(lake.root / "main/items/b.orc", other)
    flow = into_duckdb_unread(orc_of_others(lake.root), tmp_path)
    with pytest.raises(SourceError, match=rf"b\.orc and .* have different columns: {why}") as caught:
        flow.run()
    nothing_of(flow, caught.value)


@pytest.mark.parametrize(
    "other", [{"id": ["1"], "name": ["a"]}, {"id": [1.0], "name": ["a"]}, {"id": [1], "name": [1]}]
)
def test_orc_files_of_other_types_are_no_one_table(lake: Lake, tmp_path: Path, other: dict[str, Any]) -> None:
    put(lake.root / "main/items/a.orc", some(1, 10))
    put(lake.root / "main/items/b.orc", other)
    flow = into_duckdb_unread(orc_of_others(lake.root), tmp_path)
    with pytest.raises(PlanRefused, match=r"column (id|name) of .*b\.orc is not read as") as caught:
        flow.run()
    assert caught.value.kept == "nothing was touched"
    assert not flow.target.has_table("items")


def test_orc_beside_other_formats_is_no_one_table(lake: Lake) -> None:
    put(lake.root / "t/a.orc", some(1, 10))
    lake.parquet("t/b.parquet", pa.table(some(1, 10)))
    with pytest.raises(PenstockError, match="holds files of several formats"):
        lake.source("t", columns=COLUMNS)


@pytest.mark.spark
def test_orc_of_others_beside_ours_has_its_types_or_is_told(tmp_path: Path) -> None:
    """Spark gives NULL for what the table's type does not hold, and the file is as its own declaration says."""
    source, ours = DuckDBHarness(tmp_path / "s.duckdb"), tmp_path / "lake"
    source.execute("create table items as select 1::bigint as id, 'a' as name")
    Flow(source, FilesHarness(ours, "orc"), tmp_path, stage_with_spark).run()
    beside = put(ours / "main/items/b.orc", {"id": ["seven"], "name": [SECRET]})
    declared = {"main.items": {"columns": {"id": "text", "name": "text"}}}
    flow = into_duckdb(FilesHarness(ours, "orc", tables=declared), tmp_path)
    with pytest.raises(
        SourceError, match=r"b\.orc and the table's manifest have different types of column id"
    ) as caught:
        flow.run()
    nothing_of(flow, caught.value)
    put(beside, {"name": ["b"], "id": pa.array([2], pa.int16())})  # what it holds fits, in any order
    narrow = {"main.items": {"columns": {"id": "smallint", "name": "text"}}}
    flow.source = FilesHarness(ours, "orc", tables=narrow)
    assert flow.run().rows == 2
    assert flow.target.query("select id, name from items order by 1") == [(1, "a"), (2, "b")]
    beside.unlink()
    [own] = (ours / "main/items").glob("*.orc")
    own.write_bytes(own.read_bytes()[:-1])
    with pytest.raises(SourceError, match="is not the file that its manifest tells of"):
        flow.run()
    assert flow.target.query("select count(*) from items") == [(2,)]


@pytest.mark.spark
def test_orc_in_names_that_are_patterns_to_spark_is_read_and_written_once(tmp_path: Path) -> None:
    root = tmp_path / "{lake,[1]}"
    for place, name in enumerate(("a[1]", "a1", "a{1,2}", "a*", "a?", "a b%20#,=")):
        put(root / f"main/items[1]/{name}.orc", {"id": [place], "name": [name]})
    flow = into_duckdb(orc_of_others(root, "main.items[1]"), tmp_path)
    assert flow.run(table='main."items[1]"').rows == 6
    found = flow.target.query("select id, name from items order by 1")
    assert found == list(enumerate(("a[1]", "a1", "a{1,2}", "a*", "a?", "a b%20#,=")))
    there = FilesHarness(root / "out", "orc")
    assert Flow(flow.target, there, tmp_path, stage_with_spark).run().rows == 6
    assert sorted(rows_of(there).column("id").to_pylist()) == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------- the guard


@pytest.mark.spark
def test_guard_an_empty_or_shrunk_source_stops_before_orc_is_replaced(tmp_path: Path) -> None:
    source, there = DuckDBHarness(tmp_path / "s.duckdb"), FilesHarness(tmp_path / "lake", "orc")
    source.execute("create table items as select range::bigint as id, 'x' as name from range(10)")
    flow = Flow(source, there, tmp_path, stage_with_spark)
    assert flow.run(mode="truncate").rows == 10
    source.execute("delete from items where id > 2")
    with pytest.raises(DataError, match=r"7 of the target's 10 rows"):
        flow.run(mode="truncate")
    source.execute("delete from items")
    with pytest.raises(DataError, match=r"0 rows.*10 of the target's 10 rows would go") as caught:
        flow.run(mode="truncate")
    assert "allow_empty" in caught.value.remedy
    assert rows_of(there).num_rows == 10
    source.execute("insert into items values (7, 'y')")
    record = flow.run(mode="truncate", max_delete_ratio=0.9)
    assert (record.rows, record.deleted) == (1, 10)
    assert rows_of(there).column("id").to_pylist() == [7]
    source.execute("delete from items")
    assert flow.run(mode="truncate", allow_empty=True).deleted == 1
    assert rows_of(there).num_rows == 0
    assert there.leftovers() == []


@pytest.mark.spark
def test_orc_of_others_is_not_replaced_uncounted(tmp_path: Path) -> None:
    """Whether a guard allows it nobody knows: its rows are counted by no target."""
    source, there = DuckDBHarness(tmp_path / "s.duckdb"), orc_of_others(tmp_path / "lake")
    source.execute("create table items as select range::bigint as id, 'x' as name from range(10)")
    other = put(tmp_path / "lake/main/items/b.orc", some(1, 100))
    with pytest.raises(SourceError, match="counted and read by Spark alone") as caught:
        Flow(source, there, tmp_path, stage_with_spark).run(mode="truncate")
    assert caught.value.kept == NOT_COMMITTED
    assert [path for path in other.parent.rglob("*") if path.is_file()] == [other]


# ---------------------------------------------------------------- killed


class OrcBare(FilesBare):
    """Its stage is Spark's, as ORC is written by nobody else."""

    def count(self) -> int:
        if not self.target.has_table("items"):
            return 0
        ids = rows_of(self.files).column("id").to_pylist()
        assert len(ids) == len(set(ids))
        return len(ids)


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.sampled
@pytest.mark.parametrize("state", ["first", "later"])
@pytest.mark.parametrize("name", ["copy.done", "commit.loaded", "publish.file"])
def test_sigkill_while_orc_is_loaded(tmp_path: Path, name: str, state: str) -> None:
    bare = OrcBare(DuckDBHarness(tmp_path / "s.duckdb"), FilesHarness(tmp_path / "lake", "orc"), tmp_path)
    before = 0
    if state == "later":
        bare.run_here()
        before = ROWS
        bare.source.execute(f"insert into items select n, 'y' from generate_series({ROWS + 1}, {2 * ROWS}) as g(n)")
    killed = bare.run(f"{name}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    after = promised().get(name, "as after") == "as after"
    assert bare.count() == (before + ROWS if after else before)
    bare.run_here()
    assert bare.count() == before + ROWS
    assert bare.target.leftovers() == []
    own = [path for path in (bare.files.root / "main" / "items").iterdir() if path.name != "_penstock"]
    assert {path.suffix for path in own} == {".orc"}
