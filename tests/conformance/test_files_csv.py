"""CSV of others: its dialects, what is wrong with it, and how it is split."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from penstock.backends.files import shares
from penstock.errors import PenstockError, PlanRefused
from tests.conformance.files_lake import Lake


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
