"""Files of others as a source: what they are, what they hold, and what is wrong with them."""

from __future__ import annotations

import gzip
import os
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.base import Cursor, ReadRequest, RunContext, Window
from penstock.backends.files import read
from penstock.backends.files.config import FilesConfig
from penstock.backends.files.read import FilesPartition, FilesSource
from penstock.backends.files.texts import text_of
from penstock.errors import ConfigError, DataError, PenstockError, PlanRefused, SourceError, SourceMoved
from penstock.run import pipeline as runs
from penstock.schema import Column, TableName
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow

RUN = RunContext("0" * 32, "p", Path("unused"), batch_bytes=1 << 20, batch_rows=1000)


class Lake:
    """A directory that others have filled."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def parquet(self, name: str, table: pa.Table, **options: Any) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        return path

    def source(
        self, table: str, *, keys: tuple[str, ...] = (), limit: int | None = None, **options: Any
    ) -> FilesSource:
        own = {key: options.pop(key) for key in ("columns", "infer") if key in options}
        name = TableName.parse(table)
        given = {"name": "lake", "path": str(self.root), **options}
        if own:
            given["tables"] = {str(name): own}
        return FilesSource(FilesConfig.model_validate(given), ReadRequest(name, keys=keys, limit=limit), RUN)

    def read(self, table: str, want: int = 1, **options: Any) -> list[dict[str, Any]]:
        source = self.source(table, **options)
        columns = list(source.schema())
        rows: list[dict[str, Any]] = []
        for part in source.partitions(columns, want).partitions:
            for batch in pickle.loads(pickle.dumps(part)).read():  # noqa: S301  as Spark sends it
                assert batch.schema.names == [column.name for column in columns]
                rows += batch.to_pylist()
        return rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def types(source: FilesSource) -> dict[str, str]:
    return {column.name: str(column.type) for column in source.schema()}


# ---------------------------------------------------------------- which files


def test_a_table_is_a_directory_a_file_or_a_pattern(lake: Lake) -> None:
    lake.put("orders/a.csv", "id\n1\n")
    lake.put("orders/2024/b.csv", "id\n2\n")
    lake.put("orders/_c.csv", "id\n3\n")
    lake.put("orders/.d.csv", "id\n4\n")
    lake.put("single.csv", "id\n5\n")
    lake.put("sales/eu.csv", "id\n6\n")
    assert lake.read("orders") == [{"id": "2"}, {"id": "1"}]
    assert lake.read("single") == lake.read('"single.csv"') == [{"id": "5"}]
    assert lake.read("sales.eu") == [{"id": "6"}]
    assert lake.read('"*/*.csv"') == [{"id": "1"}, {"id": "6"}]
    assert lake.read('"orders/2024/*.csv"') == [{"id": "2"}]


def test_no_matching_file_is_an_error(lake: Lake) -> None:
    lake.put("orders/readme.md", "no data")
    for table in ("missing", '"*.parquet"', "orders"):
        with pytest.raises(SourceError, match="there is no"):
            lake.source(table)


def test_a_name_never_leaves_the_connections_path(lake: Lake) -> None:
    lake.put("../secret.csv", "id\n1\n")
    for table in ('"../secret.csv"', '".."."secret.csv"', '"/etc/passwd"', '"a/../../secret.csv"', '"_penstock"'):
        with pytest.raises(PlanRefused, match="is no name of a table"):
            lake.source(table, format="csv")


def test_files_of_several_formats_need_a_word(lake: Lake) -> None:
    lake.put("orders/a.csv", "id\n1\n")
    lake.put("orders/b.jsonl", '{"id": 2}\n')
    with pytest.raises(SourceError, match="files of several formats"):
        lake.source("orders")
    assert lake.read("orders", format="csv") == [{"id": "1"}]
    assert any("1 files are not csv" in note for note in lake.source("orders", format="csv").notes())


def test_a_declared_type_that_is_none_is_told_when_the_project_is_loaded(lake: Lake) -> None:
    lake.put("t.csv", "id\n1\n")
    with pytest.raises((ConfigError, ValueError), match="is not a type"):
        lake.source("t", columns={"id": "integerr"})


# ---------------------------------------------------------------- CSV


def test_csv_values_are_text_unless_declared(lake: Lake) -> None:
    lake.put("t.csv", "zip,n,big\n007,NA,12345678901234567890123\n,,\n")
    assert lake.read("t") == [
        {"zip": "007", "n": "NA", "big": "12345678901234567890123"},
        {"zip": None, "n": None, "big": None},
    ]
    declared = lake.read("t", columns={"zip": "int", "big": "decimal(38,0)"})
    assert declared[0] == {"zip": 7, "n": "NA", "big": Decimal("12345678901234567890123")}


def test_csv_empty_text_and_null_stay_apart(lake: Lake) -> None:
    lake.put("t.csv", 'a,b\n"",\n,""\n')
    assert lake.read("t") == [{"a": "", "b": None}, {"a": None, "b": ""}]
    lake.put("one.csv", 'a\n\n""\nx\n')
    assert lake.read("one") == [{"a": None}, {"a": ""}, {"a": "x"}]
    lake.put("na.csv", 'a\nNA\n"NA"\n""\n')
    assert lake.read("na", null="NA") == [{"a": None}, {"a": "NA"}, {"a": ""}]


def test_infer_takes_a_type_only_if_every_value_is_spelled_so(lake: Lake) -> None:
    columns = {
        "n": ("1", "-20", "bigint"),
        "zip": ("007", "8", "text"),
        "na": ("1", "NA", "text"),
        "big": ("12345678901234567890123", "1", "text"),
        "x": ("1.5", "-0.25", "double"),
        "price": ("1.10", "2.25", "text"),
        "day": ("2024-01-31", "1999-12-01", "date"),
        "no_day": ("2024-01-31", "2024-1-1", "text"),
        "at": ("2024-01-31 12:00:00", "2024-01-31 12:00:00.5", "timestamp"),
        "zoned": ("2024-01-31 12:00:00+00", "2024-01-31 12:00:00.5+00", "timestamptz"),
        "other_zone": ("2024-01-31 12:00:00+02", "2024-01-31 12:00:00+00", "text"),
        "yes": ("true", "false", "bool"),
        "short": ("t", "f", "text"),
        "id": ("ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "uuid"),
        "upper": ("FFFFFFFF-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "text"),
        "hex": ("0x10", "1", "text"),
        "empty": ("", "", "text"),
    }
    for place, name in enumerate(("a", "b")):
        # Typed once, over all files: the second one decides as much as the first.
        lake.put(f"t/{name}.csv", ",".join(columns) + "\n" + ",".join(c[place] for c in columns.values()) + "\n")
    found = lake.source("t", infer=True).schema()
    from penstock.schema.words import spell

    assert {column.name: spell(column) for column in found} == {name: c[2] for name, c in columns.items()}
    declared = lake.source("t", infer=True, columns={"n": "text"}).schema()
    assert spell(declared["n"]) == "text"
    rows = lake.read("t", infer=True)
    assert (rows[0]["n"], rows[1]["n"], rows[0]["zip"]) == (1, -20, "007")
    # Declared, a value may be spelled in another way: these are how Postgres' COPY has them.
    assert [row["short"] for row in lake.read("t", columns={"short": "bool"})] == [True, False]


@pytest.mark.parametrize("leads_to", ["elsewhere", "no_such_folder", "."])
def test_files_behind_a_linked_folder_are_nobodys_to_read_or_remove(lake: Lake, leads_to: str) -> None:
    lake.put("elsewhere/theirs.csv", "a\n1\n")
    lake.put("t/ours.csv", "a\n1\n")
    theirs = lake.root / "elsewhere" / "theirs.csv"
    (lake.root / "t" / "link").symlink_to("." if leads_to == "." else lake.root / leads_to)
    with pytest.raises(PlanRefused, match="is a link to"):
        lake.read("t")
    assert theirs.exists()


def test_hive_folders_are_text_columns_unless_declared(lake: Lake) -> None:
    for region, month in (("eu", "01"), ("us", "02"), ("__HIVE_DEFAULT_PARTITION__", "03"), ("a%2Fb", "04")):
        lake.parquet(f"t/region={region}/month={month}/x.parquet", pa.table({"id": [1]}))
    rows = lake.read("t")
    assert sorted((row["region"] or "", row["month"]) for row in rows) == [
        ("", "03"),
        ("a/b", "04"),
        ("eu", "01"),
        ("us", "02"),
    ]
    assert {row["month"] for row in lake.read("t", columns={"month": "int"})} == {1, 2, 3, 4}
    assert types(lake.source("t", infer=True))["month"] == "string"  # 01 is not how 1 is spelled
    with pytest.raises(DataError, match=r"the folder of .* holds a value of region that is no int32"):
        lake.read("t", columns={"region": "int"})


@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        ("\ufeffa,b\n1,2\n", {}, [{"a": "1", "b": "2"}]),
        ("a,b\r\n1,2\r\n", {}, [{"a": "1", "b": "2"}]),
        ("a;b\n1;'x;y'\n", {"delimiter": ";", "quote": "'"}, [{"a": "1", "b": "x;y"}]),
        ('a,b\n1,"x\\"y"\n', {"escape": "\\"}, [{"a": "1", "b": 'x"y'}]),
        ('a,b\n1,"x\ny"\n', {}, [{"a": "1", "b": "x\ny"}]),
        ('a,b\n1,5" pipe\n2,6" pipe\n', {"quote": ""}, [{"a": "1", "b": '5" pipe'}, {"a": "2", "b": '6" pipe'}]),
        ("ž,b\n1,é\n".encode("latin2"), {"encoding": "latin2"}, [{"ž": "1", "b": "é"}]),
        ("a,b\n", {}, []),
        ("a,b\n1,2", {}, [{"a": "1", "b": "2"}]),
    ],
    ids=["bom", "crlf", "options", "escape", "quoted line", "no quotes", "latin", "header only", "no last end"],
)
def test_csv_dialects(lake: Lake, content: str | bytes, options: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    lake.put("t.csv", content)
    assert lake.read("t", **options) == rows


def test_csv_without_a_header_needs_declared_columns(lake: Lake) -> None:
    lake.put("t.csv", "1,x\n2,y\n")
    with pytest.raises(PlanRefused, match="have no names"):
        lake.source("t", header=False)
    rows = lake.read("t", header=False, columns={"id": "int", "name": "text"})
    assert rows == [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]


def test_packed_files_are_unpacked_by_their_name(lake: Lake) -> None:
    lake.put("t/a.csv.gz", gzip.compress(b"id\n1\n"))
    lake.put("t/b.csv", "id\n2\n")
    (lake.root / "t" / "c.csv.zst").write_bytes(pa.compress(b"id\n3\n", "zstd", asbytes=True))
    assert lake.read("t") == [{"id": "1"}, {"id": "2"}, {"id": "3"}]


# ---------------------------------------------------------------- JSON Lines


def test_jsonl_keeps_every_token_as_it_is_written(lake: Lake) -> None:
    lake.put(
        "t.jsonl",
        '{"a": 1.10, "b": 12345678901234567890123, "c": "x\\n\\u017e\\"", "d": {"k": [1, 2.50]}, "e": null}\n'
        '\n{"a":"1.10","c":"","f":true}\r\n  {"b": -1e5 }  \n',
    )
    assert lake.read("t") == [
        {"a": "1.10", "b": "12345678901234567890123", "c": 'x\nž"', "d": '{"k": [1, 2.50]}', "e": None, "f": None},
        {"a": "1.10", "b": None, "c": "", "d": None, "e": None, "f": "true"},
        {"a": None, "b": "-1e5", "c": None, "d": None, "e": None, "f": None},
    ]
    declared = {"a": "decimal(38,2)", "b": "double", "c": "text", "d": "struct(k double[])", "e": "int", "f": "bool"}
    assert lake.read("t", columns=declared)[0]["d"] == {"k": [1.0, 2.5]}
    with pytest.raises(SourceError, match="members that no column is declared for"):
        lake.read("t", columns={"a": "text"})


def test_jsonl_lines_longer_than_a_block_are_read_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.files.jsontext.BLOCK", 64)
    long = "é" * 1000
    lake.put("t.jsonl", "".join(f'{{"id": {n}, "v": "{long[: n % 300]}\\\\"}}\n' for n in range(500)))
    rows = lake.read("t", columns={"id": "int", "v": "text"})
    assert [row["id"] for row in rows] == list(range(500))
    assert rows[299]["v"] == long[:299] + "\\"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"a": 1}\n{"a": 2\n', "line 2 of .* is not a JSON object"),
        ('{"a": 1}\n[1]\n', "line 2 of .* is not a JSON object"),
        ('{"a": 1}\n{"a": [1}\n', "line 2 of .* is not a JSON object"),
        ('{"a": 01}\n', "line 1 of .* is not a JSON object"),
        ('{"a": 1, "a": 2}\n', "line 1 of .* has a member twice"),
        (b'{"a": "\xff"}\n', "is not utf-8"),
        ("", "there is no data|has no|empty"),
    ],
)
def test_hostile_jsonl(lake: Lake, content: str | bytes, match: str) -> None:
    lake.put("t.jsonl", content)
    if not content:
        assert lake.read("t", columns={"a": "int"}) == []
        return
    with pytest.raises(SourceError, match=match):
        lake.read("t")


# ---------------------------------------------------------------- hostile CSV and Parquet


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("a,b\n1,2\n3\n", "line 3 of .*t.csv has 1 values instead of 2"),
        ("a,b\n1,2\n3,4,5\n", "line 3 of .*t.csv has 3 values instead of 2"),
        (b"a,b\n1,\xff\xfe\n", "t.csv is not utf-8"),
        ('a,b\n1,"2\n3,4\n', "ends inside quotes"),
        ("a,a\n1,2\n", "more than once: a"),
        ("a,\n1,2\n", "column 2"),
        ("", "t.csv has no header"),
    ],
)
def test_hostile_csv(lake: Lake, content: str | bytes, match: str) -> None:
    lake.put("t.csv", content)
    with pytest.raises(PenstockError, match=match) as caught:
        lake.read("t")
    assert "3,4,5" not in str(caught.value.to_record())


def test_hostile_parquet_cut_off_damaged_or_empty(lake: Lake) -> None:
    path = lake.parquet("t/a.parquet", pa.table({"id": list(range(1000)), "v": ["x" * 20] * 1000}))
    whole = path.read_bytes()
    for content in (whole[:-10], whole[: len(whole) // 2], b"", b"PAR1", b"id,v\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(SourceError, match="is not a whole Parquet file"):
            lake.read("t")
    path.write_bytes(whole[:4] + b"\0" * 200 + whole[204:])  # the footer is whole, the pages are not
    with pytest.raises(SourceError, match="is not a whole Parquet file"):
        lake.read("t")


def test_hostile_a_packed_file_that_is_cut_off(lake: Lake) -> None:
    packed = gzip.compress(b"id,v\n" + b"".join(b"%d,%d\n" % (n, n * 7919) for n in range(50_000)))
    lake.put("t.csv.gz", packed[:-2000])
    lake.put("u.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 50_000)[:-20])
    for table, columns in (("t", {"id": "text", "v": "text"}), ("u", {"a": "int"})):
        with pytest.raises(SourceError, match=r"cannot be (read|unpacked)"):
            lake.read(table, columns=columns)


def test_mixed_schemas_across_files_name_both(lake: Lake) -> None:
    lake.parquet("t/a.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    lake.parquet("t/b.parquet", pa.table({"id": pa.array([2**40], pa.int64())}))
    assert lake.read("t") == [{"id": 1}, {"id": 2**40}]  # widened without loss
    lake.parquet("t/c.parquet", pa.table({"id": ["x"]}))
    with pytest.raises(SourceError, match=r"a\.parquet and .*c\.parquet have different types of column id"):
        lake.source("t")
    assert lake.read("t", columns={"id": "text"})[2] == {"id": "x"}
    lake.parquet("u/a.parquet", pa.table({"id": [1], "extra": [1]}))
    lake.parquet("u/b.parquet", pa.table({"id": [1]}))
    with pytest.raises(SourceError, match="have different columns: extra is missing"):
        lake.source("u")
    lake.put("v/a.csv", "id,name\n1,a\n")
    lake.put("v/b.csv", "name,id\nb,2\n")
    assert lake.read("v") == [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]  # by name, not by place
    lake.put("v/c.csv", "id,title\n1,a\n")
    with pytest.raises(SourceError, match="have different columns"):
        lake.source("v")


def test_a_declared_column_that_is_missing_is_told(lake: Lake) -> None:
    lake.put("t.csv", "id\n1\n")
    with pytest.raises(SourceError, match="price is missing in the file"):
        lake.source("t", columns={"id": "int", "price": "text"})


@pytest.mark.parametrize(
    ("name", "content"), [("t.csv", "id,n\n1,5\n2,x\n"), ("t.jsonl", '{"id":1,"n":5}\n{"id":2,"n":"x"}\n')]
)
def test_a_value_that_is_not_of_its_declared_type_is_told_with_its_key(lake: Lake, name: str, content: str) -> None:
    lake.put(name, content)
    with pytest.raises(DataError, match=r"column n of .*row 2 holds a value that is no int32") as caught:
        lake.read("t", columns={"id": "int", "n": "int"}, keys=("id",))
    assert caught.value.keys == ("id=2",)
    assert "'x'" not in str(caught.value.to_record())


# ---------------------------------------------------------------- one moment


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
@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_file_that_changes_while_it_is_read_stops_the_run(lake: Lake, how: str, when: str, file_format: str) -> None:
    if file_format == "csv":
        path = lake.put("t.csv", "a,b\n" + "1,2\n" * 10_000)
    else:
        path = lake.parquet("t.parquet", pa.table({"a": list(range(10_000)), "b": list(range(10_000))}))
    source = lake.source("t")
    [part] = source.partitions(list(source.schema()), 1).partitions
    batches = part.read()
    if when == "while":
        next(batches)
    changed(path, how)
    with pytest.raises(SourceMoved, match="was replaced, written to or removed"):
        list(batches)


def test_nothing_is_loaded_of_a_file_that_changes(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    path = lake.put("main/items.csv", "a,b\n" + "1,2\n" * 10_000)
    flow = Flow(FilesHarness(lake.root, "csv"), DuckDBHarness(tmp_path / "t.duckdb"), tmp_path)
    whole = FilesPartition.read

    def grows(self: FilesPartition) -> Any:
        changed(path, "grown")
        yield from whole(self)

    monkeypatch.setattr(FilesPartition, "read", grows)
    with pytest.raises(SourceMoved):
        flow.run(table='main."items.csv"')
    assert not flow.target.has_table("items")


# ---------------------------------------------------------------- parts


def test_parts_parquet_is_split_by_row_groups(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MIN_PART_BYTES", 1000)
    for name, rows in (("a", 10_000), ("b", 100), ("c", 5_000)):
        lake.parquet(f"t/{name}.parquet", pa.table({"id": range(rows), "f": [name] * rows}), row_group_size=1000)
    source = lake.source("t")
    split = source.partitions(list(source.schema()), 4)
    assert len(split.partitions) == 4
    found = [[row for batch in part.read() for row in batch.to_pylist()] for part in split.partitions]
    assert sorted((r["f"], r["id"]) for rows in found for r in rows) == sorted(
        (name, n) for name, rows in (("a", 10_000), ("b", 100), ("c", 5_000)) for n in range(rows)
    )
    assert max(len(rows) for rows in found) < 7_000
    assert source.rows() == 15_100


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_parts_csv_without_quoted_lines_is_split_by_bytes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(read, "MIN_PART_BYTES", 1000)
    lake.put("t.csv", f"id,v{end}" + "".join(f'{n},"v {n}, x"{end}' for n in range(5000)))
    source = lake.source("t")
    split = source.partitions(list(source.schema()), 5)
    assert len(split.partitions) == 5
    assert [row["id"] for row in lake.read("t", 5)] == [str(n) for n in range(5000)]


def test_parts_csv_with_quoted_lines_is_not_split_by_bytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MIN_PART_BYTES", 1000)
    lake.put("t.csv", "id,v\n" + "".join(f'{n},"v\n{n},""x"""\n' for n in range(5000)))
    source = lake.source("t")
    split = source.partitions(list(source.schema()), 5)
    assert len(split.partitions) == 1
    rows = lake.read("t", 5)
    assert len(rows) == 5000
    assert rows[7] == {"id": "7", "v": 'v\n7,"x"'}


