"""Postgres' types and values: out and in with the server's own text, and casts to a type the user asks for."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.backends.base import Source, Verdict
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import BeyondArrow
from penstock.schema import Column
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY
from tests.conformance.postgres_bench import Bench, Database, new_run, read_all
from tests.conformance.values import DOMAINS, POSTGRES, POSTGRES_ONLY

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("type_sql", [*POSTGRES, *POSTGRES_ONLY])
def test_exactness_every_type_arrives_with_the_servers_own_text(
    type_sql: str, typed: tuple[Database, Database], bench: Callable[..., Bench]
) -> None:
    one, two = typed
    name = f"t{uuid.uuid4().hex[:12]}"
    values = (*POSTGRES.get(type_sql, ()), *POSTGRES_ONLY.get(type_sql, ()), "null")
    rows = ", ".join(f"({number}, ({value})::{type_sql})" for number, value in enumerate(values))
    one.execute(f"create table {name} (id int primary key, v {type_sql})", f"insert into {name} values {rows}")
    work = bench(one, two, name)
    columns = work.columns()
    # The names that some types hold are looked up in the target.
    looked_up = type_sql.startswith("reg") or type_sql == "aclitem"
    assert [s.native.verdict for s in columns] == [Verdict.EXACT, Verdict.CHECKED if looked_up else Verdict.EXACT]
    try:
        result = work.load(columns)
    except BeyondArrow as error:
        told = (error.columns, bool(error.keys), columns[1].native.fallback)
        result = work.load(work.columns(texts=("v",)))
    else:
        told = (("v",), True, True)
    assert told == (("v",), True, True)
    assert result.inserted == len(values)
    answer = f"select id, v::text, row(v)::text, format_type(atttypid, atttypmod) from {name}, pg_attribute"
    where = f" where attrelid = '{name}'::regclass and attname = 'v' order by id"
    # A domain arrives as its base type; all other types as themselves.
    cut = 3 if type_sql in DOMAINS else 4
    left, right = one.query(answer + where), two.query(answer + where)
    assert [row[:cut] for row in left] == [row[:cut] for row in right]
    assert two.leftovers() == []


def test_exactness_infinities_are_the_canonical_ones(db: Database, opened: Callable[..., Source]) -> None:
    values = ("infinity", "-infinity", "2000-01-01")
    rows = ", ".join(f"('{v}'::date, '{v}'::timestamp, '{v}'::timestamptz, array['{v}'::date])" for v in values)
    table = read_all(opened(db, f"select * from (values {rows}) as v(d, t, z, a)"))
    assert table["d"].cast(pa.int32()).to_pylist() == [DATE_INFINITY, -DATE_INFINITY, 10957]
    for name in "tz":
        numbers = table[name].cast(pa.int64()).to_pylist()
        assert numbers == [TIMESTAMP_INFINITY, -TIMESTAMP_INFINITY, 946_684_800_000_000]
    assert table["a"].combine_chunks().flatten().cast(pa.int32()).to_pylist()[:2] == [DATE_INFINITY, -DATE_INFINITY]


@pytest.mark.parametrize("value", ["'{{1,2},{3,4}}'", "'[0:1]={1,2}'"])
def test_exactness_an_array_of_another_shape_never_passes_as_a_list(
    value: str, db: Database, opened: Callable[..., Source]
) -> None:
    db.execute("create table t (id int primary key, a int[])", f"insert into t values (1, '{{1}}'), (42, {value})")
    source = opened(db, table="public.t", keys=("id",))
    with pytest.raises(BeyondArrow) as caught:
        read_all(source)
    assert caught.value.columns == ("a",)
    assert caught.value.keys == ("id=42",)
    text = [c.as_text() for c in source.schema()]
    batches = [b for p in source.partitions(text, 1).partitions for b in p.read()]
    assert batches[0].column("a").to_pylist()[1] == value.strip("'")


def test_exactness_nan_in_a_decimal_is_told_with_its_key(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t (id int primary key, n numeric(10,2))", "insert into t values (7, 1.5), (8, 'NaN')")
    with pytest.raises(BeyondArrow) as caught:
        read_all(opened(db, table="public.t", keys=("id",)))
    assert (caught.value.columns, caught.value.keys) == (("n",), ("id=8",))


def test_an_enum_that_the_target_lacks_is_made_there(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute("create schema s", "create type s.mood as enum ('a', 'b''c')", "create table t (id int, v s.mood)")
    one.execute("insert into t values (1, 'b''c')")
    bench(one, two).load()
    assert two.query("select v::text, enum_range(null::s.mood)::text from t") == [("b'c", "{a,b'c}")]


CASTS: list[tuple[str, str, list[str], list[str]]] = [
    # from, to, what fits, what does not
    (
        "text",
        "integer",
        ["'7'", "'-12'", "'1.0'", "null"],
        ["'x'", "'1.5'", "'99999999999'", "'007'", "' 8 '", "'+8'", "'1e2'", "'-0'", "''", "'NaN'"],
    ),
    ("text", "numeric(5,2)", ["'1.50'", "'999.99'"], ["'1.505'", "'1000'", "''", "'007'", "'1e2'", "'.5'", "'-0.0'"]),
    ("text", "numeric", ["'NaN'", "'-Infinity'", "'12345678901234567890.10'"], ["'1e2'", "'01'", "' 1'", "'nan'"]),
    ("text", "numeric(5,2)[]", ["'{1.50,NULL}'"], ["'{1.505}'", "'{1000}'", "'x'"]),
    ("text", "interval(0)", ["'00:00:01'", "'1 day'"], ["'00:00:01.5'", "'x'"]),
    ("char(5)", "integer", ["'7'", "'1.0'"], ["'007'", "' 7'"]),
    ("text", "date", ["'2024-02-29'"], ["'2024-02-30'", "'2024-01-01 10:00'"]),
    ("text", "timestamptz", ["'2024-01-01T00:00:00Z'"], ["'2024-01-01 00:00:00.1234567'", "'never'"]),
    ("text", "varchar(3)", ["'abc'", "''"], ["'abcd'", "'abc '"]),
    ("text", "uuid", ["'00000000-0000-0000-0000-000000000001'"], ["'0'"]),
    (
        "text",
        "double precision",
        ["'0.1'", "'1e300'", "'-0'", "'NaN'", "'-Infinity'"],
        ["'1e400'", "'0.1000000000000000055511151231257827'", "'007'", "' 1'", "'+1'"],
    ),
    ("bigint", "integer", ["1", "-2147483648"], ["2147483648"]),
    ("bigint", "double precision", ["9007199254740992"], ["9007199254740993"]),
    ("numeric(20,4)", "numeric(10,2)", ["1.2300"], ["1.2390", "123456789.0000"]),
    ("numeric(20,4)", "bigint", ["7.0000"], ["7.5000"]),
    ("double precision", "integer", ["7", "0"], ["7.5", "'NaN'", "1e300", "'Infinity'", "'-0'"]),
    ("double precision", "real", ["0.5", "'NaN'", "'Infinity'"], ["0.1", "1e300", "1e-300"]),
    ("double precision", "numeric(10,2)", ["0.5"], ["0.123", "'Infinity'", "'-0'"]),
    ("timestamp", "date", ["'2024-01-01'", "'infinity'"], ["'2024-01-01 00:00:00.000001'"]),
    ("timestamptz", "timestamp(0)", ["'2024-01-01 10:00:00+00'"], ["'2024-01-01 10:00:00.5+00'"]),
    ("date", "timestamp", ["'2024-01-01'", "'-infinity'"], ["'300000-01-01'"]),
]


@pytest.mark.parametrize(("own", "want", "fits", "unfit"), CASTS, ids=[f"{c[0]}-{c[1]}" for c in CASTS])
def test_casts_are_checked_forth_and_back_without_raising(
    own: str, want: str, fits: list[str], unfit: list[str], db: Database, opened: Callable[..., Source]
) -> None:
    [column] = opened(db, f"select null::{own} as v").schema()
    target = PostgresTarget(db.config, new_run())
    native = target.native(Column("v", column.type, column.logical, column.native), None, want)
    target.close()
    assert native.verdict is Verdict.CHECKED
    valid = native.valid.replace("{}", '"v"')
    rows = ", ".join(f"(({value})::{own})" for value in (*fits, *unfit))
    found = db.query(f"select {valid} from (values {rows}) as t(v)")
    assert [row[0] for row in found] == [True] * len(fits) + [False] * len(unfit)
    decoded = ", ".join(f"(({value})::{own})" for value in fits)
    db.query(f"select ({native.decode.replace('{}', 'v')})::text from (values {decoded}) as t(v)")
