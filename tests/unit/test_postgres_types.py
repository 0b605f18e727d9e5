"""Postgres types without a server: canonical forms, verdicts, wire forms, texts of errors."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.backends.base import Verdict
from penstock.backends.duckdb import types as duckdb_types
from penstock.backends.postgres.ahead import ReadAhead
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.decode import WRAPPED_MINUS, WRAPPED_PLUS, decode_batch
from penstock.backends.postgres.encode import Wire, encode_batch
from penstock.backends.postgres.errors import marked
from penstock.backends.postgres.native import Held, own_type, plan, staging_type, widens
from penstock.backends.postgres.query import splittable, trimmed
from penstock.backends.postgres.spelling import Spelling
from penstock.backends.postgres.split import _bounds, _key_conditions
from penstock.backends.postgres.types import PgType, canonical, read_expression
from penstock.errors import BeyondArrow, ConfigError, DataError, PlanRefused
from penstock.schema import Column, Logical
from penstock.schema.columns import TIMESTAMP_INFINITY

SERVER = 180_000
US, USTZ = pa.timestamp("us"), pa.timestamp("us", "UTC")


def built_in(name: str, spelling: str, typmod: int = -1) -> PgType:
    return PgType(name, "pg_catalog", spelling, typmod)


def numeric(precision: int, scale: int) -> PgType:
    return built_in("numeric", f"numeric({precision},{scale})", ((precision << 16) | (scale & 0x7FF)) + 4)


@pytest.mark.parametrize(
    ("precision", "scale", "arrow"),
    [(38, 12, pa.decimal128(38, 12)), (39, 0, pa.string()), (5, -2, pa.string()), (3, 5, pa.string())],
)
def test_numeric_is_decimal_up_to_38_digits_and_text_beyond(precision: int, scale: int, arrow: pa.DataType) -> None:
    column = canonical("v", numeric(precision, scale))
    assert column.type == arrow
    assert column.logical == (None if arrow != pa.string() else Logical("numeric"))
    assert column.native == f"postgres:numeric({precision},{scale})"


def test_a_type_nobody_knows_is_read_as_text_never_guessed() -> None:
    column = canonical("v", PgType("geometry", "public", "public.geometry"))
    assert (column.type, column.logical) == (pa.string(), Logical("native"))
    assert read_expression(PgType("geometry", "public", "public.geometry"), column, 'q."v"', "''") == (
        'q."v"::pg_catalog.text'
    )


def test_char_padding_is_not_cut_by_a_cast_to_text() -> None:
    type_ = built_in("bpchar", "character(5)", 9)
    assert read_expression(type_, canonical("v", type_).as_text(), 'q."v"', "''") == 'q."v"'


def test_an_array_declared_with_two_dimensions_is_text() -> None:
    type_ = PgType("_int4", "pg_catalog", "integer[]", element=built_in("int4", "integer"))
    assert canonical("v", type_, dims=1).type == pa.list_(pa.int32())
    assert canonical("v", type_, dims=2).type == pa.string()


@pytest.mark.parametrize(
    ("own", "want", "fits"),
    [
        ("smallint", "bigint", True),
        ("bigint", "integer", False),
        ("bigint", "numeric(19,0)", True),
        ("bigint", "numeric(20,2)", False),
        ("bigint", "double precision", False),
        ("numeric(10,2)", "numeric(12,4)", True),
        ("numeric(10,2)", "numeric(11,4)", False),
        ("numeric", "numeric(38,9)", False),
        ("character varying(5)", "character varying(9)", True),
        ("character varying", "character varying(9)", False),
        ("timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp without time zone", "timestamp with time zone", False),
        ("json", "jsonb", False),
        ("integer[]", "bigint[]", True),
        ("integer[]", "bigint", False),
    ],
)
def test_only_a_type_that_holds_every_value_is_wider(own: str, want: str, fits: bool) -> None:
    assert widens(Spelling.parse(own), Spelling.parse(want)) is fits


@given(st.integers(1, 38), st.integers(0, 38), st.integers(1, 38), st.integers(0, 38))
def test_a_wider_numeric_holds_the_extremes_of_the_other(p: int, s: int, q: int, r: int) -> None:
    if s > p or r > q:
        return
    fits = widens(Spelling("numeric", (p, s)), Spelling("numeric", (q, r)))
    biggest, smallest = Fraction(10**p - 1, 10**s), Fraction(1, 10**s)
    assert fits == (biggest < 10 ** (q - r) and (smallest * 10**r).denominator == 1)


@pytest.mark.parametrize(
    ("type_", "sql", "verdict"),
    [
        (pa.int8(), "smallint", Verdict.WIDENED),
        (pa.uint32(), "bigint", Verdict.WIDENED),
        (pa.uint64(), "numeric(20,0)", Verdict.WIDENED),
        (pa.timestamp("ms"), "timestamp without time zone", Verdict.WIDENED),
        (USTZ, "timestamp with time zone", Verdict.EXACT),
        (pa.list_(pa.date32()), "date[]", Verdict.EXACT),
        (pa.timestamp("ns"), "text", Verdict.REFUSED),
        (pa.struct([("a", pa.int32())]), "text", Verdict.REFUSED),
        (pa.list_(pa.list_(pa.int32())), "text", Verdict.REFUSED),
    ],
)
def test_a_new_column_by_its_arrow_type(type_: pa.DataType, sql: str, verdict: Verdict) -> None:
    column = Column("v", type_)
    own = own_type(column)
    made = plan(column, Held(own) if own else None, None, asked=False, server=SERVER)
    assert (made.sql, made.verdict) == (sql, verdict)
    assert bool(made.remedy) == (verdict is Verdict.REFUSED)


@pytest.mark.parametrize("type_", ["HUGEINT", "UHUGEINT", "BIGNUM"])
def test_another_backends_big_integers_become_numeric(type_: str) -> None:
    assert own_type(duckdb_types.canonical("v", type_)) == "numeric"


def test_a_narrower_existing_column_is_refused_with_a_cast_that_would_do() -> None:
    column = Column("price", pa.decimal128(38, 12))
    made = plan(column, Held("numeric(38,12)"), Held("numeric(10,2)"), asked=False, server=SERVER)
    assert made.verdict is Verdict.REFUSED
    assert made.remedy == 'columns.price = "numeric(10,2)"'
    assert made.widen_to == "numeric(38,12)"


def test_a_cast_that_was_asked_for_is_checked() -> None:
    column = Column("price", pa.decimal128(38, 12))
    made = plan(column, Held("numeric(38,12)"), Held("numeric(10,2)"), asked=True, server=SERVER)
    assert made.verdict is Verdict.CHECKED
    assert "round({}::numeric, 2)" in made.valid


def test_text_forms_of_postgres_values_are_staged_as_text_and_cast() -> None:
    column = Column("v", pa.decimal128(10, 2), None, "postgres:numeric(10,2)").as_text()
    made = plan(column, Held("numeric(10,2)"), None, asked=False, server=SERVER)
    assert (made.decode, made.direct, staging_type(column, made)) == ("{}::numeric(10,2)", False, "text")


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_wrapped_infinities_become_the_canonical_ones() -> None:
    raw = pa.array([WRAPPED_PLUS, None, WRAPPED_MINUS, 0], pa.int64()).view(US)
    done = decode_batch(batch(v=raw), [Column("v", US)], ())
    assert done.column(0).view(pa.int64()).to_pylist() == [TIMESTAMP_INFINITY, None, -TIMESTAMP_INFINITY, 0]


def test_a_legal_timestamp_that_wrapped_is_an_error_with_its_key() -> None:
    raw = pa.array([0, -(2**63) + 5], pa.int64()).view(US)
    with pytest.raises(BeyondArrow) as caught:
        decode_batch(batch(id=pa.array([7, 8]), v=raw), [Column("id", pa.int64()), Column("v", US)], ("id",))
    assert (caught.value.columns, caught.value.keys) == (("v",), ("id=8",))


def test_nan_in_a_list_of_decimals_is_told_by_its_row() -> None:
    lists = pa.array([["1.50"], [], None, ["2.00", "nan"]], pa.list_(pa.string()))
    columns = [Column("id", pa.int64()), Column("v", pa.list_(pa.decimal128(5, 2)))]
    with pytest.raises(BeyondArrow) as caught:
        decode_batch(batch(id=pa.array([1, 2, 3, 4]), v=lists), columns, ("id",))
    assert caught.value.keys == ("id=4",)


@given(st.lists(st.one_of(st.none(), st.integers(-210_866_803_200_000_000, 2**63 - 2)), max_size=30), st.integers(0, 5))
def test_timestamps_go_out_and_come_back(values: list[int | None], offset: int) -> None:
    array = pa.array(values, pa.int64()).view(US).slice(offset)
    out = encode_batch(batch(v=array), [Wire(Column("v", US), "timestamp without time zone")], (), "t")[0]
    epoch = 946_684_800_000_000
    assert [None if v is None else v + epoch for v in out.to_pylist()] == array.view(pa.int64()).to_pylist()


def test_infinities_go_out_as_the_servers_own() -> None:
    array = pa.array([TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY], pa.int64()).view(USTZ)
    wire = Wire(Column("v", USTZ), "timestamp with time zone")
    assert encode_batch(batch(v=array), [wire], (), "t")[0].to_pylist() == [2**63 - 1, -(2**63)]


def test_zero_bytes_in_text_are_refused_with_their_key() -> None:
    columns = batch(id=pa.array([1, 2]), v=pa.array(["a", "b\x00"]))
    wires = [Wire(Column("id", pa.int64()), "bigint"), Wire(Column("v", pa.string()), "text")]
    with pytest.raises(DataError) as caught:
        encode_batch(columns, wires, ("id",), "t")
    assert caught.value.keys == ("id=2",)
    assert "zero byte" in caught.value.why


def test_nanoseconds_that_would_be_cut_are_refused() -> None:
    type_ = pa.timestamp("ns")
    wire = Wire(Column("v", type_), "timestamp without time zone")
    whole = pa.array([1_000, None], pa.int64()).view(type_)
    encode_batch(batch(v=whole), [wire], (), "t")
    with pytest.raises(DataError, match="cannot"):
        encode_batch(batch(v=pa.array([1_001], pa.int64()).view(type_)), [wire], (), "t")


@pytest.mark.parametrize(
    ("sql", "bare"),
    [
        ("select 1;", "select 1"),
        ("select 1 -- why\n;;\n", "select 1"),
        ("select ';' as a /* ; */ ; -- end", "select ';' as a"),
        ("select $$;$$", "select $$;$$"),
    ],
)
def test_trailing_semicolons_and_comments_are_cut_by_tokens(sql: str, bare: str) -> None:
    assert trimmed(sql) == bare


def test_two_statements_are_refused() -> None:
    with pytest.raises(PlanRefused, match="more than one statement"):
        trimmed("select 1; drop table t")


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from t",
        "select * from t limit 5",
        "select distinct a from t",
        "select a, row_number() over () from t",
        "select * from t join u using (id)",
        "select * from t, u",
        "select * from (select * from t) s",
        "select * from t where id in (select id from u)",
        "with c as (select 1) select * from t",
        "select a from t group by a",
        "select a from t order by a",
        "select 1 union all select a from t",
        "select * from t for update",
        "values (1)",
    ],
)
def test_queries_that_mean_something_else_by_ranges_are_not_split(sql: str) -> None:
    found, why = splittable(sql)
    assert found is None
    assert why


def test_a_restriction_is_put_into_the_users_own_text() -> None:
    found, _ = splittable('select a /* x */ from s."T" as "Q" where a = 1 or b = 2 -- end')
    assert found is not None
    restricted = found.restricted('"Q".ctid >= 1')
    assert restricted == ('select a /* x */ from s."T" as "Q" where ("Q".ctid >= 1) and ( a = 1 or b = 2 -- end\n)')


@given(st.integers(0, 100_000), st.integers(1, 5_000))
def test_ranges_of_blocks_cover_everything_once(blocks: int, per_range: int) -> None:
    bounds = _bounds(blocks, per_range)
    assert bounds[0][0] == 0
    assert bounds[-1][1] is None
    assert all(high == low for (_, high), (low, _) in pairwise(bounds))


def test_key_ranges_take_nulls_first_and_are_open_at_both_ends() -> None:
    conditions = _key_conditions("k", "integer", ["1", "5"])
    assert conditions == [
        "k < '1'::integer or k is null",
        "k >= '1'::integer and k < '5'::integer",
        "k >= '5'::integer",
    ]


def test_a_dsn_never_shows_its_password() -> None:
    config = PostgresConfig(name="shop", dsn="postgresql://me:top%20secret@db:5433/orders?sslmode=disable")
    conninfo = config.conninfo()
    assert dict(conninfo.keywords)["port"] == "5433"
    assert "password='top secret'" in conninfo.libpq()
    shown = f"{config!r} {config} {conninfo!r} {conninfo} {config.model_dump_json()}"
    assert "secret" not in shown
    assert pickle.loads(pickle.dumps(conninfo)) == conninfo  # noqa: S301  our own object


@pytest.mark.parametrize("dsn", ["postgresql://me:hush@db:port/x", "mysql://me:hush@db/x", "postgresql://me:hu%zz@db"])
def test_a_malformed_dsn_is_told_without_repeating_it(dsn: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresConfig(name="shop", dsn=dsn).conninfo()
    assert "hu" not in str(caught.value).replace("shop", "")
    assert caught.value.__cause__ is None
    assert caught.value.remedy


def test_unknown_libpq_keywords_are_refused() -> None:
    with pytest.raises(ValidationError, match="no libpq keyword"):
        PostgresConfig(options={"hots": "x"})


def test_a_password_command_is_run_for_each_connection(tmp_path: object) -> None:
    config = PostgresConfig(name="shop", host="db", password_command="printf 'fresh one'")
    assert "password='fresh one'" in config.conninfo().libpq()


def test_the_position_of_an_sql_error_is_marked() -> None:
    assert marked("select a,\n  b form t", 15) == "line 2:\n    b form t\n      ^"


def test_read_ahead_ends_its_thread_when_the_reader_stops_early() -> None:
    cancelled: list[bool] = []
    ahead = ReadAhead(iter(range(1000)), lambda: cancelled.append(True))
    reader = iter(ahead)
    assert next(reader) == 0
    reader.close()  # type: ignore[attr-defined]  # of a generator
    assert not ahead._thread.is_alive()


def test_read_ahead_carries_errors_over() -> None:
    def items() -> object:
        yield 1
        raise DataError("bad")

    with pytest.raises(DataError, match="bad"):
        list(ReadAhead(items(), lambda: None))  # type: ignore[arg-type]  # any items
