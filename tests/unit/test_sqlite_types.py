"""SQLite's storage classes: every canonical value forth and back, and what somebody else has written is found."""

from __future__ import annotations

import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.base import TargetColumn, Verdict
from penstock.backends.sqlite.decode import Wrong, canonical
from penstock.backends.sqlite.encode import ARROW, Unfit, class_of, stored
from penstock.backends.sqlite.types import NUMERIC, affinity, by_content, native, remembered_column
from penstock.schema import Column, Logical

INFINITY, DATE_INFINITY = 2**63 - 1, 2**31 - 1
STRUCT = pa.struct([('a b"', pa.int64()), ("b", pa.decimal128(5, 2)), ("c", pa.list_(pa.uint64()))])


def moments(type_: pa.DataType, *numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.int32() if pa.types.is_date(type_) else pa.int64()).cast(type_)


def uuids() -> pa.Array:
    storage = pa.array([uuid.UUID(int=7).bytes, None, bytes(16), b"\xff" * 16], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def timestamps() -> list[pa.Array]:
    made = []
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        numbers = [INFINITY, -INFINITY, 0, 1, -1, 18_000 * per_second + per_second // 2, None]
        if unit == "ns":
            numbers += [INFINITY - 1, -INFINITY + 1]
        else:  # both sides of the years 1 and 9999, and where Postgres begins
            numbers += [n * per_second for n in (-62_135_596_800, 253_402_300_799, 253_402_300_800, -210_866_803_200)]
            numbers.append(-62_135_596_800 * per_second - 1)
        if unit == "us":
            numbers += [INFINITY - 1, -INFINITY + 1]
        made += [moments(pa.timestamp(unit, zone), *numbers) for zone in (None, "UTC")]
    return made


ARRAYS: list[pa.Array] = [
    pa.array([True, False, None]),
    *(pa.array([2 ** (bits - 1) - 1, -(2 ** (bits - 1)), None], f"int{bits}") for bits in (8, 16, 32, 64)),
    *(pa.array([2**bits - 1, 0, None], f"uint{bits}") for bits in (8, 16, 32, 64)),
    pa.array([0.1, None, float("inf"), -float("inf")], pa.float32()),
    pa.array([0.1, 5e-324, 1.7e308, None, float("-inf")]),
    pa.array([Decimal("0.000000000001"), Decimal("-1.1"), Decimal("9" * 26 + "." + "9" * 12), None, Decimal(0)]).cast(
        pa.decimal128(38, 12)
    ),
    pa.array([Decimal("-0.123"), None], pa.decimal128(3, 3)),
    pa.array([Decimal(-1), None], pa.decimal128(38, 0)),
    pa.array(["", "a\0b", None, "žluťoučký 🐎"]),
    pa.array([b"", b"\0\xff", None]),
    moments(
        pa.date32(), DATE_INFINITY, -DATE_INFINITY, 0, -719_162, -719_163, 2_932_896, 2_932_897, 2_145_042_541, None
    ),
    *timestamps(),
    moments(pa.time64("us"), 0, 1, 86_399_999_999, 86_400_000_000, None),
    moments(pa.time64("ns"), 1, 86_400_000_000_000, None),
    uuids(),
    pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1.0,  "a": 2}', None, "null"])),
    pa.array([[1, None], [], None], pa.list_(pa.int32())),
    pa.array([['a"b\\c\n\0\x1f\u2028🐎', None, ""], [], None, ["null"]]),
    pa.array([[-0.0, float("inf"), 0.1, None], []]),
    pa.array([[b"\0\xff", b"", None], None]),
    pa.array([[[True], None, []], None]),
    pa.array([{'a b"': 1, "b": Decimal("1.50"), "c": [2**64 - 1]}, None, {}], STRUCT),
    pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int32())),
    pa.array([[("k", [date(2024, 1, 1)])], None], pa.map_(pa.string(), pa.list_(pa.date32()))),
    pa.ListArray.from_arrays(pa.array([0, 2, 2, 4]), uuids()),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_every_value_comes_back(array: pa.Array) -> None:
    for piece in (array, array.slice(1), array.slice(0, 0), pa.concat_arrays([array, array]).slice(2)):
        kept = stored(piece)
        kept.validate(full=True)
        assert kept.type == ARROW[class_of(array.type)]
        back = canonical(kept, array.type)
        assert back.type == array.type
        assert back.equals(piece)


