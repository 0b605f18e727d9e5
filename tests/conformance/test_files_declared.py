"""Declared types over texts of others: a value is what its text says, or the run stops."""

from __future__ import annotations

import pytest

from penstock.errors import DataError
from tests.conformance.files_lake import Lake


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("double", "1e400"),
        ("double", "-1e400"),
        ("double", "1e-400"),
        ("double", "9007199254740993"),
        ("real", "1e39"),
        ("real", "0.1e-50"),
        ("real", "-16777217"),
        ("json", "{bad"),
        ("json", ""),
        ("json", '1}{"v":2'),
        ("json", '1,"w":2'),
        ("json", "1,2"),
        ("json", "NaN"),
        ("json", '{"a": [1, -Infinity]}'),
        ("binary", "QR=="),
        ("struct(a int)", '{"a":1,"zz":2}'),
        ("struct(a int)[]", '[{"a":1},{"A":2}]'),
        ("struct(a int)", '{"a":1}{"a":2}'),
    ],
)
def test_a_text_that_its_declared_type_would_change_is_told(lake: Lake, type_: str, text: str) -> None:
    quoted = text.replace('"', '""')
    lake.put("t.csv", f'id,v\n1,\n7,"{quoted}"\n')
    with pytest.raises(DataError, match=r"column v of .* holds a value that is no"):
        lake.read("t", columns={"id": "int", "v": type_})


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("double", "1e308", 1e308),
        ("double", "-inf", float("-inf")),
        ("double", "Infinity", float("inf")),
        ("double", "0e5", 0.0),
        ("double", "0.000", 0.0),
        ("double", "123456789012345680000", 123456789012345680000.0),  # as JavaScript spells it
        ("double", "9007199254740992", 9007199254740992.0),
        ("double", "1234567890123456.7", 1234567890123456.7),
        ("real", "0.5", 0.5),
        ("real", "+16777216", 16777216.0),
        ("json", ' {"a": [1, "}{"]} ', ' {"a": [1, "}{"]} '),
        ("json", '{"NaN": "a \\\\\\" Infinity"}', '{"NaN": "a \\\\\\" Infinity"}'),
        ("binary", "QQ==", b"A"),
        ("struct(a int)", ' {"a": 1} ', {"a": 1}),
    ],
)
def test_a_text_in_any_spelling_of_its_declared_type_is_read(lake: Lake, type_: str, text: str, value: object) -> None:
    quoted = text.replace('"', '""')
    lake.put("t.csv", f'id,v\n1,\n7,"{quoted}"\n')
    assert lake.read("t", columns={"id": "int", "v": type_}) == [{"id": 1, "v": None}, {"id": 7, "v": value}]


def test_json_of_others_is_what_stands_in_the_file(lake: Lake) -> None:
    lake.put("t.jsonl", '{"v": "1"}\n{"v": 1}\n{"v": "abc"}\n{"v": {"a": "\\u0041"}}\n{"v": null}\n')
    found = [row["v"] for row in lake.read("t", columns={"v": "json"})]
    assert found == ['"1"', "1", '"abc"', '{"a": "\\u0041"}', None]
    lake.put("u.jsonl", '{"v": {"doc": "1", "all": ["x", 2]}}\n')
    assert lake.read("u", columns={"v": "struct(doc json, all json[])"}) == [{"v": {"doc": '"1"', "all": ['"x"', "2"]}}]
