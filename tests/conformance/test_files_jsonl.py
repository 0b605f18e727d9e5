"""JSON Lines of others: what a line is, and every token as it stands."""

from __future__ import annotations

import pytest

from penstock.backends.files import shares
from penstock.errors import SourceError
from tests.conformance.files_lake import Lake


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
    declared = {
        "a": "decimal(38,2)",
        "b": "decimal(38,0)",
        "c": "text",
        "d": "struct(k double[])",
        "e": "int",
        "f": "bool",
    }
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
        ('{"a": 1}\n{"a": 1}{"b": 2}\n', "line 2 of .* is not a JSON object"),
        ('{"a": 1}\n{"a": 1}\r{"b": 2}\n', "line 2 of .* is not a JSON object"),
        ('{"a": 1}{}\n', "line 1 of .* is not a JSON object"),
        ('{"a": 1}{"b": 2}\n{"c":\n{"d": 3}}\n', "line 1 of .* is not a JSON object"),
        ('{"a": 1},"x":{"b": 2}\n', "line 1 of .* is not a JSON object"),
        ('{"a": 1e400}\n', "line 1 of .* a number beyond a double"),
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


def test_parts_jsonl_is_split_by_lines(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 1000)
    lake.put("t.jsonl", "".join(f'{{"id": {n}, "v": "a\\nb"}}\n' for n in range(5000)))
    assert [row["id"] for row in lake.read("t", 5, columns={"id": "int", "v": "text"})] == list(range(5000))
    lake.put("t.jsonl", "".join(f'{{"id": {n}}}\n' for n in range(4999)) + "oops\n")
    with pytest.raises(SourceError, match="line 5000 of"):
        lake.read("t", 5, columns={"id": "int"})


def test_jsonl_a_byte_order_mark_inside_of_a_file_is_a_character(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.files.jsontext.BLOCK", 7)
    text = "\ufeff" * 20
    lake.put("t.jsonl", f'\ufeff{{"v": "{text}"}}\n{{"v": "{text}"}}\n')
    assert lake.read("t") == [{"v": text}] * 2


def test_jsonl_is_read_in_any_encoding(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.files.jsontext.BLOCK", 7)
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 16)
    for encoding in ("utf-16", "utf-16-le", "utf-8-sig", "latin-1"):
        text = "\u0a0dĊ" if encoding.startswith("utf") else "é"
        lake.put("t.jsonl", (f'{{"v": "{text}"}}\n' * 20).encode(encoding))
        assert lake.read("t", 4, encoding=encoding) == [{"v": text}] * 20
    with pytest.raises(SourceError, match=r"t\.jsonl is not ascii"):
        lake.read("t", encoding="ascii")
