"""Parquet of others: its types, and what is wrong with it."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.backends.files import shares
from penstock.backends.files.texts import text_of
from penstock.errors import PlanRefused, SourceError
from penstock.schema import Column
from tests.conformance.files_lake import RUN, Lake

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


def test_parts_parquet_is_split_by_row_groups(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 1000)
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


def test_only_asked_columns_are_read_in_bounded_batches(lake: Lake) -> None:
    lake.parquet("t.parquet", pa.table({"id": range(10_000), "wide": ["x" * 1000] * 10_000}), row_group_size=10_000)
    source = lake.source("t")
    [part] = source.partitions([source.schema()["wide"]], 1).partitions
    batches = list(part.read())
    assert {tuple(batch.schema.names) for batch in batches} == {("wide",)}
    assert max(batch.nbytes for batch in batches) <= RUN.batch_bytes * 1.1
    assert max(batch.num_rows for batch in batches) <= RUN.batch_rows
