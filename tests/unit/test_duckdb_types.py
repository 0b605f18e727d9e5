"""DuckDB's two type tables: what is held as itself, what as text, what is refused."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.base import Native, TargetColumn, Verdict
from penstock.backends.duckdb import types
from penstock.backends.duckdb.dialect import DuckDBDialect, render
from penstock.backends.stored import stored_schema, stored_type, to_stored
from penstock.errors import DataError, PlanRefused, Unsupported
from penstock.schema import AddKey, Column, ColumnDef, CreateEnum, CreateTable, Logical, TableName
from penstock.schema.columns import TIMESTAMP_INFINITY


def held(column: Column, existing: str | None = None, cast: str | None = None) -> Native:
    return types.native(column, TargetColumn(column.name, existing) if existing else None, cast)


def evaluate(template: str, value: str) -> object:
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        return connection.sql("select " + template.replace("{}", f"({value})")).fetchall()[0][0]


@pytest.mark.parametrize("spelling", [*types.ARROW, "TIMESTAMP_S", "TIMESTAMP_MS", "DECIMAL(38,12)", "DECIMAL(4,0)"])
@pytest.mark.parametrize("suffix", ["", "[]", "[][]"])
def test_every_type_comes_back_as_itself(spelling: str, suffix: str) -> None:
    native = held(types.canonical("c", spelling + suffix))
    assert (native.sql, native.verdict) == (spelling + suffix, Verdict.EXACT)


@pytest.mark.parametrize(
    "spelling",
    [
        "int); copy (select 1) to '{file}'; select cast(null as int",
        "int) as a, (select count(*) from read_csv('{file}')) as b, cast(null as int",
        "INTEGER DEFAULT 3",
        "INTEGER, y INTEGER",
        "INTEGER /* */",
        "int",
        "no_such_type",
    ],
)
def test_a_remembered_spelling_that_is_not_duckdbs_own_is_text_and_nothing_is_run(
    tmp_path: Path, spelling: str
) -> None:
    file = tmp_path / "written"
    native = held(Column("c", pa.string(), native=f"duckdb:{spelling.replace('{file}', str(file))}"))
    assert (native.sql, native.verdict, native.decode) == ("VARCHAR", Verdict.EXACT, "{}")
    assert not file.exists()


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("HUGEINT", "numeric"),
        ("UHUGEINT", "numeric"),
        ("BIGNUM", "numeric"),
        ("BIT", "native"),
        ("TIME WITH TIME ZONE", "native"),
        ("INTERVAL", "interval"),
        ("ENUM('a', 'it''s')", "enum"),
    ],
)
def test_what_arrow_has_no_word_for_travels_as_text_and_returns(spelling: str, kind: str) -> None:
    column = types.canonical("c", spelling)
    assert column.type == pa.string()
    assert column.logical is not None
    assert column.logical.kind == kind
    assert column.native == f"duckdb:{spelling}"
    native = held(column)
    assert (native.sql, native.verdict) == (spelling, Verdict.EXACT)


def test_an_enum_carries_its_labels_in_order() -> None:
    assert types.canonical("c", "ENUM('z', 'a')").logical == Logical("enum", ("z", "a"))


@pytest.mark.parametrize("spelling", ["UNION(a INTEGER, b VARCHAR)", "VARIANT", "UNION(a INTEGER)[]"])
def test_text_that_says_less_than_the_value_is_refused_with_a_cast_that_would_do(spelling: str) -> None:
    native = held(types.canonical("my col", spelling))
    assert native.verdict is Verdict.REFUSED
    assert native.remedy == 'columns."my col" = "text"'


@pytest.mark.parametrize(
    "column",
    [
        Column("c", pa.string(), Logical("native"), "postgres:inet"),
        Column("c", pa.string(), Logical("native"), "postgres:int4range"),
        Column("c", pa.string(), Logical("enum", ("a", "b")), "postgres:mood"),
        Column("c", pa.string(), None, "postgres:varchar(5)"),
        Column("c", pa.string(), Logical("numeric"), "postgres:numeric"),
        Column("c", pa.list_(pa.string()), None, "postgres:varchar(5)[]"),
    ],
)
def test_types_duckdb_lacks_are_kept_as_text(column: Column) -> None:
    native = held(column)
    assert native.sql in {"VARCHAR", "VARCHAR[]"}
    assert native.verdict is Verdict.EXACT
    assert not native.fallback


def test_unbounded_numeric_as_text_proposes_a_decimal() -> None:
    note = held(Column("price", pa.string(), Logical("numeric"), "postgres:numeric")).note
    assert 'columns.price = "decimal(38,9)"' in note


@pytest.mark.parametrize(
    ("kind", "sql", "good", "bad"),
    [
        ("uuid", "UUID", "6c84fb90-12c4-11e1-840d-7b25c5ee775a", "no"),
        ("json", "JSON", '{"a":  1.0}', "{"),
        ("time", "TIME", "24:00:00", "25"),
        ("interval", "INTERVAL", "-1 mons +3 days -00:00:01", "infinity"),
    ],
)
def test_text_forms_become_their_types_again_behind_a_check(kind: str, sql: str, good: str, bad: str) -> None:
    native = held(Column("c", pa.string(), Logical(kind)))
    assert native.sql == sql
    assert evaluate(f"typeof({native.decode})", f"'{good}'") == sql
    assert evaluate(native.valid, f"'{good}'") is True
    assert evaluate(native.valid, "null::varchar") is True
    assert evaluate(native.valid, f"'{bad}'") is False


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("INTEGER", "BIGINT"),
        ("UINTEGER", "BIGINT"),
        ("BIGINT", "DECIMAL(19,0)"),
        ("UBIGINT", "DECIMAL(38,10)"),
        ("DECIMAL(10,2)", "DECIMAL(12,4)"),
        ("FLOAT", "DOUBLE"),
        ("INTEGER", "DOUBLE"),
        ("TIMESTAMP_S", "TIMESTAMP"),
        ("JSON", "VARCHAR"),
        ("ENUM('a')", "ENUM('a', 'b')"),
        ("INTEGER[]", "BIGINT[]"),
    ],
)
def test_a_wider_column_is_loaded_and_the_other_way_refused(source: str, target: str) -> None:
    native = held(types.canonical("c", source), existing=target)
    assert (native.verdict, native.sql) == (Verdict.WIDENED, target)
    back = held(types.canonical("c", target), existing=source)
    assert back.verdict is Verdict.REFUSED
    assert back.widen_to == target
    assert f'columns.c = "{source.lower()}"' == back.remedy


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("BIGINT", "DOUBLE"),
        ("BIGINT", "DECIMAL(18,0)"),
        ("INTEGER", "UBIGINT"),
        ("DECIMAL(10,2)", "DECIMAL(11,4)"),
        ("TIMESTAMP", "TIMESTAMP_NS"),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
        ("DATE", "TIMESTAMP"),
        ("UUID", "VARCHAR"),
        ("VARCHAR", "JSON"),
    ],
)
def test_what_might_lose_something_is_refused_without_a_cast(source: str, target: str) -> None:
    assert held(types.canonical("c", source), existing=target).verdict is Verdict.REFUSED


def test_a_collated_column_keeps_its_collation_and_is_compared_by_bytes() -> None:
    native = held(types.canonical("c", "VARCHAR"), existing="VARCHAR COLLATE nocase")
    assert (native.verdict, native.sql) == (Verdict.EXACT, "VARCHAR COLLATE nocase")
    assert "encode" in DuckDBDialect().differs([("c", native.sql)], "l", "r")


@pytest.mark.parametrize(
    ("source", "cast", "value", "survives"),
    [
        ("DECIMAL(10,3)", "decimal(10,2)", "1.230::decimal(10,3)", True),
        ("DECIMAL(10,3)", "decimal(10,2)", "1.239::decimal(10,3)", False),
        ("DOUBLE", "int", "'5.0'::double", True),
        ("DOUBLE", "int", "'5.5'::double", False),
        ("DOUBLE", "decimal(38,9)", "'nan'::double", False),
        ("DOUBLE", "decimal(38,9)", "'-0.0'::double", False),
        ("DOUBLE", "float", "0.1::double", False),
        ("BIGINT", "int", "2147483648::bigint", False),
        ("TIMESTAMP", "date", "timestamp '2020-01-01 00:00:01'", False),
        ("TIMESTAMP", "date", "timestamp '2020-01-01'", True),
        ("TIMESTAMP", "date", "timestamp 'infinity'", True),
        ("VARCHAR", "bigint", "'007'", False),
        ("VARCHAR", "bigint", "'7'", True),
        ("VARCHAR", "bigint", "null::varchar", True),
        ("VARCHAR", "decimal(38,9)", "'1.50'", True),
        ("VARCHAR", "decimal(38,9)", "'1.0000000001'", False),
        ("VARCHAR", "decimal(38,9)", "'NaN'", False),
        ("VARCHAR", "decimal(38,9)", "'100'", True),
        ("VARCHAR", "double", "'1.0e20'", False),
        ("JSON", "int", "'1.5'::json", False),
        ("TIMESTAMP WITH TIME ZONE", "text", "timestamptz '2020-01-01 00:00:00.5+02'", True),
    ],
)
def test_casts_asked_for_are_checked_forth_and_back(source: str, cast: str, value: str, survives: bool) -> None:
    native = held(Column("c", types.form_of(source).arrow), cast=cast)
    assert native.verdict is Verdict.CHECKED
    assert evaluate(native.valid, value) is survives


@pytest.mark.parametrize(
    ("cast", "sql"),
    [("text", "VARCHAR"), ("timestamptz", "TIMESTAMP WITH TIME ZONE"), ("int", "INTEGER"), ("varchar(20)", "VARCHAR")],
)
def test_cast_names_are_read_as_duckdb_reads_them(cast: str, sql: str) -> None:
    assert held(Column("c", pa.binary()), cast=cast).sql == sql


@pytest.mark.parametrize("cast", ["dezimal", "decimal(40,2)", "int); drop table t; --"])
def test_a_cast_that_is_no_type_is_refused(cast: str) -> None:
    with pytest.raises(PlanRefused, match="is not a type"):
        held(Column("c", pa.int32()), cast=cast)


def test_a_cast_against_the_existing_column_is_refused() -> None:
    assert held(Column("c", pa.int64()), existing="DATE", cast="int").verdict is Verdict.REFUSED
    widened = held(Column("c", pa.int64()), existing="BIGINT", cast="int")
    assert (widened.sql, widened.verdict) == ("BIGINT", Verdict.CHECKED)


# ---------------------------------------------------------------- intervals

MONTHS = st.integers(-(2**31), 2**31 - 1)
MICROS = st.integers(-(2**63), 2**63 - 1)
SMALL = st.sampled_from([-13, -12, -1, 0, 1, 11, 12])


@given(months=MONTHS | SMALL, days=MONTHS | SMALL, micros=MICROS | SMALL)
def test_interval_text_reads_back_as_the_same_interval(months: int, days: int, micros: int) -> None:
    with duckdb.connect() as connection:
        value = "to_months(?::int) + to_days(?::int) + to_microseconds(?::bigint)"
        text, again = connection.execute(
            f"select {types.interval_text('x')}, cast({types.interval_of(types.interval_text('x'))} as varchar)"
            f" = cast(x as varchar) from (select {value} as x)",
            [months, days, micros],
        ).fetchall()[0]
    assert again, text


# ---------------------------------------------------------------- staging


@pytest.mark.parametrize("unit", ["s", "ms"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_infinite_timestamps_keep_their_sentinels_in_a_finer_unit(unit: str, zone: str | None) -> None:
    numbers = [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, -1, None]
    array = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, zone))
    stored = to_stored(array, stored_type(array.type))
    factor = 1_000_000 if unit == "s" else 1_000
    assert stored.type == pa.timestamp("us", zone)
    assert stored.cast(pa.int64()).to_pylist() == [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, -factor, None]


def test_a_timestamp_beyond_microseconds_is_a_data_error() -> None:
    array = pa.array([2**60], pa.int64()).cast(pa.timestamp("s"))
    with pytest.raises(DataError, match="out of range"):
        to_stored(array, pa.timestamp("us"))


@pytest.mark.parametrize(
    "type_",
    [
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.float16(),
        pa.list_(pa.duration("s")),
        pa.struct([]),
    ],
)
def test_what_parquet_would_change_is_refused(type_: pa.DataType) -> None:
    with pytest.raises(Unsupported, match="cannot be staged exactly"):
        stored_schema([Column("c", type_)])


# ---------------------------------------------------------------- dialect


def test_keys_are_not_declared_and_enums_need_no_statement() -> None:
    table = TableName("main", 'we"ird')
    made = render(CreateTable(table, (ColumnDef("id", "BIGINT", nullable=False),), ("id",)))
    assert made == ['create table "main"."we""ird" (\n  "id" BIGINT not null\n)']
    assert render(AddKey(table, ("id",))) == []
    assert render(CreateEnum("mood", ("a",))) == []


@pytest.mark.parametrize(
    ("type_sql", "left", "right", "differs"),
    [
        ("DOUBLE", "'-0.0'::double", "'0.0'::double", True),
        ("DOUBLE", "'nan'::double", "'nan'::double", False),
        ("INTERVAL", "interval '1 day'", "interval '24 hours'", True),
        ("JSON", "'1.0'::json", "'1.00'::json", True),
        ("TIME WITH TIME ZONE", "'12:00:00+01'::timetz", "'11:00:00+00'::timetz", True),
        ("VARCHAR COLLATE NOCASE", "'a' collate nocase", "'A' collate nocase", True),
        ("INTEGER", "1", "null::int", True),
        ("INTEGER", "null::int", "null::int", False),
        ("DOUBLE[]", "['-0.0'::double]", "['0.0'::double]", True),
    ],
)
def test_unchanged_means_the_same_representation(type_sql: str, left: str, right: str, differs: bool) -> None:
    test = DuckDBDialect().differs([("c", type_sql)], "l", "r")
    with duckdb.connect() as connection:
        found = connection.sql(f"select {test} from (select {left} as c) l, (select {right} as c) r").fetchall()
    assert found == [(differs,)]


def test_key_text_and_row_hash_tell_rows_apart() -> None:
    dialect = DuckDBDialect()
    with duckdb.connect() as connection:
        assert connection.sql(
            f"select {dialect.key_text(['id', 'region'])} from (select 7 as id, 'eu' as region) t"
        ).fetchall() == [("id=7, region='eu'",)]
        rows = "(values ('ab', 'c'), ('a', 'bc'), (null, 'abc'), ('abc', null), ('', 'abc')) t(a, b)"
        hashes = connection.sql(f"select {dialect.row_hash(['a', 'b'], 't')} from {rows}").fetchall()
    assert len(set(hashes)) == 5
    assert all(value.startswith("2:") for (value,) in hashes)
