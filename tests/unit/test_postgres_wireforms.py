"""Decimals and lists as the server sends them: read back by psycopg, which knows the forms by itself."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import postgres
from psycopg.adapt import Transformer
from psycopg.pq import Format

from penstock.backends.postgres.encode import Wire, encode_batch
from penstock.backends.postgres.wireforms import decimals, rows
from penstock.schema import Column


def _read(form: bytes | None, type_name: str) -> Any:
    if form is None:
        return None
    info = postgres.types[type_name.removesuffix("[]")]
    oid = info.array_oid if type_name.endswith("[]") else info.oid
    return Transformer().get_loader(oid, Format.BINARY).load(form)


def _encoded(array: pa.Array, staged: str) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    return encode_batch(batch, [Wire(Column("v", array.type), staged)], (), "t")[0]


@st.composite
def _decimals(draw: st.DrawFn) -> tuple[pa.DataType, list[Decimal | None], int]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    unscaled = st.one_of(st.integers(-most, most), st.integers(-99, 99).filter(lambda n: abs(n) <= most))
    numbers = draw(st.lists(st.one_of(st.none(), unscaled), max_size=20))
    values = [None if n is None else Decimal(f"{n}E-{scale}") for n in numbers]
    return pa.decimal128(precision, scale), values, draw(st.integers(0, 3))


@given(_decimals())
def test_a_decimal_goes_out_as_it_is(made: tuple[pa.DataType, list[Decimal | None], int]) -> None:
    type_, values, offset = made
    array = pa.array(values, type_).slice(offset)
    form = decimals(array)
    found = [_read(one, "numeric") for one in form.to_pylist()]
    assert found == array.to_pylist()
    assert all(one.as_tuple().exponent == -type_.scale for one in found if one is not None)


def test_what_stands_under_a_null_is_not_looked_at() -> None:
    data = pa.py_buffer(b"\xff" * 16 + (7).to_bytes(16, "little"))
    array = pa.Array.from_buffers(pa.decimal128(5, 2), 2, [pa.py_buffer(b"\x02"), data])
    assert [_read(one, "numeric") for one in decimals(array).to_pylist()] == [None, Decimal("0.07")]


@pytest.mark.parametrize(
    ("type_", "staged", "name", "values"),
    [
        (pa.bool_(), "boolean", "bool", [True, None, False]),
        (pa.int8(), "smallint", "int2", [-128, None, 127]),
        (pa.int32(), "integer", "int4", [-(2**31), None, 2**31 - 1]),
        (pa.int64(), "bigint", "int8", [-(2**63), None, 2**63 - 1]),
        (pa.uint64(), "numeric(20,0)", "numeric", [2**64 - 1, None, 0]),
        (pa.float32(), "real", "float4", [0.5, None, float("inf")]),
        (pa.float64(), "double precision", "float8", [-0.0, None, 1e308]),
        (pa.string(), "text", "text", ["", None, 'é,{}"']),
        (pa.binary(), "bytea", "bytea", [b"", None, b"\x00\xff"]),
        (pa.date32(), "date", "date", [date(1, 1, 1), None, date(9999, 12, 31)]),
        (pa.decimal128(5, 2), "numeric(5,2)", "numeric", [Decimal("-1.50"), None, Decimal("0.01")]),
    ],
    ids=str,
)
def test_a_list_goes_out_as_it_is(type_: pa.DataType, staged: str, name: str, values: list[Any]) -> None:
    rows = [[values[0]], values, None, [], [None], values[:1] * 3]
    array = pa.array(rows, pa.list_(type_))
    for offset in range(len(rows)):
        form = _encoded(array.slice(offset), f"{staged}[]")
        assert [_read(one, f"{name}[]") for one in form.to_pylist()] == rows[offset:]


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.decimal128(5, 2)], ids=str)
def test_lists_without_an_element_go_out(type_: pa.DataType) -> None:
    staged = {pa.int64(): "bigint", pa.string(): "text"}.get(type_, "numeric")
    form = _encoded(pa.array([[], None], pa.list_(type_)), f"{staged}[]")
    assert [_read(one, f"{staged.replace('bigint', 'int8')}[]") for one in form.to_pylist()] == [[], None]


@given(
    st.lists(
        st.tuples(st.booleans(), st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), st.text("aé", max_size=3))
    )
)
def test_rows_are_those_of_a_copy(values: list[tuple[bool, int | None, str]]) -> None:
    first, second, third = ([row[n] for row in values] for n in range(3))
    arrays = [pa.array(first, pa.bool_()), pa.array(second, pa.int32()), pa.array(third, pa.string())]
    taken = Transformer()
    taken.set_loader_types([postgres.types[name].oid for name in ("bool", "int4", "text")], Format.BINARY)
    data = bytes(rows(arrays)) if values else b""
    for row in values:
        fields = []
        assert data[:2] == (3).to_bytes(2, "big")
        data = data[2:]
        for _ in range(3):
            length = int.from_bytes(data[:4], "big", signed=True)
            fields.append(None if length < 0 else data[4 : 4 + length])
            data = data[4 + max(length, 0) :]
        assert taken.load_sequence(fields) == row
    assert data == b""
