"""Files as a target: the manifest is the commit, and what others have put there stays theirs."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.files.manifest import Chain, Manifest, staging_base
from penstock.backends.files.place import OWN_NAME, locate
from penstock.errors import Busy, DataError, PlanRefused, PlanStale, StateError, TargetError, Unsupported
from penstock.observe.failpoints import ENV, FailpointError
from penstock.run import pipeline as runs
from penstock.run.prepare import prepare
from penstock.run.records import RunOptions
from penstock.schema import TableName
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow

FORMATS = ("parquet", "csv", "jsonl")


@pytest.fixture(params=FORMATS)
def flow(request: pytest.FixtureRequest, tmp_path: Path) -> Flow:
    """From DuckDB into files of each format."""
    return made(tmp_path, request.param)


@pytest.fixture
def parquet(tmp_path: Path) -> Flow:
    return made(tmp_path, "parquet")


def made(tmp_path: Path, file_format: str) -> Flow:
    flow = Flow(DuckDBHarness(tmp_path / "source.duckdb"), FilesHarness(tmp_path / "lake", file_format), tmp_path)
    flow.source.execute(
        "create table items (id bigint, name varchar, price decimal(10,2))",
        "insert into items values (1, 'a', 1.50), (2, null, null), (3, '', -0.01)",
    )
    return flow


def lake(flow: Flow) -> FilesHarness:
    assert isinstance(flow.target, FilesHarness)
    return flow.target


def folder(flow: Flow, table: str = "items") -> Path:
    return lake(flow).root / "main" / table


def data_files(flow: Flow) -> list[str]:
    return sorted(path.name for path in folder(flow).iterdir() if not path.name.startswith("_"))


def chain(flow: Flow) -> Chain:
    return Chain.read(locate(lake(flow).config, TableName("main", "items"), exists=False))


def rows(flow: Flow) -> list[tuple[Any, ...]]:
    return [
        tuple(str(v) if v is not None and not isinstance(v, (int, str)) else v for v in row)
        for row in flow.target.query("select id, name, price from items order by 1, 2")
    ]


# ---------------------------------------------------------------- modes


def test_append_adds_every_row_on_every_run(flow: Flow) -> None:
    first = flow.run()
    assert (first.rows, first.inserted, first.deleted) == (3, 3, 0)
    assert rows(flow) == [(1, "a", "1.50"), (2, None, None), (3, "", "-0.01")]
    flow.run()
    assert len(rows(flow)) == 6
    assert flow.target.leftovers() == []


def test_truncate_replaces_all_rows_and_removes_the_old_files(flow: Flow) -> None:
    flow.run(mode="truncate")
    old = data_files(flow)
    flow.source.execute("delete from items", "insert into items values (7, 'x', 1), (8, 'y', 2)")
    second = flow.run(mode="truncate")
    assert (second.inserted, second.deleted) == (2, 3)
    assert [row[0] for row in rows(flow)] == [7, 8]
    assert not set(old) & set(data_files(flow))


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_modes_that_change_rows_are_refused_with_a_pointer(parquet: Flow, mode: str) -> None:
    with pytest.raises(Unsupported, match=f"Files does not take mode {mode}") as caught:
        parquet.run(mode=mode, keys=["id"])
    assert "Delta or Iceberg" in caught.value.remedy


def test_sql_of_the_target_is_refused(parquet: Flow) -> None:
    with pytest.raises(Unsupported, match="Files runs no SQL of its own"):
        parquet.run(transforms_post=["select 1"])


def test_guard_an_empty_source_stops_before_the_target_is_emptied(flow: Flow) -> None:
    flow.run(mode="truncate")
    flow.source.execute("delete from items")
    with pytest.raises(DataError, match=r"0 rows.*3 of the target's 3 rows would go") as caught:
        flow.run(mode="truncate")
    assert "allow_empty" in caught.value.remedy
    assert len(rows(flow)) == 3
    flow.run(mode="truncate", allow_empty=True)
    assert rows(flow) == []


def test_guard_counts_the_rows_of_others_too(flow: Flow) -> None:
    flow.source.execute("create table many as select range::bigint as id, 'x' as name from range(10)")
    target = folder(flow)
    target.mkdir(parents=True)
    with duckdb.connect() as other:
        ending = {"parquet": "parquet", "csv": "csv", "jsonl": "jsonl"}[lake(flow).format]
        form = {"parquet": "parquet", "csv": "csv, header", "jsonl": "json"}[lake(flow).format]
        other.execute(
            f"copy (select range::varchar as id, 'x' as name from range(10)) to '{target}/b.{ending}' (format {form})"
        )
    flow.source.execute("delete from many where id > 2", "alter table many alter id type varchar")
    with pytest.raises(DataError, match="7 of the target's 10 rows"):
        flow.run(table="main.many", mode="truncate")
    flow.run(table="main.many", mode="truncate", max_delete_ratio=0.9)
    assert [name for name in data_files(flow) if not OWN_NAME.fullmatch(name)] == []


def test_two_pipelines_of_which_one_replaces_are_refused(parquet: Flow) -> None:
    parquet.run()
    other = Flow(parquet.source, parquet.target, parquet.root)
    with pytest.raises(PlanRefused, match="is loaded by pipeline"):
        other.run(mode="truncate")


def test_a_load_of_nothing_makes_a_table_with_its_columns(flow: Flow) -> None:
    flow.source.execute("delete from items")
    assert flow.run().rows == 0
    assert lake(flow).table("items").schema.names == ["id", "name", "price"]
    assert data_files(flow) == []


def test_incremental_into_files_continues_at_the_watermark_of_the_manifest(flow: Flow) -> None:
    options = {"incremental": "id", "lag": "0"}
    assert flow.run(**options).rows == 3
    assert flow.run(**options).rows == 0
    flow.source.execute("insert into items values (4, 'd', 4)")
    assert flow.run(**options).rows == 1
    assert flow.run(RunOptions(full_refresh=True), **options).rows == 4
    assert [row[0] for row in rows(flow)] == [1, 2, 3, 4]


# ---------------------------------------------------------------- the manifest


def test_the_manifest_tells_the_whole_load(flow: Flow) -> None:
    record = flow.run(incremental="id", lag="0")
    manifest = json.loads((folder(flow) / "_penstock" / "00000001.json").read_text())
    assert (manifest["run"], manifest["pipeline"], manifest["rows"]) == (record.run_id, flow.name, 3)
    assert json.loads(manifest["loaders"][flow.name]["watermark"]) == {"column": "id", "upper": "4"}
    [group] = manifest["groups"]
    [file] = group["files"]
    assert (file["rows"], file["bytes"]) == (3, (folder(flow) / file["name"]).stat().st_size)
    assert [(c["name"], c["type"], c["native"]) for c in manifest["columns"]] == [
        ("id", "bigint", "duckdb:BIGINT"),
        ("name", "text", "duckdb:VARCHAR"),
        ("price", "decimal(10,2)", "duckdb:DECIMAL(10,2)"),
    ]


def test_files_are_named_by_the_run_so_that_they_sort_by_time(parquet: Flow) -> None:
    ids = [parquet.run().run_id for _ in range(3)]
    assert [name[:32] for name in data_files(parquet)] == sorted(ids) == ids


def test_a_manifest_is_written_only_if_its_number_is_free(parquet: Flow) -> None:
    parquet.run()
    found = chain(parquet)
    assert found.last is not None
    (staging_base(found.place) / found.last.run).mkdir(parents=True)
    with pytest.raises(PlanStale):
        found.write(found.last)


def test_every_fiftieth_manifest_lists_the_whole_table(parquet: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.files.manifest.WHOLE_EVERY", 3)
    for _ in range(8):
        parquet.run()
    assert len(rows(parquet)) == 24
    found = chain(parquet)
    assert (found.rows, len(found.groups), found.last.number if found.last else 0) == (24, 8, 8)
    kept = sorted(path.name for path in (folder(parquet) / "_penstock").glob("*.json"))
    assert kept == [f"{n:08d}.json" for n in range(3, 9)]


def test_a_missing_or_broken_manifest_is_told(parquet: Flow) -> None:
    for _ in range(3):
        parquet.run()
    second = folder(parquet) / "_penstock" / "00000002.json"
    text = second.read_text()
    second.unlink()
    with pytest.raises(StateError, match=r"a manifest of main\.items is missing"):
        parquet.run()
    second.write_text(text[:50])
    with pytest.raises(StateError, match="is not a manifest"):
        parquet.run()
    second.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(StateError, match="newer Penstock"):
        parquet.run()


def test_a_file_that_is_not_what_its_manifest_says_is_told(parquet: Flow) -> None:
    parquet.run()
    [name] = data_files(parquet)
    (folder(parquet) / name).write_bytes(b"something else")
    with pytest.raises(Exception, match="is not the file that its manifest tells of"):
        parquet.target.rows("items")


def test_the_watermark_is_checked_under_the_lock(parquet: Flow) -> None:
    options = {"incremental": "id", "lag": "0"}
    pipeline = parquet.pipeline(**options)
    project = parquet.project(pipeline)
    late = prepare(project, pipeline, pipeline.table, runs.context_of(project, pipeline), RunOptions())
    parquet.run(**options)
    load = late.target.begin(late.planned.load)
    try:
        receipts = [load.sink(0).write(0, late.split.partitions[0].read())]
        with pytest.raises(PlanStale):
            load.commit(receipts)
    finally:
        load.close()
        late.close()
    assert len(rows(parquet)) == 3


def test_a_second_run_at_once_says_so(parquet: Flow) -> None:
    pipeline = parquet.pipeline()
    project = parquet.project(pipeline)
    first = prepare(project, pipeline, pipeline.table, runs.context_of(project, pipeline), RunOptions())
    load = first.target.begin(first.planned.load)
    try:
        with pytest.raises(Busy, match="another run is writing to"):
            parquet.run()
    finally:
        load.close()
        first.close()
    parquet.run()
    assert len(rows(parquet)) == 3


def test_two_attempts_at_a_part_count_once(flow: Flow) -> None:
    pipeline = flow.pipeline()
    project = flow.project(pipeline)
    ready = prepare(project, pipeline, pipeline.table, runs.context_of(project, pipeline), RunOptions())
    load = ready.target.begin(ready.planned.load)
    try:
        one, two = (load.sink(0).write(0, ready.split.partitions[0].read()) for _ in range(2))
        assert one == two
        load.commit([one])
    finally:
        load.close()
        ready.close()
    assert len(rows(flow)) == 3
    assert len(data_files(flow)) == 1


# ---------------------------------------------------------------- dying


@pytest.mark.parametrize("name", ["load.staging", "sink.staged", "copy.done", "commit.loaded"])
def test_a_failure_before_the_manifest_leaves_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(ENV, f"{name}=raise")
    with pytest.raises(FailpointError):
        flow.run()
    assert not folder(flow).exists()
    monkeypatch.delenv(ENV)
    flow.run()
    assert len(rows(flow)) == 3


@pytest.mark.parametrize("name", ["commit.done", "publish.file"])
def test_publishing_that_fails_after_the_manifest_is_finished_by_the_next_run(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    flow.run()
    monkeypatch.setenv(ENV, f"{name}=raise")
    record = flow.run()
    assert (record.state, record.rows) == ("done", 3)
    monkeypatch.delenv(ENV)
    # Whoever reads by manifests sees the load; whoever lists files may not yet.
    assert len(rows(flow)) == 6
    assert len(data_files(flow)) == (1 if name == "commit.done" else 2)
    flow.run()
    assert len(rows(flow)) == 9
    assert len(data_files(flow)) == 3
    assert flow.target.leftovers() == []


def test_a_truncate_that_dies_before_it_removes_the_old_files_is_finished(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.run(mode="truncate")
    monkeypatch.setenv(ENV, "commit.done=raise")
    flow.source.execute("update items set id = id + 10")
    flow.run(mode="truncate")
    monkeypatch.delenv(ENV)
    assert [row[0] for row in rows(flow)] == [11, 12, 13]
    assert chain(flow).publish() == 1
    assert [row[0] for row in rows(flow)] == [11, 12, 13]
    assert len(data_files(flow)) == 1


def test_a_manifest_whose_writing_fails_in_an_unknown_way_is_looked_for(
    parquet: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Chain.write

    def after(self: Chain, manifest: Manifest) -> None:
        write(self, manifest)
        raise OSError("the answer was lost")

    monkeypatch.setattr(Chain, "write", after)
    assert parquet.run().state == "done"
    monkeypatch.setattr(Chain, "write", lambda self, manifest: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(TargetError, match="the disk is full"):
        parquet.run()
    assert len(rows(parquet)) == 3


@pytest.mark.parametrize("written", [True, False])
def test_a_manifest_that_cannot_even_be_looked_for_keeps_what_was_staged(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    flow.run()
    with monkeypatch.context() as patched:
        patched.setattr(*(("penstock.backends.files.manifest.sync",) if written else (Chain, "write")), broken)
        patched.setattr(Chain, "committed", broken)
        with pytest.raises(TargetError, match="it is not known whether the manifest was written"):
            flow.run()
    # Nothing of a load that counts was lost, and nothing of one that does not is left.
    assert len(rows(flow)) == (6 if written else 3)
    flow.run()
    assert len(rows(flow)) == (9 if written else 6)
    assert flow.target.leftovers() == []


# ---------------------------------------------------------------- others


def test_a_reader_of_a_plain_glob_sees_committed_files_only(parquet: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, "commit.loaded=raise")
    with pytest.raises(FailpointError):
        parquet.run()
    monkeypatch.delenv(ENV)
    parquet.run()
    found = duckdb.sql(f"select id, name, price::varchar from '{folder(parquet)}/*.parquet' order by 1").fetchall()
    assert found == [(1, "a", "1.50"), (2, None, None), (3, "", "-0.01")]


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_another_program_reads_what_is_written(tmp_path: Path, file_format: str) -> None:
    flow = made(tmp_path, file_format)
    flow.source.execute(
        "insert into items values (9007199254740993, 'a \"quoted\", one' || chr(10) || 'two', 12345678.91)"
    )
    flow.run()
    read = {
        "csv": "read_csv('{}', all_varchar = true, nullstr = '', allow_quoted_nulls = false)",
        "jsonl": "read_json('{}', columns = {{id: 'varchar', name: 'varchar', price: 'varchar'}})",
    }[file_format]
    found = duckdb.sql(f"select * from {read.format(f'{folder(flow)}/*')} order by length(id), id").fetchall()
    assert found == [
        ("1", "a", "1.50"),
        ("2", None, None),
        ("3", "", "-0.01"),
        ("9007199254740993", 'a "quoted", one\ntwo', "12345678.91"),
    ]


def test_files_of_others_are_part_of_the_table_and_counted_in_the_plan(parquet: Flow) -> None:
    parquet.run()
    table = pa.table(
        {"id": pa.array([9], pa.int64()), "name": ["mine"], "price": pa.array([None], pa.decimal128(10, 2))}
    )
    pq.write_table(table, folder(parquet) / "mine.parquet")
    pq.write_table(table, folder(parquet) / "_hidden.parquet")
    assert len(rows(parquet)) == 4
    planned = parquet.plan()
    assert "1 files by manifests, 1 files of others" in planned.notes
    parquet.run()
    assert "mine.parquet" in data_files(parquet)
    # A file of our own name that no manifest tells of is no data: its run has died, or it was replaced.
    pq.write_table(table, folder(parquet) / f"{'0' * 32}-00000-00000000.parquet")
    assert len(rows(parquet)) == 7


def test_a_new_file_of_the_name_of_a_replaced_one_is_not_removed(parquet: Flow) -> None:
    folder(parquet).mkdir(parents=True)
    table = pa.table(
        {"id": pa.array([9], pa.int64()), "name": ["mine"], "price": pa.array([None], pa.decimal128(10, 2))}
    )
    pq.write_table(table, folder(parquet) / "mine.parquet")
    parquet.run(mode="truncate")
    assert "mine.parquet" not in data_files(parquet)
    pq.write_table(table, folder(parquet) / "mine.parquet")
    assert [row[0] for row in rows(parquet)] == [1, 2, 3, 9]
    parquet.run(mode="append")
    assert "mine.parquet" in data_files(parquet)


def test_a_source_that_overlaps_its_target_is_refused(parquet: Flow) -> None:
    parquet.run()
    back = Flow(parquet.target, parquet.target, parquet.root)
    for table, target in [
        ("main.items", "to.main.items"),
        ("main.items", 'to.main."items/inner"'),
        ('main."*/mine*.parquet"', 'to.main."items"'),
    ]:
        if "*" in table:
            pq.write_table(lake(parquet).table("items"), folder(parquet) / "mine.parquet")
        with pytest.raises(PlanRefused, match="the source overlaps its target"):
            back.run(table=table, target=target)
    back.run(table="main.items", target="to.main.copies")
    assert lake(parquet).table("copies").num_rows == 6


# ---------------------------------------------------------------- drift


def test_drift_evolve_adds_columns_and_older_files_read_as_null(flow: Flow) -> None:
    flow.run()
    flow.source.execute("alter table items add column extra integer default 7")
    with pytest.raises(PlanRefused, match="column extra of the source is not in"):
        flow.run()
    flow.run(on_drift="evolve")
    found = flow.target.query("select id, extra from items order by id, extra nulls first")
    assert found == [(1, None), (1, 7), (2, None), (2, 7), (3, None), (3, 7)]
    flow.source.execute("alter table items drop column name")
    with pytest.raises(PlanRefused, match="name was loaded before and is gone"):
        flow.run(on_drift="error")
    flow.run(on_drift="ignore")
    assert flow.target.query("select count(*) from items where name is null") == [(5,)]


def test_drift_evolve_widens_and_older_files_are_cast_up(flow: Flow) -> None:
    flow.source.execute("create table grow (id integer, f float)", "insert into grow values (1, 0.5)")
    flow.run(table="main.grow")
    flow.source.execute("alter table grow alter id type bigint", "insert into grow values (5000000000, 0.25)")
    with pytest.raises(PlanRefused, match="column id"):
        flow.run(table="main.grow")
    flow.run(table="main.grow", on_drift="evolve")
    data = lake(flow).table("items")
    assert data.schema.field("id").type == pa.int64()
    assert sorted(data.column("id").to_pylist()) == [1, 1, 5000000000]


def test_a_narrower_type_goes_into_the_wider_column(flow: Flow) -> None:
    flow.run()
    flow.source.execute(
        "create table small (id integer, name varchar, price decimal(5,1))", "insert into small values (9, 'x', 1.5)"
    )
    assert flow.plan(table="main.small").columns[0].verdict == "widened"
    flow.run(table="main.small")
    assert rows(flow)[-1] == (9, "x", "1.50")


def test_a_cast_is_checked_value_by_value(flow: Flow) -> None:
    flow.source.execute("create table texts (id integer, v varchar)", "insert into texts values (1, '8'), (2, '007')")
    with pytest.raises(DataError, match="column v has a value that its target type cannot hold") as caught:
        flow.run(table="main.texts", columns={"v": "integer"}, keys=["id"])
    assert caught.value.keys == ("id=2",)
    assert not folder(flow).exists()


# ---------------------------------------------------------------- one file


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl", "out.csv.gz", "out.jsonl.zst"])
def test_a_single_file_is_replaced_in_one_step(tmp_path: Path, name: str) -> None:
    flow = made(tmp_path, "parquet")
    target = f'to.main."{name}"'
    options = {"target": target, "mode": "truncate"}
    harness = FilesHarness(tmp_path / "lake")
    harness.options = lambda: {"type": "files", "path": str(tmp_path / "lake")}  # type: ignore[method-assign]  # by name
    flow.target = harness
    flow.run(**options)
    path = tmp_path / "lake" / "main" / name
    inode = path.stat().st_ino
    assert harness.table(name).column("id").to_pylist() == [1, 2, 3]
    assert harness.table(name).schema.field("price").type == pa.decimal128(10, 2)
    flow.source.execute("insert into items values (4, 'd', 4)")
    assert flow.run(**options).deleted == 3
    assert path.stat().st_ino != inode
    assert harness.table(name).num_rows == 4
    with pytest.raises(PlanRefused, match="is one file, which a load replaces"):
        flow.run(target=target, mode="append")
    assert harness.leftovers() == []
    if name == "out.csv":
        path.write_text("id,name\n1,mine\n")
        assert harness.table(name).to_pylist() == [{"id": "1", "name": "mine"}]


def test_a_connection_that_is_one_file(tmp_path: Path) -> None:
    flow = made(tmp_path, "parquet")
    harness = FilesHarness(tmp_path / "out.csv")
    harness.options = lambda: {"type": "files", "path": str(tmp_path / "out.csv")}  # type: ignore[method-assign]  # a file
    flow.target = harness
    flow.run(target="to.out", mode="truncate")
    assert (tmp_path / "out.csv").read_text() == 'id,name,price\n1,a,1.50\n2,,\n3,"",-0.01\n'
    with pytest.raises(PlanRefused, match="is one file, and has no table other"):
        flow.run(target="to.other", mode="truncate")


# ---------------------------------------------------------------- partitions


def test_partition_by_writes_hive_folders_and_reads_them_back(flow: Flow) -> None:
    flow.source.execute(
        "create table sales (id integer, region varchar, day date)",
        "insert into sales values (1, 'eu', '2024-01-01'), (2, 'us', '2024-01-01'), (3, null, '2024-01-02'),"
        " (4, 'a/b=c %', '2024-01-02'), (5, '', null)",
    )
    flow.run(table="main.sales", partition_by=["region", "day"])
    folders = sorted(str(path.relative_to(folder(flow))) for path in folder(flow).glob("region=*/day=*"))
    assert folders == sorted(
        [
            "region=eu/day=2024-01-01",
            "region=us/day=2024-01-01",
            "region=__HIVE_DEFAULT_PARTITION__/day=2024-01-02",
            "region=a%2Fb%3Dc %25/day=2024-01-02",
            "region=/day=__HIVE_DEFAULT_PARTITION__",
        ]
    )
    found = flow.target.query("select id, region, day::varchar from items order by id")
    assert found == [
        (1, "eu", "2024-01-01"),
        (2, "us", "2024-01-01"),
        (3, None, "2024-01-02"),
        (4, "a/b=c %", "2024-01-02"),
        (5, "", None),
    ]
    flow.run(table="main.sales", partition_by=["region", "day"], mode="truncate")
    assert len(flow.target.query("select id from items")) == 5
    assert flow.target.leftovers() == []


def test_partition_by_every_column_is_refused(flow: Flow) -> None:
    flow.source.execute("create table sales as select 'eu' as region, 1 as day")
    with pytest.raises(PlanRefused, match="partition_by names every column"):
        flow.run(table="main.sales", partition_by=["day", "region"])


def test_partition_by_a_part_of_a_time_is_refused(parquet: Flow) -> None:
    parquet.source.execute("create table sales (id integer, day date)")
    with pytest.raises(Unsupported, match=re.escape("Files is not partitioned by month(day)")):
        parquet.run(table="main.sales", partition_by=["month(day)"])