def test_times_are_texts_that_sort_and_that_sqlite_reads() -> None:
    numbers = [0, 1, 500_000, 999_999, 1_000_000, 60_000_000, 86_400_000_000, 1_700_000_000_123_456]
    for zone in (None, "UTC"):
        texts = stored(moments(pa.timestamp("us", zone), *numbers)).to_pylist()
        assert texts == sorted(texts)
    assert texts[:3] == [
        "1970-01-01 00:00:00+00:00",
        "1970-01-01 00:00:00.000001+00:00",
        "1970-01-01 00:00:00.5+00:00",
    ]


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.none(), max_size=20))
def test_every_microsecond_comes_back(numbers: list[int | None]) -> None:
    for zone in (None, "UTC"):
        array = moments(pa.timestamp("us", zone), *numbers)
        assert canonical(stored(array), array.type).equals(array)


@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1) | st.none(), max_size=20))
def test_every_day_comes_back(numbers: list[int | None]) -> None:
    array = moments(pa.date32(), *numbers)
    assert canonical(stored(array), array.type).equals(array)


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.none()) | st.none(), max_size=5))
def test_every_list_of_texts_comes_back(rows: list[list[str | None] | None]) -> None:
    array = pa.array(rows, pa.list_(pa.string()))
    assert canonical(stored(array), array.type).equals(array)


@pytest.mark.parametrize(("value", "why"), [(float("nan"), "no NaN"), (-0.0, "no negative zero")])
@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_what_sqlite_would_change_is_found_with_its_row(value: float, why: str, type_: pa.DataType) -> None:
    with pytest.raises(Unfit, match=why) as caught:
        stored(pa.array([1.0, None, value, 0.0], type_))
    assert caught.value.rows.tolist() == [2]


@pytest.mark.parametrize(
    ("type_", "cells", "wrong"),
    [
        (pa.bool_(), [0, 2, None], 2),
        (pa.bool_(), [1, None, -(2**63)], -(2**63)),
        (pa.int8(), [127, 128], 128),
        (pa.float32(), [0.5, 0.1], 0.1),
        (pa.date32(), ["2024-01-01", None, "2024-02-30"], "2024-02-30"),
        (pa.date32(), ["10000-02-30"], "10000-02-30"),
        (pa.timestamp("us", "UTC"), ["2024-01-01 00:00:00+00:00", "2024-01-01 00:00:00"], "2024-01-01 00:00:00"),
        (pa.timestamp("us"), ["2024-01-01 00:00:00+02:00"], "2024-01-01 00:00:00+02:00"),
        (pa.timestamp("ms"), ["2024-01-01 00:00:00.0001"], "2024-01-01 00:00:00.0001"),
        (pa.timestamp("us"), ["999999-01-01 00:00:00"], "999999-01-01 00:00:00"),
        (pa.time64("us"), ["12:00:00", "25:00:00"], "25:00:00"),
        (pa.uuid(), ["x"], "x"),
        (pa.decimal128(5, 2), ["1.50", "1.505"], "1.505"),
        (pa.uint64(), ["-1"], "-1"),
        (pa.list_(pa.int8()), ["[1]", "[300]"], "[300]"),
        (pa.list_(pa.int8()), ['1]},{"v":[2'], '1]},{"v":[2'),
        (pa.list_(pa.int8()), ['[1]}\n{"v":[2]'], '[1]}\n{"v":[2]'),
        (pa.list_(pa.string()), ["[1]"], "[1]"),
    ],
)
def test_a_cell_that_is_not_of_its_type_is_found(type_: pa.DataType, cells: list[Any], wrong: Any) -> None:
    with pytest.raises(Wrong) as caught:
        canonical(pa.array(cells), type_)
    assert caught.value.cell.as_py() == wrong


def test_a_time_that_sqlite_itself_has_written_is_read() -> None:
    texts = pa.array(["2024-01-01 00:00:00.120+00:00", "0044-03-15 12:00:00.50+00:00 BC"])
    made = canonical(texts, pa.timestamp("us", "UTC")).cast(pa.int64())
    assert made.to_pylist() == [1_704_067_200_120_000, -63_517_780_799_500_000]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", "INTEGER"),
        ("bigint", "INTEGER"),
        ("POINT", "INTEGER"),  # SQLite's rule, not ours: it holds "INT"
        ("VARCHAR(20)", "TEXT"),
        ("CLOB", "TEXT"),
        ("", "BLOB"),
        ("blob", "BLOB"),
        ("DOUBLE PRECISION", "REAL"),
        ("float", "REAL"),
        ("DECIMAL(10,2)", NUMERIC),
        ("DATETIME", NUMERIC),
        ("BOOLEAN", NUMERIC),
    ],
)
def test_affinities_are_sqlites_own(declared: str, expected: str) -> None:
    assert affinity(declared) == expected


@pytest.mark.parametrize(
    ("seen", "exact", "expected"),
    [
        ({"integer": 3}, True, ("INTEGER", False)),
        ({"real": 1, "integer": 2}, True, ("REAL", True)),
        ({"real": 1, "integer": 2}, False, None),
        ({"text": 1, "integer": 1}, True, None),
        ({"blob": 1}, True, ("BLOB", False)),
        ({}, True, ("TEXT", False)),
    ],
)
def test_a_loose_column_is_what_all_its_cells_are(seen: dict[str, int], exact: bool, expected: Any) -> None:
    assert by_content(seen, exact=exact) == expected


