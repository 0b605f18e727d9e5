"""Parquet of others: its types, and what is wrong with it."""

from __future__ import annotations

import os
import random
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.files import parquet, shares
from penstock.backends.files.config import Dialect
from penstock.backends.files.texts import text_of
from penstock.errors import DataError, PenstockError, PlanRefused, SourceError
from penstock.schema import Column
from tests.conformance.files_harness import FilesHarness
from tests.conformance.files_lake import RUN, Lake
from tests.conformance.harness import DuckDBHarness, Flow

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
    assert caught.value.remedy == 'declare another: [connections.lake.tables.t] columns = { "d" = "bigint" }'
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


def test_hostile_parquet_with_a_damaged_page_is_not_read_as_other_values(lake: Lake) -> None:
    """Plain values are read whatever they are: only the page's checksum tells."""
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = lake.parquet("t/a.parquet", pa.table({"id": list(range(1000))}), **options)
    whole = path.read_bytes()
    there, other = (b"".join(value.to_bytes(8, "little") for value in values) for values in ((500, 501), (500, 502)))
    assert whole.count(there) == 1
    path.write_bytes(whole.replace(there, other))
    with pytest.raises(SourceError, match="is not a whole Parquet file"):
        lake.read("t")


def test_no_bit_that_turns_over_in_a_file_of_ours_is_read_as_another_value(lake: Lake) -> None:
    rows = 2000
    made = pa.record_batch(
        {"id": pa.array(range(rows), pa.int64()), "hash": [sha256(str(n).encode()).hexdigest() for n in range(rows)]}
    )
    path = lake.root / "t.parquet"
    writer = parquet.Writer(path, [Column(field.name, field.type) for field in made.schema], Dialect("parquet"))
    writer.write(made)
    writer.close()
    whole, expected = path.read_bytes(), lake.read("t")
    assert len(expected) == rows
    dice = random.Random(0)  # noqa: S311  no secret
    for place in (dice.randrange(len(whole)) for _ in range(100)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :])
        try:
            assert lake.read("t") == expected, place  # a bit that no value hangs on
        except PenstockError:
            continue


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


NOON = datetime(2024, 1, 1, 12, 34)


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([NOON]), "date"),
        (pa.array([1.239]), "decimal(10,2)"),
        (pa.array([0.1]), "real"),
        (pa.array([5.5]), "bigint"),
        (pa.array([2**53 + 1]), "double"),
        (pa.array([Decimal("12345678901234567890.12")]), "double"),
        (pa.array(["1e400"]), "double"),
        (pa.array(["{bad"]), "json"),
        (pa.array(["x"]), "uuid"),
        (pa.array([[0.1]]), "real[]"),
        (pa.array([{"a": 2**40}]), "struct(a int)"),
        (pa.array([[("k", 2**40)]], pa.map_(pa.string(), pa.int64())), "map(text, int)"),
    ],
    ids=str,
)
def test_parquet_a_value_that_its_declared_type_would_change_is_told(lake: Lake, array: pa.Array, type_: str) -> None:
    lake.parquet("t.parquet", pa.table({"v": array}))
    with pytest.raises(DataError, match=r"column v of .* holds a value that is no"):
        lake.read("t", columns={"v": type_})


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([NOON]), "timestamptz"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), "timestamp"),
        (pa.array([1]), "timestamp"),
        (pa.array([5.5]), "bool"),
        (pa.array([b"x"]), "bigint"),
        (pa.array([{"a": 1, "b": 2}]), "struct(a bigint)"),
        (pa.array([{"a": 1}]), "struct(a bigint, b bigint)"),
        (pa.array([[1]]), "bigint"),
        (pa.array([[NOON]]), "timestamptz[]"),
    ],
    ids=str,
)
def test_parquet_a_declared_type_that_has_no_one_meaning_is_refused(lake: Lake, array: pa.Array, type_: str) -> None:
    lake.parquet("t.parquet", pa.table({"v": array}))
    with pytest.raises(PlanRefused, match=r"column v of .* is not read as .*, which is declared"):
        lake.source("t", columns={"v": type_})


@pytest.mark.parametrize(
    ("array", "type_", "value"),
    [
        (pa.array([datetime(2024, 1, 1)]), "date", date(2024, 1, 1)),
        (pa.array([1.25]), "decimal(10,2)", Decimal("1.25")),
        (pa.array([0.5]), "real", 0.5),
        (pa.array([7.0]), "bigint", 7),
        (pa.array(["7"]), "bigint", 7),
        (pa.array([b"0123456789abcdef"], pa.binary(16)), "uuid", UUID(bytes=b"0123456789abcdef")),
        (pa.array([[1, None], None], pa.large_list(pa.int32())), "bigint[]", [1, None]),
        (pa.array([{"b": 1, "a": None}, None]), "struct(a text, b int)", {"a": None, "b": 1}),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), "map(text, bigint)", [("k", 1)]),
        (pa.array([float("nan")], pa.float16()), "text", "nan"),
    ],
    ids=str,
)
def test_parquet_a_value_that_its_declared_type_holds_is_read(
    lake: Lake, array: pa.Array, type_: str, value: object
) -> None:
    lake.parquet("t.parquet", pa.table({"v": array}))
    rows = lake.read("t", columns={"v": type_})
    assert [row["v"] for row in rows] == [value, None][: len(array)]


