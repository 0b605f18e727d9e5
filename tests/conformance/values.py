"""Every type of each backend with its extremes, as SQL literals of that backend."""

from __future__ import annotations

POSTGRES_SETUP = (
    "create extension if not exists citext",
    "create extension if not exists hstore",
    "create type mood as enum ('sad', 'ok', 'it''s \"fine\"')",
    "create type pair as (x int, y text)",
    "create domain positive as int check (value > 0)",
    "create domain code as varchar(8)",
)

BIG = "1" * 60 + "." + "7" * 40

POSTGRES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768", "32767"),
    "integer": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "real": ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1.17549435e-38", "3.4028235e38", "0.1"),
    "double precision": (
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "'-0'",
        "2.2250738585072014e-308",
        "0.30000000000000004",
    ),
    "numeric": (f"'{BIG}'", "'NaN'", "'Infinity'", "'-Infinity'", "1.10", "1.1", "0", "1e-30"),
    "numeric(38,12)": ("99999999999999999999999999.999999999999", "-0.000000000001", "0", "1.10"),
    "numeric(50,10)": ("'1234567890123456789012345678901234567890.1234567890'", "'NaN'"),
    "numeric(5,-2)": ("123400", "-99900"),
    "numeric(3,5)": ("0.00123",),
    "text": ("''", "'a''b\"c\\\\d'", "E'tab\\tline\\nend'", "'žluťoučký 🐎'", "'NULL'", "' lead and trail '"),
    "varchar(5)": ("'abcde'", "''"),
    "char(5)": ("'ab'", "'abcde'", "''"),
    "citext": ("'MiXeD'",),
    "name": ("'a_name'",),
    '"char"': ("'x'",),
    "bytea": ("'\\x'", "'\\x00ff10'"),
    "date": ("'infinity'", "'-infinity'", "'4713-01-01 BC'", "'0044-03-15 BC'", "'5874897-12-31'", "'1970-01-01'"),
    "time": ("'00:00'", "'24:00:00'", "'23:59:59.999999'"),
    "time(3)": ("'12:34:56.789'",),
    "timetz": ("'12:00:00.5+02'", "'24:00:00-15:59:59'"),
    "timestamp": (
        "'infinity'",
        "'-infinity'",
        "'4713-01-01 00:00:00 BC'",
        "'9999-12-31 23:59:59.999999'",
        "'1970-01-01'",
    ),
    "timestamptz": ("'infinity'", "'-infinity'", "'0044-03-15 12:00:00+00 BC'", "'2024-03-31 02:30:00+01'"),
    "interval": (
        "'1 year 2 mons -3 days 04:05:06.789'",
        "'-178000000 years'",
        "'-1 mons +2 days -00:00:01'",
        "'3000000 hours'",
        "'0'",
        "'24 hours'",
        "'1 day'",
        "'-00:00:00.000001'",
    ),
    "uuid": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "json": ('\'{"a": 1.0,  "a": 2}\'', "'null'", "'\"\\u017e\"'"),
    "jsonb": ("'{\"a\": 1.00}'", "'null'", "'123456789012345678901234567890.10'", "'[]'"),
    "mood": ("'sad'", "'it''s \"fine\"'"),
    "pair": ("row(1, 'a,\"b')::pair", "row(null, '')::pair"),
    "positive": ("1", "2147483647"),
    "code": ("'ab'",),
    "oid": ("4294967295", "0"),
    "money": ("'92233720368547758.07'", "'-0.01'"),
    "inet": ("'10.1.2.3/8'", "'::1'", "'192.168.0.1'"),
    "cidr": ("'10.0.0.0/8'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "bit(5)": ("b'10101'",),
    "bit varying": ("b''", "b'1010101010101'"),
    "int4range": ("'[1,5)'", "'empty'", "'(,)'"),
    "numrange": ("'[1.10,2.20]'",),
    "tstzrange": ("'[2024-01-01 00:00+00,infinity)'",),
    "int4multirange": ("'{[1,3),[5,9)}'", "'{}'"),
    "point": ("'(1.5,-2)'",),
    "box": ("'(2,2),(1,1)'",),
    "circle": ("'<(1,2),3>'",),
    "path": ("'[(1,2),(3,4)]'",),
    "tsvector": ("'fat cat'",),
    "tsquery": ("'fat & cat'",),
    "pg_lsn": ("'16/B374D848'",),
    "xid8": ("'18446744073709551615'",),
    "hstore": ("'a=>1, b=>NULL'",),
    "jsonpath": ("'$.a[*]'",),
    "integer[]": ("'{1,NULL,3}'", "'{}'"),
    "text[]": ('\'{"a,b","",NULL,"NULL"}\'', "'{}'"),
    "numeric(10,2)[]": ("'{1.10,NULL}'",),
    "numeric[]": ("'{1.10,NaN}'",),
    "timestamptz[]": ("'{2024-01-01 00:00+00,NULL}'", "'{infinity,-infinity}'"),
    "date[]": ("'{2024-01-01}'",),
    "uuid[]": ("'{00000000-0000-0000-0000-000000000001}'",),
    "boolean[]": ("'{t,f,NULL}'",),
    "double precision[]": ("'{NaN,-0,0.1}'",),
    "mood[]": ("'{sad,ok}'",),
    "inet[]": ("'{10.0.0.1}'",),
    "integer[][]": ("'{{1,2},{3,4}}'",),
    "jsonb[]": ("array['{\"a\": 1}'::jsonb]",),
    "pair[]": ("array[row(1, 'a')::pair]",),
}

