"""Every type of each backend with its extremes, as SQL literals of that backend."""

from __future__ import annotations

POSTGRES_SETUP = (
    "create extension if not exists citext",
    "create extension if not exists hstore",
    "create type mood as enum ('sad', 'ok', 'it''s \"fine\"')",
    "create type pair as (x int, y text)",
    "create domain positive as int check (value > 0)",
    "create domain code as varchar(8)",
    "create domain codes as text[] check (cardinality(value) < 9)",
    "create type nested as (p pair, m mood[], n positive, r int4range)",
)

# A domain is its base type elsewhere.
DOMAINS = {"positive": "integer", "code": "character varying(8)", "codes": "text[]"}

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
    '"char"': ("'x'", "''"),
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
    "codes": ("'{a,NULL,\"b,c\"}'", "'{}'"),
    "nested": ("row(row(1, 'a,\"b')::pair, '{sad,ok}'::mood[], 7, '[1,3)'::int4range)::nested",),
    "oid": ("4294967295", "0"),
    "money": ("'92233720368547758.07'", "'-0.01'"),
    "inet": ("'10.1.2.3/8'", "'::1'", "'192.168.0.1'"),
    "cidr": ("'10.0.0.0/8'", "'2001:db8::/32'"),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "bit(5)": ("b'10101'",),
    "bit varying": ("b''", "b'1010101010101'"),
    "int4range": ("'[1,5)'", "'empty'", "'(,)'"),
    "int8range": ("'[-9223372036854775808,9223372036854775807)'", "'empty'"),
    "numrange": ("'[1.10,2.20]'", "'(,NaN]'"),
    "tsrange": ("'[2024-01-01 00:00:00.000001,infinity)'", "'(-infinity,)'"),
    "tstzrange": ("'[2024-01-01 00:00+00,infinity)'",),
    "daterange": ("'[2024-01-01,2024-02-01)'", "'[0044-03-15 BC,infinity)'"),
    "int4multirange": ("'{[1,3),[5,9)}'", "'{}'"),
    "int8multirange": ("'{[1,3),[5,9223372036854775807)}'", "'{}'"),
    "nummultirange": ("'{[1.10,2.20],[3,4)}'", "'{}'"),
    "tsmultirange": ("'{[2024-01-01 00:00,2024-01-02 00:00),[2025-01-01 00:00,infinity)}'", "'{}'"),
    "tstzmultirange": ("'{[2024-01-01 00:00+00,2024-01-02 00:00+00)}'", "'{}'"),
    "datemultirange": ("'{[2024-01-01,2024-02-01),[2025-01-01,)}'", "'{}'"),
    "point": ("'(1.5,-2)'", "'(NaN,-Infinity)'", "'(0.1,1e300)'"),
    "line": ("'{1,-1,0.1}'",),
    "lseg": ("'[(1,2),(3,4)]'",),
    "box": ("'(2,2),(1,1)'",),
    "path": ("'[(1,2),(3,4)]'", "'((1,2),(3,4))'"),
    "polygon": ("'((0,0),(1,1),(2,0))'",),
    "circle": ("'<(1,2),3>'",),
    "tsvector": ("'fat cat'", "'a:1A fat:2B,4C'"),
    "tsquery": ("'fat & cat'", "'!a <-> b:*A'"),
    "pg_lsn": ("'16/B374D848'", "'FFFFFFFF/FFFFFFFF'"),
    "pg_snapshot": ("'10:20:10,14,15'",),
    "txid_snapshot": ("'10:20:10,14,15'",),
    "xid": ("'4294967295'",),
    "xid8": ("'18446744073709551615'",),
    "cid": ("'4294967295'",),
    "tid": ("'(4294967295,65535)'",),
    "refcursor": ("'a cursor'",),
    "aclitem": ("'pg_monitor=r*w/pg_monitor'", "'=r/pg_monitor'"),
    "int2vector": ("'1 -32768'",),
    "oidvector": ("'1 4294967295'",),
    "regclass": ("'pg_class'", "'information_schema.tables'", "'4294967295'", "'-'"),
    "regcollation": ("'\"C\"'",),
    "regconfig": ("'english'",),
    "regdictionary": ("'simple'",),
    "regnamespace": ("'information_schema'",),
    "regoper": ("'||/'",),
    "regoperator": ("'+(integer,integer)'",),
    "regproc": ("'now'",),
    "regprocedure": ("'abs(integer)'",),
    "regrole": ("'pg_monitor'",),
    "regtype": ("'timestamp with time zone'", "'integer[]'"),
    "hstore": ("'a=>1, b=>NULL'",),
    "jsonpath": ("'$.a[*]'",),
    "xml": (),  # a value needs a server that is built with libxml
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
    "bytea[]": ("array['\\x00ff'::bytea, null, '\\x']",),
    "pair[]": ("array[row(1, 'a')::pair]",),
    "positive[]": ("'{1,NULL}'",),
    "int4range[]": ("'{\"[1,5)\",empty,NULL}'",),
}