@pytest.mark.parametrize(
    ("sql", "array"),
    [
        ("timestamptz '2024-01-01 12:00:00+00'", pa.array([NOON])),
        ("date '2024-01-01'", pa.array([NOON])),
        ("0.5::real", pa.array([0.1])),
        ("1::int", pa.array([2**40])),
    ],
    ids=["moment", "date", "real", "int"],
)
def test_parquet_of_others_beside_a_table_of_ours_has_its_types_or_is_told(
    tmp_path: Path, sql: str, array: pa.Array
) -> None:
    flow = Flow(DuckDBHarness(tmp_path / "source.duckdb"), FilesHarness(tmp_path / "lake"), tmp_path)
    flow.source.execute(f"create table items as select {sql} as v")
    flow.run()
    pq.write_table(pa.table({"v": array}), tmp_path / "lake" / "main" / "items" / "theirs.parquet")
    with pytest.raises(SourceError, match=r"theirs\.parquet and the table's manifest have different types of column v"):
        flow.target.query("select v from items")


def test_parts_become_one_file_a_row_group_at_a_time(tmp_path: Path) -> None:
    """Arrow fills a batch across row groups: of wide rows a whole part was in memory."""
    table = pa.table({"id": pa.array([1, 2], pa.int64())})
    with pq.ParquetWriter(tmp_path / "part", table.schema) as writer:
        for _ in range(3):
            writer.write_table(table)
    columns = [Column("id", pa.int64())]
    parquet.copy_parts([tmp_path / "part"] * 2, tmp_path / "whole", columns, Dialect(format="parquet"))
    assert [rows for rows, _ in parquet.row_groups(tmp_path / "whole")] == [2] * 6


def test_a_dictionary_is_kept_only_of_values_that_come_again(tmp_path: Path) -> None:
    columns = [Column(name, type_) for name, type_ in (("id", pa.int64()), ("kind", pa.string()), ("token", pa.uuid()))]
    rows = 1000
    tokens = pa.array([UUID(int=n) for n in range(rows)], pa.uuid())
    batch = pa.record_batch(
        [pa.array(range(rows)), pa.array(["a", "b"] * (rows // 2)), tokens], ["id", "kind", "token"]
    )
    writer = parquet.Writer(tmp_path / "some", columns, Dialect(format="parquet"))
    writer.write(batch)
    writer.close()
    group = pq.read_metadata(tmp_path / "some").row_group(0)
    assert [group.column(n).has_dictionary_page for n in range(3)] == [False, True, False]
    assert pq.read_table(tmp_path / "some")["kind"].to_pylist() == ["a", "b"] * (rows // 2)


@pytest.mark.parametrize(
    ("asked", "codecs"),
    [
        ("", ["SNAPPY", "UNCOMPRESSED", "SNAPPY", "UNCOMPRESSED"]),
        ("zstd", ["ZSTD"] * 4),
        ("none", ["UNCOMPRESSED"] * 4),
    ],
)
def test_a_column_is_packed_only_where_that_saves_something(tmp_path: Path, asked: str, codecs: list[str]) -> None:
    rows = 1000
    made = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "a.hash": [sha256(str(n).encode()).hexdigest() for n in range(rows)],
            "pairs": [{"same": "same", "hash": sha256(str(n).encode()).digest()} for n in range(rows)],
        }
    )
    columns = [Column(field.name, field.type) for field in made.schema]
    writer = parquet.Writer(tmp_path / "some", columns, Dialect(format="parquet", compression=asked))
    for batch in made.to_batches(max_chunksize=400):
        writer.write(batch)
    writer.close()
    metadata = pq.read_metadata(tmp_path / "some")
    assert [metadata.row_group(0).column(n).path_in_schema for n in (2, 3)] == ["pairs.same", "pairs.hash"]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        assert [group.column(n).compression for n in range(4)] == codecs
    assert pq.read_table(tmp_path / "some").equals(made)


def test_a_file_of_no_batch_is_a_whole_one(tmp_path: Path) -> None:
    parquet.Writer(tmp_path / "none", [Column("id", pa.int64())], Dialect(format="parquet")).close()
    assert pq.read_table(tmp_path / "none").schema.names == ["id"]


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """Arrow would hold all that it will read of a file, however large that is."""
    path = tmp_path / "large.parquet"
    rows = 200_000
    with pq.ParquetWriter(path, pa.schema([("n", pa.binary(64))]), compression="none") as writer:
        for _ in range(8):
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(64), rows, [None, pa.py_buffer(os.urandom(64 * rows))]
            )
            writer.write_table(pa.table({"n": values}))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in parquet.read(path, ["n"], None, RUN)]
    assert len(held) > 8
    assert max(held) < path.stat().st_size / 4
