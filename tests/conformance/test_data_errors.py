"""Values that do not fit: told with their column and key, before the load, and never by the value itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import DataError, PenstockError
from penstock.run import pipeline as runs
from penstock.schema.columns import DATE_INFINITY
from tests.conformance.conftest import BACKENDS
from tests.conformance.harness import Flow, Harness
from tests.conformance.postgres_bench import Bench, Database

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

AS_INTEGER = {"v": "integer"}


@pytest.fixture(params=BACKENDS)
def quick(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into each backend."""
    return Flow(harness("postgres"), harness(request.param), tmp_path)


@pytest.mark.parametrize("name", ["a{b}", "{0}", "{", "50%"])
def test_errors_name_columns_that_look_like_templates(quick: Flow, name: str) -> None:
    quick.source.execute(f'create table items (id int primary key, "{name}" text)')
    quick.source.execute("insert into items values (1, '1'), (2, 'x')")
    with pytest.raises(DataError) as caught:
        quick.run(columns={name: "integer"})
    assert f"column {name} " in caught.value.what
    assert caught.value.keys == ("id=2",)
    quick.target.execute(f'create table {quick.target.schema}.items (id int, "{name}" varchar not null)')
    quick.source.execute(f'update items set "{name}" = null where id = 2')
    with pytest.raises(DataError) as caught:
        quick.run(columns={name: "varchar"})
    assert f"column {name} " in caught.value.what


# ---------------------------------------------------------------- at the source


