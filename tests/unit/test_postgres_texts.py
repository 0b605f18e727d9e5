"""What Postgres prints in its log, read back as canonical values."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.postgres.texts import key_texts, values
from penstock.errors import BeyondArrow, SourceError
from penstock.schema import Column
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

STAMP, STAMP_TZ = pa.timestamp("us"), pa.timestamp("us", "UTC")

HALF = time(4, 5, 6, 500_000)


def read(texts: list[str | None], type_: pa.DataType) -> pa.Array:
    keys = pa.table({"id": pa.array(range(len(texts)), pa.int64())})
    return values(pa.array(texts, pa.large_string()), Column("c", type_), keys, ["id"])


# Per type: what the server prints, and what it is.
VALUES: dict[pa.DataType, list[tuple[str, Any]]] = {
    pa.bool_(): [("t", True), ("f", False)],
    pa.int16(): [("-32768", -(2**15)), ("0", 0), ("32767", 2**15 - 1)],
    pa.int32(): [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)],
    pa.int64(): [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)],
    pa.float32(): [("1e-45", 1.401298464324817e-45), ("-3.4028235e+38", -(2.0**128 - 2.0**104))],
    pa.float64(): [
        ("0.30000000000000004", 0.1 + 0.2),
        ("5e-324", 5e-324),
        ("1.7976931348623157e+308", 1.7976931348623157e308),
        ("Infinity", float("inf")),
        ("-Infinity", float("-inf")),
        ("1e+15", 1e15),
    ],
    pa.decimal128(38, 12): [
        ("0.000000000001", Decimal("0.000000000001")),
        ("-99999999999999999999999999.999999999999", Decimal("-99999999999999999999999999.999999999999")),
        ("0.000000000000", Decimal(0)),
    ],
    pa.decimal128(5, 0): [("12345", Decimal(12345)), ("-1", Decimal(-1))],
    pa.string(): [("", ""), (" a\n", " a\n"), ("日本語", "日本語"), ("NULL", "NULL"), ("\\N", "\\N")],
    pa.binary(): [("\\x", b""), ("\\x00ff10", b"\x00\xff\x10"), ("\\x" + "ab" * 5000, b"\xab" * 5000)],
    pa.date32(): [("1970-01-01", date(1970, 1, 1)), ("0001-01-01", date(1, 1, 1)), ("9999-12-31", date(9999, 12, 31))],
    pa.time64("us"): [("00:00:00", time(0)), ("23:59:59.999999", time(23, 59, 59, 999999)), ("04:05:06.5", HALF)],
    STAMP: [
        ("2024-02-29 23:59:59.123456", datetime(2024, 2, 29, 23, 59, 59, 123456)),
        ("0001-01-01 00:00:00", datetime(1, 1, 1)),
        ("1969-12-31 23:59:59.5", datetime(1969, 12, 31, 23, 59, 59, 500000)),
    ],
    STAMP_TZ: [
        ("2024-02-29 23:59:59.123456+00", datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)),
        ("9999-12-31 23:59:59.999999+00", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ],
    pa.uuid(): [("00112233-4455-6677-8899-aabbccddeeff", UUID("00112233-4455-6677-8899-aabbccddeeff"))],
    pa.json_(pa.string()): [('{"a": [1, null]}', '{"a": [1, null]}'), ("null", "null")],
    pa.list_(pa.int32()): [("{}", []), ("{1}", [1]), ("{1,NULL,-3}", [1, None, -3])],
    pa.list_(pa.string()): [
        ('{a,NULL,"NULL"}', ["a", None, "NULL"]),
        ('{""}', [""]),
        ('{"a,b","{c}","d\\"e","f\\\\g"," h "}', ["a,b", "{c}", 'd"e', "f\\g", " h "]),
        ('{"\\\\\\\\","\\\\\\""}', ["\\\\", '\\"']),
        ("{ä,日本}", ["ä", "日本"]),
    ],
    pa.list_(pa.bool_()): [("{t,f,NULL}", [True, False, None])],
    pa.list_(pa.decimal128(10, 2)): [("{1.10,NULL}", [Decimal("1.10"), None])],
    pa.list_(pa.date32()): [("{2024-01-31,0001-01-01}", [date(2024, 1, 31), date(1, 1, 1)])],
    pa.list_(STAMP): [('{"2024-01-31 12:00:00",NULL}', [datetime(2024, 1, 31, 12), None])],
}  # fmt: skip


@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_each_type_with_null_among_its_values(type_: pa.DataType) -> None:
    texts: list[str | None] = [None, *(text for text, _ in VALUES[type_]), None]
    found = read(texts, type_)
    assert found.type == type_
    assert found.to_pylist() == [None, *(value for _, value in VALUES[type_]), None]
    found.validate(full=True)


@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_each_type_with_nothing_at_all(type_: pa.DataType) -> None:
    assert read([], type_).to_pylist() == []
    assert read([None, None], type_).to_pylist() == [None, None]


@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_each_type_as_a_slice(type_: pa.DataType) -> None:
    """As a fold leaves them: a part of a larger array, whose other texts do not count."""
    own = [text for text, _ in VALUES[type_]]
    whole = pa.array(["not a value", None, *own, "{", "\\"], pa.large_string())
    part = whole.slice(2, len(own))
    keys = pa.table({"id": pa.array(range(len(own)), pa.int64())})
    assert values(part, Column("c", type_), keys, ["id"]).to_pylist() == [value for _, value in VALUES[type_]]


def test_nan_and_minus_zero_of_a_float() -> None:
    nan, minus = read(["NaN", "-0"], pa.float64()).to_pylist()
    assert nan != nan
    assert str(minus) == "-0.0"


def test_infinite_dates_and_those_before_the_first_year() -> None:
    texts: list[str | None] = ["infinity", "-infinity", "0044-03-15 BC", "0001-12-31 BC", "5874897-12-31", None]
    days = read(texts, pa.date32()).cast(pa.int32()).to_pylist()
    finite = [int(np.datetime64(day, "D").astype(int)) for day in ("-0043-03-15", "0000-12-31", "5874897-12-31")]
    assert days == [DATE_INFINITY, -DATE_INFINITY, *finite, None]


@pytest.mark.parametrize(("type_", "zone"), [(STAMP, ""), (STAMP_TZ, "+00")], ids=str)
def test_infinite_timestamps_and_those_beyond_pythons(type_: pa.DataType, zone: str) -> None:
    texts: list[str | None] = [
        "infinity",
        "-infinity",
        f"0001-12-31 23:59:59.999999{zone} BC",
        f"294246-12-31 00:00:00{zone}",
        f"2024-01-31 00:00:00{zone}",
        None,
    ]
    micros = read(texts, type_).cast(pa.int64()).to_pylist()
    moments = ("0000-12-31T23:59:59.999999", "294246-12-31T00:00:00", "2024-01-31T00:00:00")
    finite = [int(np.datetime64(moment, "us").astype(int)) for moment in moments]
    assert micros == [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, *finite, None]


def test_the_last_moment_of_a_day() -> None:
    assert read(["24:00:00"], pa.time64("us")).cast(pa.int64()).to_pylist() == [86_400_000_000]


@pytest.mark.parametrize(
    ("type_", "text", "why"),
    [
        (pa.decimal128(10, 2), "NaN", "NaN"),
        (pa.decimal128(10, 2), "-Infinity", "Infinity"),
        (pa.list_(pa.decimal128(10, 2)), "{1.00,NaN}", "NaN"),
        (STAMP, "294277-01-09 04:00:54.775806", "beyond 64 bits"),
        (STAMP_TZ, "294277-01-09 04:00:54.775806+00", "beyond 64 bits"),
        (pa.list_(STAMP), '{"294277-01-09 04:00:54.775806"}', "beyond 64 bits"),
        (pa.list_(pa.int32()), "{{1,2},{3,4}}", "dimension"),
        (pa.list_(pa.int32()), "[0:1]={1,2}", "lower bound"),
    ],
)
def test_a_value_beyond_arrow_is_named_by_its_rows(type_: pa.DataType, text: str, why: str) -> None:
    """The table goes on with that column as text; the rows of the batch that have no such value are not named."""
    with pytest.raises(BeyondArrow) as caught:
        read([None, text, None, text], type_)
    assert why in caught.value.why
    assert caught.value.columns == ("c",)
    assert caught.value.keys == ("id=1", "id=3")
    assert 'columns.c = "text"' in caught.value.remedy


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (pa.int32(), "2147483648"),
        (pa.int32(), "secret"),
        (pa.decimal128(5, 2), "12345.67"),
        (pa.date32(), "2024-02-30"),
        (STAMP, "2024-02-30 00:00:00"),
        (STAMP, "31/01/2024 12:00:00"),
        (pa.time64("us"), "25:00:00"),
        (pa.list_(pa.int32()), "{1,x}"),
    ],
)
def test_a_text_that_is_no_value_fails_without_showing_it(type_: pa.DataType, text: str) -> None:
    with pytest.raises(SourceError) as caught:
        read([text], type_)
    assert not isinstance(caught.value, BeyondArrow)
    assert text not in f"{caught.value} {caught.value.why} {caught.value.remedy}"
    assert "resync" in caught.value.remedy


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=6).map(lambda t: t.replace("\0", "")))))
    )
)
def test_arrays_of_texts_come_back(rows: list[list[str | None] | None]) -> None:
    assert read([None if row is None else _spelled(row) for row in rows], pa.list_(pa.string())).to_pylist() == rows


def _spelled(row: list[str | None]) -> str:
    """As array_out does it, but with quotes around every text."""
    spelled = ("NULL" if one is None else '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"' for one in row)
    return "{" + ",".join(spelled) + "}"


@pytest.mark.parametrize(
    ("spelling", "texts", "equal"),
    [
        ("numeric", ["1", "1.0", "1.00", "1.000"], True),
        ("numeric(10,2)", ["0", "0.0", "-0", "-0.00"], True),
        ("numeric", ["100", "1", "10"], False),
        ("numeric", ["NaN", "Infinity", "-Infinity"], False),
        ("numeric", ["1.10", "1.1", "1.100"], True),
        ("numeric", ["1.01", "1.1"], False),
        ("double precision", ["0", "-0"], True),
        ("real", ["0", "-0"], True),
        ("character(5)", ["ab", "ab ", "ab   "], True),
        ("character varying(5)", ["ab", "ab "], False),
        ("text", ["1.0", "1.00"], False),
    ],
)
def test_keys_are_equal_where_the_server_calls_them_equal(spelling: str, texts: list[str], *, equal: bool) -> None:
    found = key_texts(spelling, pa.array([*texts, None], pa.large_string())).to_pylist()
    assert found[-1] is None
    assert len(set(found[:-1])) == (1 if equal else len(texts))


# ---------------------------------------------------------------- as a cast to text prints them

SPELLED = {
    "money": [("$92,233,720,368,547,758.07", "92233720368547758.07"), ("-$0.01", "-0.01"), ("0.50", "0.50")],
    "inet": [("10.0.0.1", "10.0.0.1/32"), ("10.0.0.1/8", "10.0.0.1/8"), ("::1", "::1/128"), ("10.0.0.1/32",) * 2],
    "cidr": [("10.0.0.0/8", "10.0.0.0/8")],
    "money[]": [("{$1.00,$2.50}", "{$1.00,$2.50}")],
}


@pytest.mark.parametrize("spelling", list(SPELLED))
def test_a_change_is_spelled_as_a_copy_is(spelling: str) -> None:
    column = Column("c", pa.string(), native=f"postgres:{spelling}")
    texts = pa.array([*(text for text, _ in SPELLED[spelling]), None], pa.large_string())
    found = values(texts, column, pa.table({"c": texts}), ["c"])
    assert found.to_pylist() == [*(cast for _, cast in SPELLED[spelling]), None]


def test_a_boolean_of_a_copy_in_a_log_is_read_too() -> None:
    assert read(["true", "false", "t", "f", None], pa.bool_()).to_pylist() == [True, False, True, False, None]
