"""Every source with every target: a value of every canonical type goes from one to the other and is what it was.

A memory store is at both outer ends: it seeds the source, and takes home what the target holds. Every run
tries every pair; what some do not hold, a quick one tries with each source and each target.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.files.texts import text_of
from penstock.backends.memory.types import column_of, field_of
from penstock.errors import DataError
from penstock.schema.columns import ENUM, INTERVAL, NATIVE, NUMERIC, Column, Logical
from penstock.schema.words import spell
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness, MemoryHarness

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

FORMATS = ("parquet", "csv", "jsonl")
ENDS = ("postgres", "duckdb", "sqlite", *FORMATS, "memory", "duckdb:memory", "sqlite:memory")

TEXT = pa.string()
INFINITY, DATE_INFINITY = 2**63 - 1, 2**31 - 1
DATE_BC = -735_160  # 44-03-15 BC, as days
BC = DATE_BC * 86_400 * 10**6 + 1  # and a microsecond, as microseconds
# Each with its extremes; what no backend but one would take is in the tests of that one.
VALUES: list[tuple[pa.DataType, Logical | None, list[Any]]] = [
    (pa.bool_(), None, [True, False]),
    (pa.int8(), None, [-(2**7), 2**7 - 1]),
    (pa.int16(), None, [-(2**15), 2**15 - 1]),
    (pa.int32(), None, [-(2**31), 2**31 - 1]),
    (pa.int64(), None, [-(2**63), 2**63 - 1]),
    (pa.uint8(), None, [0, 2**8 - 1]),
    (pa.uint16(), None, [0, 2**16 - 1]),
    (pa.uint32(), None, [0, 2**32 - 1]),
    (pa.uint64(), None, [0, 2**64 - 1]),
    (pa.float32(), None, [3.4028234663852886e38, -1.5]),
    (pa.float64(), None, [0.30000000000000004, float("inf"), float("-inf"), 1e-12, 5e-324]),
    (pa.decimal128(38, 12), None, [Decimal("99999999999999999999999999.999999999999"), Decimal("-0.000000000001")]),
    (pa.decimal128(38, 0), None, [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    (pa.decimal128(38, 38), None, [Decimal("0." + "9" * 38), Decimal("1e-38")]),
    (pa.decimal128(5, 0), None, [Decimal(-99999)]),
    (TEXT, None, ["", "žluťoučký 🐎", "a\"b'c,d\\e", "NULL", "line\nend", " "]),
    (pa.binary(), None, [b"", b"\x00\xff"]),
    (pa.date32(), None, [date(1970, 1, 1), date(9999, 12, 31), DATE_INFINITY, DATE_BC]),
    (pa.time64("us"), None, [time(0, 0), time(23, 59, 59, 999_999)]),
    (pa.timestamp("us"), None, [datetime(2024, 2, 29, 12, 0, 0, 1), datetime(9999, 12, 31, 23, 59), INFINITY, BC]),
    (pa.timestamp("us", "UTC"), None, [datetime(2024, 3, 31, 1, 30), -INFINITY, BC]),
    (pa.uuid(), None, [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    (pa.json_(), None, ['{"a": 1.0}', "null", "[]"]),
    (pa.list_(pa.int32()), None, [[1, None, 3], []]),
    (pa.list_(TEXT), None, [["a,b", "", None, "NULL"], []]),
    (TEXT, Logical(NUMERIC), ["1" * 60 + "." + "7" * 40, "-0.5"]),
    (TEXT, Logical(INTERVAL), ["1 year 2 mons -3 days +04:05:06.789", "00:00:00"]),
    (TEXT, Logical(ENUM, ("sad", "it's")), ["sad", "it's"]),
    (TEXT, Logical(NATIVE), ["10.1.2.3/8", "::1/128"]),
]


def table() -> pa.Table:
    """Row n holds each type's n-th value, then NULL."""
    height = max(len(values) for _, _, values in VALUES) + 1
    fields, columns = [field_of(Column("id", pa.int64()))], [pa.array(range(height), pa.int64())]
    for number, (type_, logical, values) in enumerate(VALUES):
        native = "postgres:inet" if logical == Logical(NATIVE) else ""
        fields.append(field_of(Column(f"c{number}", type_, logical, native)))
        columns.append(pa.array([*values, *[None] * (height - len(values))], type_))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