@pytest.mark.parametrize("value", ["numeric(5,2) 'NaN'", "int[] '{{1},{2}}'", "timestamp '294276-12-31'"])
def test_errors_at_the_source_name_rows_by_the_tables_own_key(
    harness: Callable[[str], Harness], tmp_path: Path, value: str
) -> None:
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    type_, _, cell = value.partition(" ")
    flow.source.execute(f"create table items (v {type_}, id int, region text, primary key (id, region))")
    flow.source.execute(f"insert into items values (null, 1, 'eu'), ({cell}, 42, 'us')")
    with pytest.raises(DataError) as caught:
        flow.run()
    assert caught.value.keys[0].replace("'", "") == "id=42, region=us"


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_a_row_without_a_cursor_is_named_by_the_tables_own_key(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    flow = Flow(harness(backend), harness("postgres"), tmp_path)
    flow.source.execute("create table items (id int primary key, n int)", "insert into items values (1, 1), (42, null)")
    with pytest.raises(DataError) as caught:
        flow.run(incremental="n", lag="0")
    assert caught.value.keys == ("id=42",)


# ---------------------------------------------------------------- texts as numbers


@pytest.mark.parametrize("text", ["007", " 8 ", "+8", "1e2", "-0", "1.5", ".5", "", "x", "99999999999"])
def test_errors_a_text_that_no_integer_gives_back_is_told_with_its_key(quick: Flow, text: str) -> None:
    quick.source.execute("create table items (id int primary key, v text)", "insert into items values (1, '8')")
    quick.source.execute(f"insert into items values (2, '{text}')")
    with pytest.raises(DataError, match="column v has a value") as caught:
        quick.run(columns=AS_INTEGER)
    assert caught.value.keys == ("id=2",)


def test_errors_a_text_that_is_an_integer_is_one(quick: Flow) -> None:
    quick.run(
        query="select * from (values (1, '7'), (2, '-12'), (3, '1.0'), (4, null)) as t(id, v)", columns=AS_INTEGER
    )
    assert quick.target.query("select v from items order by id") == [(7,), (-12,), (1,), (None,)]


@pytest.mark.parametrize("type_", ["integer", "decimal(10,2)"])
def test_errors_a_negative_zero_does_not_lose_its_sign(quick: Flow, type_: str) -> None:
    with pytest.raises(DataError, match="column v has a value"):
        quick.run(query="select 1 as id, '-0'::float8 as v", columns={"v": type_})


# ---------------------------------------------------------------- times into Postgres


@pytest.mark.parametrize("digits", ["1234", "123456789"])
@pytest.mark.parametrize(
    ("type_", "asked", "value"),
    [("TIMESTAMP_NS", "timestamp(3)", "2024-01-02 03:04:05"), ("TIME_NS", "time(3)", "03:04:05")],
)
def test_errors_nanoseconds_asked_for_as_fewer_digits_are_not_rounded(
    harness: Callable[[str], Harness], tmp_path: Path, type_: str, asked: str, value: str, digits: str
) -> None:
    flow = Flow(harness("duckdb"), harness("postgres"), tmp_path)
    rows = f"(1, '{value}.123'::{type_}), (2, '{value}'::{type_})"
    flow.source.execute(f"create table items (id int, t {type_})", f"insert into items values {rows}")
    flow.run(columns={"t": asked})
    assert flow.target.query("select t::text from items order by id") == [(f"{value}.123",), (value,)]
    flow.source.execute(f"insert into items values (3, '{value}.{digits}'::{type_})")
    with pytest.raises(DataError) as caught:
        flow.run(columns={"t": asked}, keys=["id"])
    assert caught.value.keys == ("id=3",)
    assert flow.target.query("select count(*) from items") == [(2,)]


def test_errors_the_date_before_the_servers_first_is_not_infinite(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute("create table t (id int, d date)")
    work = bench(one, two)
    loading, _ = work.begin()
    sink = loading.sink(0)

    def batch(days: int) -> pa.RecordBatch:
        dates = pa.array([days], pa.int32()).view(pa.date32())
        return pa.RecordBatch.from_arrays([pa.array([7], pa.int32()), dates], ["id", "d"])

    try:
        with pytest.raises(DataError) as caught:
            sink.write(0, iter([batch(-(2**31) + 10_957)]))
        assert caught.value.keys == ("id=7",)
        loading.commit([sink.write(1, iter([batch(-DATE_INFINITY)]))])
    finally:
        loading.close()
    assert two.query("select d::text from t") == [("-infinity",)]


# ---------------------------------------------------------------- other people's words

RAISES = """
create function tell(v text) returns text language plpgsql as $$
begin raise exception 'no %', v using errcode = 'CODE', detail = v, hint = v; end $$
"""
CODES = ["AB001", "P0001", "22012", "42501", "42P01", "40001", "53100", "57014", "25006", "XX000"]


@pytest.mark.parametrize("code", CODES)
def test_errors_of_a_function_of_the_target_are_not_repeated(
    harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Its author chooses the code, and the words may quote any cell."""
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.target.execute(
        RAISES.replace("CODE", code),
        "create table items (id int, v text)",
        "create function f() returns trigger language plpgsql as $$ begin perform tell(new.v); return new; end $$",
        "create trigger watch before insert on items for each row execute function f()",
    )
    with pytest.raises(PenstockError) as caught:
        flow.run(query="select 1 as id, 'secret-cell' as v")
    assert "secret-cell" not in str(caught.value.to_record())
    [record] = flow.store.runs()
    assert "secret-cell" not in str(record)


@pytest.mark.parametrize("code", CODES)
def test_errors_of_a_function_of_the_source_are_not_repeated(
    harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    flow.source.execute(
        RAISES.replace("CODE", code),
        "create table items (id int, v text)",
        "insert into items values (1, 'secret-cell')",
    )
    with pytest.raises(PenstockError) as caught:
        flow.run(query="select id, tell(v) as v from items")
    assert "secret-cell" not in str(caught.value.to_record())


def test_errors_of_the_server_itself_are_told(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.target.execute("create procedure ends() language plpgsql as $$ begin commit; end $$")
    for sql, why in (("call ends()", "invalid transaction termination"), ("select nothing()", "does not exist")):
        with pytest.raises(PenstockError, match=why):
            flow.run(query="select 1 as id", transforms_post=[sql])
