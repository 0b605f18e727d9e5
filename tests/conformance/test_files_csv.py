"""CSV of others: its dialects, what is wrong with it, and how it is split."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.files import csv, shares
from penstock.backends.files.config import Dialect
from penstock.errors import PenstockError, PlanRefused, SourceError, Unsupported
from tests.conformance.files_harness import RUN, FilesHarness
from tests.conformance.files_lake import Lake
from tests.conformance.harness import DuckDBHarness, Flow
from tests.waiting import await_true


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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_parts_csv_without_quoted_lines_is_split_by_bytes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 1000)
    lake.put("t.csv", f"id,v{end}" + "".join(f'{n},"v {n}, x"{end}' for n in range(5000)))
    source = lake.source("t")
    split = source.partitions(list(source.schema()), 5)
    assert len(split.partitions) == 5
    assert [row["id"] for row in lake.read("t", 5)] == [str(n) for n in range(5000)]


def test_parts_csv_with_quoted_lines_is_not_split_by_bytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 1000)
    lake.put("t.csv", "id,v\n" + "".join(f'{n},"v\n{n},""x"""\n' for n in range(5000)))
    source = lake.source("t")
    split = source.partitions(list(source.schema()), 5)
    assert len(split.partitions) == 1
    rows = lake.read("t", 5)
    assert len(rows) == 5000
    assert rows[7] == {"id": "7", "v": 'v\n7,"x"'}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('5","x\n7,y" 6"\n', 1),
        ('a"b,"x\ny"\n', 1),
        ('"a" b","x\ny"\n', 1),
        ('"a""b","x\n""y"\n', 1),
        ('"",a"\n"x\ny",\n', 2),
    ],
    ids=["in the middle", "before quotes", "after quotes", "doubled", "at the end"],
)
def test_parts_csv_has_the_same_rows_however_many_parts_are_wanted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, text: str, rows: int
) -> None:
    """A quote inside of a value opens nothing, whatever counting them says."""
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    lake.put("t.csv", "a,b\n" + text * 40)
    whole = lake.read("t")
    assert len(whole) == rows * 40
    assert [lake.read("t", want) for want in (2, 3, 8)] == [whole] * 3


def test_parts_csv_quotes_are_looked_at_across_blocks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    lake.put("t.csv", "a,b\n" + '"x ""y""",z\n' * 40)
    for size in range(1, 20):
        monkeypatch.setattr(csv, "CHUNK", size)
        assert not csv.has_quoted_lines(lake.root / "t.csv", Dialect("csv"))
    lake.put("t.csv", "a,b\n" + '"x ""y""",z\n' * 40 + '"\n",z\n')
    for size in range(1, 20):
        monkeypatch.setattr(csv, "CHUNK", size)
        assert csv.has_quoted_lines(lake.root / "t.csv", Dialect("csv"))


@pytest.mark.parametrize("content", ['a,b\n1,5" pipe\n', 'a,b\n1,"5"" pipe"\n', 'a,b\n1,"5" pipe"\n2,3'])
def test_csv_a_quote_inside_of_a_value_is_a_character(lake: Lake, content: str) -> None:
    lake.put("t.csv", content)
    assert lake.read("t")[0]["b"].startswith("5")


@pytest.mark.parametrize("content", ['a,b\n1,"\n', 'a,b\n1,"x', "a,b\n1,'x\\'\n", "a,b\n1,'x\ny\\'"])
def test_csv_that_ends_inside_quotes_is_told(lake: Lake, content: str) -> None:
    options = {"quote": "'", "escape": "\\"} if "'" in content else {}
    lake.put("t.csv", content)
    with pytest.raises(SourceError, match="ends inside quotes"):
        lake.read("t", **options)