# Types that Postgres lacks are others there, for good; every other backend remembers what it was given.
WIDER = {
    "tinyint": "smallint",
    "utinyint": "smallint",
    "usmallint": "int",
    "uint": "bigint",
    "ubigint": "decimal(20,0)",
}


def words(data: pa.Table) -> list[str]:
    return [spell(column_of(field)) for field in data.schema]


def texts(data: pa.Table) -> dict[str, list[str | None]]:
    data = data.sort_by("id").combine_chunks()
    return {name: text_of(data.column(name).combine_chunks()).to_pylist() for name in data.column_names}


@pytest.fixture
def end(harness: Callable[[str], Harness], tmp_path: Path) -> Callable[[str], Harness]:
    def make(kind: str) -> Harness:
        return FilesHarness(tmp_path / uuid.uuid4().hex, kind) if kind in FORMATS else harness(kind)

    return make


@pytest.mark.parametrize("ends", list(product(ENDS, ENDS)), ids=" to ".join)
def test_every_value_goes_from_every_source_into_every_target(
    end: Callable[[str], Harness], tmp_path: Path, ends: tuple[str, str]
) -> None:
    source, target = ends
    seed, first, second, home = end("memory"), end(source), end(target), end("memory")
    assert isinstance(seed, MemoryHarness)
    assert isinstance(home, MemoryHarness)
    seed.store["main.items"] = table()
    for one, other in ((seed, first), (first, second), (second, home)):
        Flow(one, other, tmp_path).run()
    found = home.store["main.items"]
    assert words(found) == [
        WIDER.get(word, word) if "postgres" in (source, target) else word for word in words(table())
    ]
    expected, loaded = texts(table()), texts(found)
    types = {f"c{number}": (str(type_), logical) for number, (type_, logical, _) in enumerate(VALUES)}
    assert {types[name]: loaded[name] for name in types if loaded[name] != expected[name]} == {
        types[name]: expected[name] for name in types if loaded[name] != expected[name]
    }


# ---------------------------------------------------------------- what one of them does not hold

SQLITE = ("sqlite", "sqlite:memory")  # NaN is NULL there, and zero has no sign


@pytest.mark.parametrize("value", ["nan", "-0.0"])
@pytest.mark.parametrize("target", ENDS)
@pytest.mark.parametrize("source", [end for end in ENDS if end not in SQLITE])
def test_nan_and_negative_zero_go_into_every_target_or_are_refused_by_their_key(
    end: Callable[[str], Harness], tmp_path: Path, source: str, target: str, value: str
) -> None:
    seed, first, second, home = end("memory"), end(source), end(target), end("memory")
    assert isinstance(seed, MemoryHarness)
    assert isinstance(home, MemoryHarness)
    floats = [1.0, float(value), None]
    columns = {"id": pa.array(range(3)), "f": pa.array(floats, pa.float32()), "d": pa.array(floats, pa.float64())}
    seed.store["main.items"] = pa.table(columns)
    Flow(seed, first, tmp_path).run()
    flow = Flow(first, second, tmp_path)
    if target in SQLITE:
        with pytest.raises(DataError, match=r"column [fd] ") as caught:
            flow.run(keys=["id"])
        assert caught.value.keys == ("id=1",)
        assert not second.has_table("items")
        assert second.leftovers() == []
        return
    flow.run()
    Flow(second, home, tmp_path).run()
    assert texts(home.store["main.items"]) == texts(seed.store["main.items"])