def test_parts_jsonl_is_split_by_lines(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MIN_PART_BYTES", 1000)
    lake.put("t.jsonl", "".join(f'{{"id": {n}, "v": "a\\nb"}}\n' for n in range(5000)))
    assert [row["id"] for row in lake.read("t", 5, columns={"id": "int", "v": "text"})] == list(range(5000))
    lake.put("t.jsonl", "".join(f'{{"id": {n}}}\n' for n in range(4999)) + "oops\n")
    with pytest.raises(SourceError, match="line 5000 of"):
        lake.read("t", 5, columns={"id": "int"})


def test_only_asked_columns_are_read_in_bounded_batches(lake: Lake) -> None:
    lake.parquet("t.parquet", pa.table({"id": range(10_000), "wide": ["x" * 1000] * 10_000}), row_group_size=10_000)
    source = lake.source("t")
    [part] = source.partitions([source.schema()["wide"]], 1).partitions
    batches = list(part.read())
    assert {tuple(batch.schema.names) for batch in batches} == {("wide",)}
    assert max(batch.nbytes for batch in batches) <= RUN.batch_bytes * 1.1
    assert max(batch.num_rows for batch in batches) <= RUN.batch_rows


def test_limit_reads_no_more(lake: Lake) -> None:
    lake.put("t.csv", "id\n" + "".join(f"{n}\n" for n in range(5000)))
    assert len(lake.read("t", limit=7)) == 7


# ---------------------------------------------------------------- types of Parquet from elsewhere

STAMP = 1_700_000_000_123_456


@pytest.mark.parametrize(
    ("array", "type_", "texts"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (pa.array([b"ab"], pa.binary(2)), "binary", ["YWI="]),
        (pa.array([1000], pa.time32("ms")), "time64[us]", ["00:00:01"]),
        (pa.array([0], pa.date64()), "date32[day]", ["1970-01-01"]),
        (pa.array([1.5], pa.float16()), "float", ["1.5"]),
        (pa.array([None, None]), "string", [None, None]),
        (
            pa.array([STAMP], pa.timestamp("us", "Europe/Prague")),
            "timestamp[us, tz=UTC]",
            ["2023-11-14 22:13:20.123456+00"],
        ),
        (pa.array([STAMP], pa.timestamp("us")), "timestamp[us]", ["2023-11-14 22:13:20.123456"]),
        (pa.array([Decimal("1.50")], pa.decimal256(40, 2)), "string", ["1.50"]),
        (pa.array([Decimal("1.50")], pa.decimal256(20, 2)), "decimal128(20, 2)", ["1.50"]),
        (pa.array([2**64 - 1], pa.uint64()), "uint64", ["18446744073709551615"]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "list<item: int32>", ["[1,2]"]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), "map<string, int32>", ['[{"key":"k","value":1}]']),
        (pa.array([{"a": 1, "b": ["x"]}]), "struct<a: int64, b: list<item: string>>", ['{"a":1,"b":["x"]}']),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_parquet_types_from_elsewhere(lake: Lake, array: pa.Array, type_: str, texts: list[str | None]) -> None:
    lake.parquet("t.parquet", pa.table({"v": array}))
    source = lake.source("t")
    column = source.schema()["v"]
    assert str(column.type).replace("element", "item") == type_
    for asked in (column, column.as_text(), Column("v", pa.string())):
        [part] = source.partitions([asked], 1).partitions
        [batch] = part.read()
        assert batch.schema.field("v").type == asked.type
        assert text_of(batch.column(0)).to_pylist() == texts


def test_parquet_int96_reaches_as_far_as_it_was_written(lake: Lake) -> None:
    far = pa.array([253_402_300_799_000_000], pa.timestamp("us"))  # 9999-12-31, beyond nanoseconds
    lake.parquet("t.parquet", pa.table({"at": far}), use_deprecated_int96_timestamps=True)
    [row] = lake.read("t")
    assert str(row["at"]) == "9999-12-31 23:59:59"


def test_parquet_durations_are_refused_with_a_type_that_does(lake: Lake) -> None:
    lake.parquet("t.parquet", pa.table({"d": pa.array([5], pa.duration("us"))}))
    with pytest.raises(PlanRefused, match=r"column d of .* has a type that no target takes") as caught:
        lake.source("t")
    assert "bigint" in caught.value.remedy
    assert lake.read("t", columns={"d": "bigint"}) == [{"d": 5}]


def test_parquet_a_column_twice_is_refused(lake: Lake) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    lake.parquet("t.parquet", table)
    with pytest.raises(PlanRefused, match="has a column more than once: a"):
        lake.source("t")


# ---------------------------------------------------------------- incremental


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