# Values that Postgres keeps and that only its own kind takes: see docs/reference/refusals.md.
POSTGRES_ONLY: dict[str, tuple[str, ...]] = {
    "numeric(10,2)": ("'NaN'",),
    "timestamp": ("'294276-12-31 23:59:59.999999'",),
    "interval": ("'infinity'",),
    "integer[]": ("'[2:3]={1,2}'", "'{{1,2},{3,4}}'"),
}

DUCKDB: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127"),
    "SMALLINT": ("-32768", "32767"),
    "INTEGER": ("-2147483648", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "HUGEINT": ("-170141183460469231731687303715884105728", "170141183460469231731687303715884105727"),
    "UTINYINT": ("255",),
    "USMALLINT": ("65535",),
    "UINTEGER": ("4294967295",),
    "UBIGINT": ("18446744073709551615",),
    "UHUGEINT": ("340282366920938463463374607431768211455",),
    "FLOAT": ("'nan'", "'inf'", "'-inf'", "'-0.0'", "0.1"),
    "DOUBLE": ("'nan'", "'inf'", "'-inf'", "'-0.0'", "0.30000000000000004"),
    "DECIMAL(38,12)": ("99999999999999999999999999.999999999999", "-0.000000000001"),
    "DECIMAL(4,1)": ("-999.9",),
    "VARCHAR": ("''", "'a''b'", "'🐎'", "'NULL'"),
    "BLOB": ("'\\x00\\xFF'::blob", "''::blob"),
    "DATE": ("'infinity'", "'-infinity'", "'0044-03-15 (BC)'", "'9999-12-31'"),
    "TIME": ("'24:00:00'", "'23:59:59.999999'"),
    "TIMESTAMP": ("'infinity'", "'-infinity'", "'0044-03-15 (BC) 12:00:00'", "'9999-12-31 23:59:59.999999'"),
    "TIMESTAMP_S": ("'2024-01-01 00:00:01'",),
    "TIMESTAMP_MS": ("'2024-01-01 00:00:01.5'",),
    "TIMESTAMPTZ": ("'infinity'", "'-infinity'", "'2024-03-31 02:30:00+01'"),
    "INTERVAL": ("interval '1 year 2 months -3 days'", "interval '-1 month'", "interval '-00:00:00.000001'"),
    "UUID": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "JSON": ('\'{"a": 1.0,  "a": 2}\'', "'null'"),
    "BIT": ("'10101'",),
    "TIMETZ": ("'12:00:00.5+02'",),
    "ENUM('a', 'b')": ("'a'", "'b'"),
    "INTEGER[]": ("[1, null, 3]", "[]"),
    "VARCHAR[]": ("['a,b', '', null]",),
    "DECIMAL(10,2)[]": ("[1.10]",),
    "DATE[]": ("['2024-01-01'::date]",),
    "UUID[]": ("['00000000-0000-0000-0000-000000000001'::uuid]",),
}

# Types that DuckDB gives to its own kind only.
DUCKDB_ONLY: dict[str, tuple[str, ...]] = {
    "TIMESTAMP_NS": ("'2024-01-01 00:00:00.123456789'",),
    "TIME_NS": ("'12:00:00.123456789'",),
    "STRUCT(a INTEGER, b VARCHAR)": ("{'a': 1, 'b': 'x'}",),
    "MAP(VARCHAR, INTEGER)": ("map {'k': 1}",),
    "INTEGER[][]": ("[[1, 2], [3]]",),
    "INTEGER[2]": ("[1, 2]::integer[2]",),
}


def table_sql(types: dict[str, tuple[str, ...]], table: str) -> list[str]:
    """A table with a column per type; row n holds each type's n-th value, then NULL."""
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(types))
    height = max(len(values) for values in types.values()) + 1
    statements = [f"create table {table} (id integer primary key, {columns})"]
    for row in range(height):
        cells = [values[row] if row < len(values) else "null" for values in types.values()]
        statements.append(f"insert into {table} values ({row}, {', '.join(cells)})")
    return statements


def text_query(types: dict[str, tuple[str, ...]], table: str, cast: str) -> str:
    """Every cell as the database's own text."""
    cells = ", ".join(f"cast(c{n} as {cast})" for n in range(len(types)))
    return f"select id, {cells} from {table} order by id"