def verdict(type_: pa.DataType, existing: str) -> Verdict:
    return native(Column("c", type_), TargetColumn("c", existing), None).verdict


def test_what_an_existing_column_takes() -> None:
    assert verdict(pa.int32(), "bigint") is Verdict.WIDENED
    assert verdict(pa.int64(), "bigint") is Verdict.EXACT
    assert verdict(pa.decimal128(5, 2), "text") is Verdict.REFUSED
    assert verdict(pa.int64(), NUMERIC) is Verdict.WIDENED
    assert verdict(pa.timestamp("us"), NUMERIC) is Verdict.WIDENED
    for type_ in (pa.string(), pa.float64(), pa.decimal128(5, 2), pa.json_()):  # '007' would become 7
        assert verdict(type_, NUMERIC) is Verdict.REFUSED


NUMERIC_TEXT = Column("c", pa.string(), Logical("numeric"))


@pytest.mark.parametrize(
    ("column", "existing", "wider"),
    [
        (Column("c", pa.int64()), "int", "bigint"),
        (Column("c", pa.float64()), "int", "double"),
        (Column("c", pa.float64()), "bigint", ""),  # beyond 2⁵³, two integers would be one
        (Column("c", pa.float32()), "smallint", "float"),
        (Column("c", pa.decimal128(12, 2)), "int", "decimal(12,2)"),
        (Column("c", pa.decimal128(11, 2)), "int", ""),
        (Column("c", pa.uint64()), "uint", "ubigint"),
        (Column("c", pa.decimal128(12, 3)), "decimal(10,2)", "decimal(12,3)"),
        (NUMERIC_TEXT, "int", "numeric"),
        (NUMERIC_TEXT, "decimal(10,2)", "numeric"),
        (NUMERIC_TEXT, "double", ""),
        (Column("c", pa.timestamp("us")), "timestamp_s", "timestamp"),
        (Column("c", pa.timestamp("us")), "date", ""),
        (Column("c", pa.string()), "json", "text"),
        (Column("c", pa.string()), "enum('a')", "text"),
        (Column("c", pa.string()), "int", ""),
        (Column("c", pa.string(), Logical("enum", ("a", "b"))), "enum('a')", "enum('a', 'b')"),
        (Column("c", pa.string(), Logical("enum", ("b",))), "enum('a')", ""),
        (Column("c", pa.list_(pa.int64())), "int[]", "bigint[]"),
        (Column("c", pa.list_(pa.float64())), "int[]", ""),  # whose numbers would have to be written anew
    ],
)
def test_what_a_column_may_become(column: Column, existing: str, wider: str) -> None:
    assert native(column, TargetColumn("c", existing), None).widen_to == wider


def test_a_column_that_is_fixed_keeps_its_class() -> None:
    there = TargetColumn("c", "int", fixed="it has a CHECK")
    assert native(Column("c", pa.int64()), there, None).widen_to == "bigint"
    refused = native(Column("c", pa.float64()), there, None)
    assert (refused.verdict, refused.widen_to) == (Verdict.REFUSED, "")
    assert "it has a CHECK" in refused.note
    assert 'columns.c = "int"' in refused.remedy


def test_only_what_changes_a_value_is_left_to_the_sink() -> None:
    assert not native(Column("c", pa.int32()), TargetColumn("c", "bigint"), None).in_sink
    assert native(Column("c", pa.decimal128(5, 2)), TargetColumn("c", "decimal(9,4)"), None).in_sink
    assert native(Column("c", pa.string()), None, "decimal(9,4)").in_sink


def test_memory_counts_only_as_long_as_the_column_has_its_class() -> None:
    numeric = Logical("numeric")
    memory = {"a": ("decimal(5,2)", "postgres:numeric(5,2)", None), "b": ("numeric", "postgres:numeric", numeric)}
    assert remembered_column("a", "TEXT", memory, nullable=True) == Column(
        "a", pa.decimal128(5, 2), None, "postgres:numeric(5,2)"
    )
    assert remembered_column("b", "TEXT", memory, nullable=True) == Column(
        "b", pa.string(), numeric, "postgres:numeric"
    )
    assert remembered_column("a", "INTEGER", memory, nullable=True) is None
    assert remembered_column("c", "TEXT", memory, nullable=True) is None
    # Cast on its way in: what the source called it says nothing of what it is here.
    cast = {"a": ("decimal(38,9)", "postgres:numeric", numeric)}
    assert remembered_column("a", "TEXT", cast, nullable=True) == Column("a", pa.decimal128(38, 9))
