"""DuckDB's types and values: out and in, the same to DuckDB itself."""

from __future__ import annotations

import duckdb
import psycopg
import pyarrow as pa
import pytest

from penstock.backends.duckdb import types
from penstock.schema import Column, Logical
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.duckdb_bench import Files, load_batches

TYPES: dict[str, tuple[str, list[str]]] = {  # name → (type, values)
    "bool": ("BOOLEAN", ["true", "false"]),
    "int1": ("TINYINT", ["-128", "127"]),
    "int2": ("SMALLINT", ["-32768", "32767"]),
    "int4": ("INTEGER", ["-2147483648", "2147483647"]),
    "int8": ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    "uint1": ("UTINYINT", ["0", "255"]),
    "uint2": ("USMALLINT", ["0", "65535"]),
    "uint4": ("UINTEGER", ["0", "4294967295"]),
    "uint8": ("UBIGINT", ["0", "18446744073709551615"]),
    "float": ("FLOAT", ["-0.0", "nan", "inf", "-inf", "1e-45", "3.4028235e38"]),
    "double": ("DOUBLE", ["-0.0", "nan", "inf", "-inf", "5e-324", "0.1"]),
    "decimal": ("DECIMAL(38,12)", ["12345678901234567890123456.123456789012", "-0.000000000001"]),
    "decimal4": ("DECIMAL(4,1)", ["-999.9", "0.0"]),
    "text": ("VARCHAR", ["", "NULL", "ünï\n\tçødé", "'\"\\"]),
    "blob": ("BLOB", ["", "\\x00\\xFF", "a"]),
    "date": ("DATE", ["infinity", "-infinity", "5877642-06-25 (BC)", "5881580-07-10", "0044-03-15 (BC)"]),
    "time": ("TIME", ["00:00:00", "24:00:00", "23:59:59.999999"]),
    "time ns": ("TIME_NS", ["00:00:00.000000001", "23:59:59.999999999"]),
    "ts": ("TIMESTAMP", ["infinity", "-infinity", "290309-12-22 (BC) 00:00:00", "294247-01-10 04:00:54.775806"]),
    "ts_s": ("TIMESTAMP_S", ["infinity", "-infinity", "1969-12-31 23:59:59", "294247-01-10 04:00:54"]),
    "ts_ms": ("TIMESTAMP_MS", ["infinity", "-infinity", "1969-12-31 23:59:59.999"]),
    "ts_ns": ("TIMESTAMP_NS", ["infinity", "-infinity", "1969-12-31 23:59:59.999999999"]),
    "tstz": ("TIMESTAMP WITH TIME ZONE", ["infinity", "-infinity", "0001-01-01 (BC) 00:00:00+00"]),
    "tstz_ns": ("TIMESTAMPTZ_NS", ["2020-01-01 00:00:00.123456789+00"]),
    "uuid": ("UUID", ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    "json": ("JSON", ['{"a":  1.00, "a": 2}', "null", '"text"']),
    "interval": ("INTERVAL", ["-1 year -1 month -1 day -00:00:00.000001", "1 day -1 hour", "24:00:00"]),
    "huge": ("HUGEINT", ["-170141183460469231731687303715884105728"]),
    "uhuge": ("UHUGEINT", ["340282366920938463463374607431768211455"]),
    "bignum": ("BIGNUM", ["-" + "9" * 60]),
    "bit": ("BIT", ["0", "000101"]),
    "timetz": ("TIME WITH TIME ZONE", ["24:00:00-15:59:59", "12:00:00.123456+02:30"]),
    "enum": ("ENUM('sad', 'it''s, ok')", ["sad", "it's, ok"]),
    "ints": ("INTEGER[]", ["[]", "[1, NULL]"]),
    "bools": ("BOOLEAN[]", ["[true, NULL, false]"]),
    "uuids": ("UUID[]", ["[ffffffff-ffff-ffff-ffff-ffffffffffff, NULL]"]),
    "huges": ("HUGEINT[]", ["[-170141183460469231731687303715884105728]"]),
    "intervals": ("INTERVAL[]", ["['-1 month', NULL]"]),
    "nested": ("VARCHAR[][]", ["[[], NULL, ['NULL', NULL, '']]"]),
    "array": ("INTEGER[3]", ["[1, 2, 3]"]),
    "struct": ('STRUCT(a BOOLEAN, "b c" HUGEINT, d UUID)', ["{'a': true, 'b c': 7, 'd': NULL}"]),
    "structs": ("STRUCT(a TIMESTAMP WITH TIME ZONE)[]", ["[{'a': '2020-01-01 00:00:00+00'}, NULL]"]),
    "map": ("MAP(VARCHAR, BOOLEAN)", ["{a=true, b=NULL}", "{}"]),
}


def seed_types(files: Files) -> list[tuple[object, ...]]:
    longest = max(len(values) for _, values in TYPES.values())
    columns = ", ".join(f'"{name}" {type_}' for name, (type_, _) in TYPES.items())
    with duckdb.connect(str(files.folder / "source.duckdb")) as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(f"create table t (nr integer, {columns})")
        for number in range(longest + 1):  # the last row holds nothing but NULL
            row = [values[number] if number < len(values) else None for _, values in TYPES.values()]
            marks = ", ".join(f"cast(? as {type_})" for type_, _ in TYPES.values())
            connection.execute(f"insert into t values ({number}, {marks})", row)
    return files.sql("source", texts())


def texts() -> str:
    return "select " + ", ".join(f'cast("{name}" as varchar)' for name in TYPES) + " from t order by nr"


def test_every_type_out_and_in_is_the_same_to_duckdb_itself(files: Files) -> None:
    seeded = seed_types(files)
    with_types = "select column_name, data_type from duckdb_columns() where table_name = 't' order by column_index"
    source = files.source()
    files.copy(source.schema(), source)
    assert files.sql("target", texts()) == seeded
    assert files.sql("target", with_types) == files.sql("source", with_types)


def test_batches_are_exactly_the_columns_asked_for(files: Files) -> None:
    seed_types(files)
    source = files.source()
    schema = source.schema()
    asked = [schema["uuid"], schema["ints"], schema["nr"], schema["bool"], schema["tstz"]]
    (part,) = source.partitions(asked, 1).partitions
    for batch in part.read():
        assert batch.schema.names == ["uuid", "ints", "nr", "bool", "tstz"]
        assert batch.schema.types == [column.type for column in asked]
    source.close()


def test_every_type_has_a_text_form(files: Files) -> None:
    seeded = seed_types(files)
    source = files.source()
    asked = [source.schema()["nr"], *(source.schema()[name].as_text() for name in TYPES if name != "interval")]
    (part,) = source.partitions(asked, 1).partitions
    table = pa.Table.from_batches(list(part.read())).sort_by("nr")
    source.close()
    for place, name in enumerate(TYPES):
        if name != "interval":
            assert table.column(name).to_pylist() == [row[place] for row in seeded]


def test_kept_as_text_reads_back_as_the_type(files: Files) -> None:
    columns = [
        Column("net", pa.string(), Logical("native"), "postgres:inet"),
        Column("short", pa.string(), None, "postgres:varchar(5)"),
        Column("mood", pa.string(), Logical("enum", ("sad", "ok")), "postgres:mood"),
        Column("plain", pa.string()),
    ]
    load_batches(files, columns, pa.record_batch({c.name: pa.array(["x"]) for c in columns}))
    with_memory = files.source("target").schema()
    assert [with_memory[c.name] for c in columns[:3]] == columns[:3]
    assert with_memory["plain"].native in {"", "duckdb:VARCHAR"}


INTERVALS = [
    "1 year 2 mons -3 days +04:05:06.789",
    "-1 years -2 mons +3 days -04:05:06.789",
    "1 mon",
    "-1 mons",
    "-1 days +00:00:00.000001",
    "1 day -00:00:00.000001",
    "00:00:00",
    "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775807",
    "178956970 years 7 mons 2147483647 days 2562047788:00:54.775806",
    "3000000:00:00.1",
]


@pytest.mark.postgres
def test_intervals_are_printed_as_postgres_prints_them(postgres_server: EmbeddedPostgres) -> None:
    # Postgres cannot read its own text of the smallest time, and takes all three greatest parts
    # together for infinity.
    parts = [-(2**31), -13, -12, -11, -1, 0, 1, 11, 12, 25, 2**31 - 1]
    micros = [1 - 2**63, -3_600_000_001, -60_000_000, -1, 0, 1, 500_000, 86_400_000_000, 2**63 - 2]
    with duckdb.connect() as connection:
        printed = connection.execute(
            f"select {types.interval_text('x')} from (select to_months(m::int) + to_days(d::int) + to_microseconds(u) x"
            " from unnest(?) a(m), unnest(?) b(d), unnest(?::bigint[]) c(u))",
            [parts, parts, micros],
        ).fetchall()
        texts_ = [text for (text,) in printed] + INTERVALS
        read_back = connection.execute(
            f"select {types.interval_text(types.interval_of('x'))} from unnest(?) t(x)", [texts_]
        ).fetchall()
    with psycopg.connect(postgres_server.dsn) as postgres:
        found = postgres.execute(
            "select x::interval::text from unnest(%s::text[]) with ordinality as t(x, n) order by n", (texts_,)
        ).fetchall()
    assert [text for (text,) in found] == texts_
    assert sorted(text for (text,) in read_back) == sorted(texts_)


def test_the_test_of_types_covers_the_tables() -> None:
    covered = {type_ for type_, _ in TYPES.values()}
    assert set(types.ARROW) | types.AS_TIMESTAMP <= covered
    refused = {name.upper() for name, kind in types.AS_TEXT.items() if kind == types.OPAQUE}
    assert {name.upper() for name in types.AS_TEXT} - refused <= covered