# Types that the server prints but does not read: what its own catalogs are made of.
POSTGRES_PRINTED: dict[str, tuple[str, ...]] = {
    "pg_node_tree": ("(select ev_action from pg_rewrite order by oid limit 1)",),
    "pg_ndistinct": (),
    "pg_dependencies": (),
    "pg_mcv_list": (),
    "pg_brin_bloom_summary": (),
    "pg_brin_minmax_multi_summary": (),
    "gtsvector": (),
}


def arrays(types: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """An array of each type, with all its values and NULL."""
    return {
        f"{name}[]": (f"array[{', '.join([*(f'({value})::{name}' for value in values), 'null'])}]::{name}[]",)
        for name, values in types.items()
        if not name.endswith("[]") and name != "codes"  # there is no array of arrays
    }


# How DuckDB prints what it holds, where that is not how Postgres prints it.
_FLOATS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "-0": "-0.0"}
DUCKDB_PRINTS: dict[str, dict[str, str]] = {
    "real": _FLOATS,
    "double precision": _FLOATS,
    "char(5)": {"ab": "ab   ", "": "     "},  # the cast to text is what cuts the padding in Postgres
    "bytea": {"\\x": "", "\\x00ff10": "\\x00\\xFF\\x10"},
    "date": {"4713-01-01 BC": "4713-01-01 (BC)", "0044-03-15 BC": "0044-03-15 (BC)"},
    "timestamp": {"4713-01-01 00:00:00 BC": "4713-01-01 (BC) 00:00:00"},
    "timestamptz": {"0044-03-15 12:00:00+00 BC": "0044-03-15 (BC) 12:00:00+00"},
    "interval": {
        "1 year 2 mons -3 days +04:05:06.789": "1 year 2 months -3 days 04:05:06.789",
        "-1 mons +2 days -00:00:01": "-1 month 2 days -00:00:01",
    },
    "money": {"$92,233,720,368,547,758.07": "92233720368547758.07", "-$0.01": "-0.01"},
    "codes": {'{a,NULL,"b,c"}': "[a, NULL, 'b,c']", "{}": "[]"},
    "integer[]": {"{1,NULL,3}": "[1, NULL, 3]", "{}": "[]"},
    "text[]": {'{"a,b","",NULL,"NULL"}': "['a,b', '', NULL, 'NULL']", "{}": "[]"},
    "numeric(10,2)[]": {"{1.10,NULL}": "[1.10, NULL]"},
    "timestamptz[]": {
        '{"2024-01-01 00:00:00+00",NULL}': "['2024-01-01 00:00:00+00', NULL]",
        "{infinity,-infinity}": "[infinity, -infinity]",
    },
    "date[]": {"{2024-01-01}": "[2024-01-01]"},
    "uuid[]": {"{00000000-0000-0000-0000-000000000001}": "[00000000-0000-0000-0000-000000000001]"},
    "boolean[]": {"{t,f,NULL}": "[true, false, NULL]"},
    "double precision[]": {"{NaN,-0,0.1}": "[nan, -0.0, 0.1]"},
    "bytea[]": {'{"\\\\x00ff",NULL,"\\\\x"}': "['\\\\x00\\\\xFF', NULL, '']"},
}
# What DuckDB has a type of its own for; everything else is text there.
DUCKDB_TYPES = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "positive": "INTEGER",
    "bigint": "BIGINT",
    "oid": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "numeric(38,12)": "DECIMAL(38,12)",
    "bytea": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "time(3)": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "uuid": "UUID",
    "json": "JSON",
    "jsonb": "JSON",
    "codes": "VARCHAR[]",
    "integer[]": "INTEGER[]",
    "text[]": "VARCHAR[]",
    "numeric(10,2)[]": "DECIMAL(10,2)[]",
    "timestamptz[]": "TIMESTAMP WITH TIME ZONE[]",
    "date[]": "DATE[]",
    "uuid[]": "UUID[]",
    "boolean[]": "BOOLEAN[]",
    "double precision[]": "DOUBLE[]",
    "bytea[]": "BLOB[]",
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
