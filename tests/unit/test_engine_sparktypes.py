"""Canonical types through Spark's types and back, and the conversions of their values, without Spark."""

from __future__ import annotations

import uuid
from datetime import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import convert, sparktypes
from penstock.errors import DataError, PlanRefused, TransformError
from penstock.schema import Column, Logical, Schema
from penstock.schema.columns import TIMESTAMP_INFINITY

KEPT = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(38, 12),
    pa.decimal128(1, 0), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.list_(pa.int32()), pa.list_(pa.uuid()), pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.int64()), pa.list_(pa.time64("us")), pa.list_(pa.json_()),
]  # fmt: skip
AS_TEXT = [(pa.uuid(), "uuid"), (pa.json_(), "json"), (pa.time64("us"), "time")]
REFUSED = [
    pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin"), pa.decimal128(2, 5), pa.decimal128(5, -2),
    pa.time64("ns"), pa.list_(pa.time64("ns")), pa.struct([("a", pa.time64("ns"))]),
]  # fmt: skip


def through(column: Column) -> Column:
    return sparktypes.from_spark(sparktypes.to_spark(Schema.of([column])))[column.name]


@pytest.mark.parametrize("type_", KEPT, ids=str)
def test_a_tagged_column_comes_back_as_it_was(type_: pa.DataType) -> None:
    column = Column("c", type_, native="postgres:x")
    assert through(column) == column


@pytest.mark.parametrize(("type_", "kind"), AS_TEXT, ids=str)
def test_types_without_a_spark_form_come_back_as_tagged_text(type_: pa.DataType, kind: str) -> None:
    back = through(Column("c", type_, native="postgres:x"))
    assert (back.type, back.logical, back.native) == (pa.string(), Logical(kind), "postgres:x")


@pytest.mark.parametrize("kind", ["numeric", "interval", "native"])
def test_logical_text_keeps_its_meaning(kind: str) -> None:
    column = Column("c", pa.string(), Logical(kind), "postgres:y")
    assert through(column) == column


def test_enum_labels_survive() -> None:
    column = Column("c", pa.string(), Logical("enum", ("a", "b")), "postgres:mood")
    assert through(column) == column


@pytest.mark.parametrize("type_", REFUSED, ids=str)
def test_what_spark_cannot_hold_is_refused_with_a_cast(type_: pa.DataType) -> None:
    with pytest.raises(PlanRefused) as raised:
        sparktypes.to_spark(Schema.of([Column("c", type_)]))
    assert raised.value.remedy == "cast c to text in the pipeline's query"
    assert "column c" in str(raised.value)


def test_a_tag_whose_value_changed_its_type_is_dropped() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    tagged = sparktypes.to_spark(Schema.of([Column("c", pa.uuid())])).fields[0]
    back = sparktypes.from_spark(StructType([StructField("c", LongType(), True, tagged.metadata)]))["c"]
    assert (back.type, back.logical, back.native) == (pa.int64(), None, "")


def test_untagged_text_is_plain_text() -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    back = sparktypes.from_spark(StructType([StructField("c", StringType(), False)]))["c"]
    assert back == Column("c", pa.string(), nullable=False)


def test_result_types_that_no_target_holds_are_refused() -> None:
    from pyspark.sql.types import DayTimeIntervalType, NullType, StructField, StructType

    for type_ in (DayTimeIntervalType(), NullType()):
        with pytest.raises(TransformError, match="column c of the transform's result"):
            sparktypes.from_spark(StructType([StructField("c", type_)]))


def test_a_result_with_a_name_twice_is_refused() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    with pytest.raises(TransformError, match="gives id more than once"):
        sparktypes.from_spark(StructType([StructField("id", LongType()), StructField("id", LongType())]))


def round_trip(array: pa.Array) -> pa.Array:
    there = convert.forth(array)
    there.validate(full=True)
    assert there.type == sparktypes.carried(array.type)
    home = convert.back(there, array.type, "c")
    home.validate()  # not in full: Arrow calls 24:00:00 out of range
    assert home.type == array.type
    return home


@given(st.lists(st.one_of(st.none(), st.uuids())), st.integers(0, 3))
def test_uuids_are_the_text_that_python_prints(values: list[uuid.UUID | None], skipped: int) -> None:
    raw = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
    array = pa.ExtensionArray.from_storage(pa.uuid(), raw)[skipped:]
    assert convert.forth(array).to_pylist() == [None if v is None else str(v) for v in values[skipped:]]
    assert round_trip(array).equals(array)


@given(st.lists(st.one_of(st.none(), st.times())))
def test_times_round_trip(values: list[time | None]) -> None:
    array = pa.array(values, pa.time64("us"))
    assert round_trip(array).equals(array)


def test_times_have_six_digits_and_midnight_at_the_end_of_the_day() -> None:
    micros = pa.array([0, 45_296_000_007, 86_400_000_000, None]).view(pa.time64("us"))
    assert convert.forth(micros).to_pylist() == ["00:00:00.000000", "12:34:56.000007", "24:00:00.000000", None]
    assert round_trip(micros).equals(micros)


@pytest.mark.parametrize("text", ["24:00:00.000001", "24:30:00.000000", "31:00:00.000000", "23:59:60.000000", "1:00"])
def test_no_text_is_a_time_beyond_its_day(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        convert.time_from_text(pa.array(["12:00:00.000000", text, None]), pa.time64("us"))


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1))))
def test_uint64_round_trips_as_a_decimal(values: list[int | None]) -> None:
    array = pa.array(values, pa.uint64())
    assert round_trip(array).to_pylist() == values


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_infinity_is_the_same_in_every_unit(unit: str) -> None:
    numbers = pa.array([TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, 5, None])
    array = numbers.view(pa.timestamp(unit))
    there = convert.forth(array).view(pa.int64()).to_pylist()
    assert there[:2] == [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY]
    assert round_trip(array).view(pa.int64()).to_pylist() == numbers.to_pylist()


def test_lists_and_structs_are_converted_inside() -> None:
    one, two = uuid.uuid4(), uuid.uuid4()
    inner = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes, None, two.bytes], pa.binary(16)))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), inner, mask=pa.array([False, True, False]))
    assert convert.forth(lists).to_pylist() == [[str(one), None], None, [str(two)]]
    assert round_trip(lists).equals(lists)
    assert round_trip(lists[1:]).equals(lists[1:])
    fields = [pa.field("u", pa.uuid()), pa.field("n", pa.uint8())]
    structs = pa.StructArray.from_arrays([inner, pa.array([1, 2, None], pa.uint8())], fields=fields)
    assert round_trip(structs).equals(structs)
    assert round_trip(structs[1:]).equals(structs[1:])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([-1]), pa.uint32()),
        (pa.array(["not a uuid"]), pa.uuid()),
        (pa.array(["25 o'clock"]), pa.time64("us")),
        (pa.array([1_500_000]).view(pa.timestamp("us")), pa.timestamp("s")),
    ],
    ids=str,
)
def test_a_value_that_a_transform_made_unfit_is_a_data_error_without_it(values: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(DataError, match="column c holds a value") as raised:
        convert.back(values, wanted, "c")
    assert "25" not in str(raised.value)
