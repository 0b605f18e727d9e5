"""Types by name: what is spelled is parsed back, whatever it is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.schema.columns import ENUM, INTERVAL, NATIVE, NUMERIC, Column, Logical
from penstock.schema.words import PLAIN, parse, spell

FLAT = st.one_of(
    st.sampled_from(sorted(PLAIN.values(), key=str)),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def _nested(child: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(NAMES, child), min_size=1, max_size=3, unique_by=lambda field: field[0])
    return st.one_of(
        child.map(pa.list_),
        fields.map(lambda given: pa.struct([pa.field(name, type_) for name, type_ in given])),
        st.tuples(child, child).map(lambda pair: pa.map_(*pair)),
    )


@given(st.recursive(FLAT, _nested, max_leaves=5))
def test_every_arrow_type_is_parsed_back(type_: pa.DataType) -> None:
    assert parse(spell(Column("c", type_))).type == type_


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_an_enum_keeps_its_labels(labels: list[str]) -> None:
    column = Column("c", pa.string(), Logical(ENUM, tuple(labels)))
    assert parse(spell(column)).logical == column.logical


@pytest.mark.parametrize("kind", [NUMERIC, INTERVAL])
def test_what_arrow_has_no_word_for_is_spelled_by_its_kind(kind: str) -> None:
    word = parse(spell(Column("c", pa.string(), Logical(kind))))
    assert (word.type, word.logical) == (pa.string(), Logical(kind))


def test_a_text_of_the_source_keeps_its_own_type() -> None:
    column = Column("c", pa.string(), Logical(NATIVE), "postgres:inet")
    assert spell(column) == "text as postgres:inet"
    assert parse(spell(column)).column("c") == column


@pytest.mark.parametrize(
    ("given_", "type_"),
    [
        ("INTEGER", pa.int32()),
        ("double precision", pa.float64()),
        ("timestamp with time zone", pa.timestamp("us", "UTC")),
        ("numeric(10, 2)", pa.decimal128(10, 2)),
        ("Decimal(5)", pa.decimal128(5, 0)),
        ("bigint [] []", pa.list_(pa.list_(pa.int64()))),
        ('struct(a int, "b c" text[])', pa.struct([("a", pa.int32()), ("b c", pa.list_(pa.string()))])),
    ],
)
def test_people_may_spell_as_sql_does(given_: str, type_: pa.DataType) -> None:
    assert parse(given_).type == type_


@pytest.mark.parametrize(
    "wrong",
    ["", "blub", "decimal", "decimal(39,2)", "decimal(5,6)", "int[", "map(int)", "struct()", "int int", "numeric[]"],
)
def test_what_is_no_type_is_said(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not a type"):
        parse(wrong)