def test_csv_a_byte_order_mark_inside_of_a_file_is_a_character(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    lake.put("t.csv", "\ufeffa,b\n" + "\ufeffx,y\n" * 40)
    for want in (1, 8):
        assert lake.read("t", want) == [{"a": "\ufeffx", "b": "y"}] * 40


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32", "utf-8-sig", "iso2022_jp"])
def test_csv_is_read_in_any_encoding_and_never_cut_inside_of_a_character(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    text = "".join(f'{n},"{"ab" if encoding.startswith("iso") else "∀Ċ" + chr(0x0A0D)}"\n' for n in range(500))
    lake.put("t.csv", ("a,b\n" + text).encode(encoding))
    assert [row["a"] for row in lake.read("t", 4, encoding=encoding)] == [str(n) for n in range(500)]


def test_csv_a_header_longer_than_a_block_is_read(lake: Lake) -> None:
    lake.put("t.csv", "a,b\n" + "x" * (csv.CHUNK + 1) + ",y\n")
    assert lake.source("t").schema().names == ("a", "b")


@pytest.mark.parametrize(
    "options", [{"delimiter": "§"}, {"quote": "«"}, {"delimiter": "\n"}, {"encoding": "bogus"}, {"encoding": "hex"}]
)
def test_csv_options_that_nothing_can_be_read_with_are_told_when_they_are_set(
    lake: Lake, options: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"one ASCII character|no encoding"):
        lake.source("t", **options)


# ---------------------------------------------------------------- what we write


def written(tmp_path: Path, values: list[str], **options: Any) -> FilesHarness:
    lake = FilesHarness(tmp_path / "lake", "csv", **options)
    flow = Flow(DuckDBHarness(tmp_path / "source.duckdb"), lake, tmp_path)
    rows = ", ".join(f"({n}, '{value}')" for n, value in enumerate(values))
    flow.source.execute("create table items (n int, v varchar)", f"insert into items values {rows}")
    flow.run(query="select v from items order by n", table=None)
    return lake


@pytest.mark.parametrize("header", [True, False])
def test_csv_a_value_that_begins_with_a_byte_order_mark_keeps_it(tmp_path: Path, header: bool) -> None:
    values = ["\ufeffx", "\ufeff", "y\ufeff"]
    lake = written(tmp_path, values, header=header)
    assert [row for (row,) in lake.query("select v from items")] == values
    [path] = [path for path in (lake.root / "main" / "items").iterdir() if path.suffix == ".csv"]
    assert path.read_bytes().startswith(b"v\n" if header else b'"\xef\xbb\xbf')  # whoever else reads it keeps it too


def test_csv_in_another_encoding_is_read_back_and_never_cut_inside_of_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    values = ["∀Ċ", "\u0a0d"] * 50
    assert [row for (row,) in written(tmp_path, values, encoding="utf-16-le").query("select v from items")] == values


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_csv_in_an_encoding_that_begins_with_a_mark_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(Unsupported, match=f"not written in {encoding}"):
        written(tmp_path, ["x"], encoding=encoding)
    assert not (tmp_path / "lake" / "main").exists()


def test_csv_dates_are_quoted_where_the_delimiter_is_in_them(tmp_path: Path) -> None:
    lake = FilesHarness(tmp_path / "lake", "csv", delimiter="-")
    flow = Flow(DuckDBHarness(tmp_path / "source.duckdb"), lake, tmp_path)
    flow.source.execute("create table items as select -5 as n, date '2024-01-31' as day")
    flow.run()
    assert lake.texts("items") == [["-5", "2024-01-31"]]


def test_csv_rows_longer_than_a_block_come_once_and_in_order(tmp_path: Path) -> None:
    """A row across more than two blocks is found ahead of the batches that were given."""
    path = tmp_path / "long.csv"
    texts = ["x" * 900, "y" * (3 * csv.BLOCK), 'quoted ""\n' * 500, "z" * (2 * csv.BLOCK)]
    lines = [f'{number},"{texts[0] if number % 5000 else texts[number // 5000 % 4]}"\n' for number in range(12_000)]
    path.write_text("id,text\n" + "".join(lines))
    batches = list(csv.read(path, Dialect(format="csv"), ["id", "text"], ["id", "text"], None, RUN))
    table = pa.Table.from_batches(batches)
    assert table.column("id").to_pylist() == [str(number) for number in range(12_000)]
    assert {len(text) for text in table.column("text").to_pylist()} == {900, 3 * csv.BLOCK, 500 * len('quoted "\n')}


def test_csv_is_not_read_far_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow reads 32 blocks ahead: with blocks of a batch's size that would be half a gigabyte for each task."""
    path = tmp_path / "large.csv"
    path.write_text("id,text\n" + f"1,{'x' * 1000}\n" * (64 * csv.BLOCK // 1003))
    taken = 0

    class Counted(csv.Bytes):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal taken
            data = super().read(size)
            taken += len(data)
            return data

    monkeypatch.setattr(csv, "Bytes", Counted)
    batches = csv.read(path, Dialect(format="csv"), ["id", "text"], ["id", "text"], None, RUN)
    assert next(batches).num_rows
    await_true(lambda: taken >= 32 * csv.BLOCK)
    assert taken < 48 * csv.BLOCK
    batches.close()
