"""Files of others at one moment, and the windows of incremental reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.base import Cursor, Window
from penstock.backends.files.read import FilesPartition
from penstock.errors import DataError, PlanRefused, SourceMoved
from penstock.run import pipeline as runs
from tests.conformance.files_harness import FilesHarness
from tests.conformance.files_lake import Lake
from tests.conformance.harness import DuckDBHarness, Flow

STAMP = 1_700_000_000_123_456


def pairs(lake: Lake, name: str, file_format: str) -> Path:
    """A file of two columns, which is read in several batches."""
    if file_format == "parquet":
        return lake.parquet(f"{name}.parquet", pa.table({"a": list(range(10_000)), "b": list(range(10_000))}))
    text = "a,b\n" + "1,2\n" * 10_000 if file_format == "csv" else '{"a": 1, "b": 2}\n' * 10_000
    return lake.put(f"{name}.{file_format}", text)


def changed(path: Path, how: str) -> None:
    stat = path.stat()
    if how == "replaced":
        other = path.with_name("_other")
        other.write_bytes(path.read_bytes())
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        other.replace(path)
    elif how == "grown":
        with path.open("ab") as file:
            file.write(b"9,9\n")
    elif how == "removed":
        path.unlink()
    else:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


@pytest.mark.parametrize("when", ["before", "while"])
@pytest.mark.parametrize("how", ["replaced", "grown", "touched", "removed"])
@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet"])
def test_a_file_that_changes_while_it_is_read_stops_the_run(lake: Lake, how: str, when: str, file_format: str) -> None:
    path = pairs(lake, "t", file_format)
    source = lake.source("t")
    [part] = source.partitions(list(source.schema()), 1).partitions
    batches = part.read()
    if when == "while":
        next(batches)
    changed(path, how)
    with pytest.raises(SourceMoved, match="was replaced, written to or removed"):
        list(batches)


@pytest.mark.parametrize("how", ["replaced", "grown", "touched", "removed"])
@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet"])
def test_nothing_is_loaded_of_a_file_that_changes(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, how: str
) -> None:
    """Even where the new file is as long and as old as the one before it."""
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    path = pairs(lake, "main/items", file_format)
    flow = Flow(FilesHarness(lake.root, file_format), DuckDBHarness(tmp_path / "t.duckdb"), tmp_path)
    whole = FilesPartition.read

    def read(self: FilesPartition) -> Any:
        changed(path, how)
        yield from whole(self)

    monkeypatch.setattr(FilesPartition, "read", read)
    with pytest.raises(SourceMoved, match="was replaced, written to or removed"):
        flow.run(table=f'main."{path.name}"')
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_incremental_reads_each_row_once(lake: Lake, tmp_path: Path, file_format: str) -> None:
    def put(name: str, ids: range) -> None:
        if file_format == "parquet":
            lake.parquet(f"main/items/{name}.parquet", pa.table({"id": pa.array(ids, pa.int64())}))
        elif file_format == "csv":
            lake.put(f"main/items/{name}.csv", "id\n" + "".join(f"{n}\n" for n in ids))
        else:
            lake.put(f"main/items/{name}.jsonl", "".join(f'{{"id": {n}}}\n' for n in ids))

    harness = FilesHarness(lake.root, file_format)
    tables = {"main.items": {"columns": {"id": "bigint"}}}
    options = harness.options() | {"tables": tables}
    harness.options = lambda: options  # type: ignore[method-assign]  # with a declared type
    flow = Flow(harness, DuckDBHarness(tmp_path / "t.duckdb"), tmp_path)
    put("a", range(10))
    window = {"incremental": "id", "lag": "2"}
    assert flow.run(**window).rows == 8
    put("b", range(10, 20))
    assert flow.run(**window).rows == 10
    assert flow.run(**window).rows == 0
    assert flow.target.query("select count(*), count(distinct id), max(id) from items") == [(18, 18, 17)]


def test_incremental_bounds_of_times(lake: Lake) -> None:
    lake.parquet(
        "t.parquet",
        pa.table(
            {
                "at": pa.array([STAMP, None], pa.timestamp("us", "UTC")),
                "naive": pa.array([STAMP, STAMP], pa.timestamp("us")),
                "day": pa.array([1, 2], pa.date32()),
                "n": pa.array([255, 7], pa.uint8()),
                "f": [0.5, 1.5],
            }
        ),
    )
    source = lake.source("t", keys=("n",))
    assert source.upper(Cursor("n", "0", None)) == "256"
    assert source.upper(Cursor("n", "0", None, "300")) == "300"
    assert source.upper(Cursor("at", "5m", None)).endswith("+00")
    assert source.upper(Cursor("at", "5m", None, "2999-01-01 00:00:00+00")) == "2999-01-01 00:00:00+00"
    with pytest.raises(PlanRefused, match="has no time zone"):
        source.upper(Cursor("naive", "0s", None))
    assert len(source.upper(Cursor("day", "0s", "Europe/Prague"))) == 10
    with pytest.raises(PlanRefused, match="column 'f' cannot be a cursor"):
        source.upper(Cursor("f", "0", None))
    everything = Window("n", None, "256")
    [part] = source.partitions([source.schema()["f"]], 1, everything).partitions
    assert sum(batch.num_rows for batch in part.read()) == 2
    with pytest.raises(DataError, match="1 rows have no value in the cursor column 'at'") as caught:
        source.partitions([source.schema()["n"]], 1, Window("at", None, "2999-01-01 00:00:00+00"))
    assert caught.value.keys == ("n=7",)
