"""DuckDB's own rules: its types out and in, one moment, staging, locks and the commit."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends import staging
from penstock.backends.base import (
    RAW,
    STAGED,
    Cursor,
    Execute,
    LoadPlan,
    ReadRequest,
    Receipt,
    RunContext,
    Source,
    StagedColumn,
    TableLoad,
    UserSql,
    Window,
)
from penstock.backends.duckdb import DuckDBBackend, DuckDBConfig, read, types
from penstock.backends.duckdb.connect import open_file
from penstock.backends.locks import FileLock
from penstock.errors import (
    Busy,
    ConnectionFailed,
    DataError,
    LinkLost,
    PlanRefused,
    SourceError,
    SourceMoved,
    StagingLost,
    TargetError,
)
from penstock.schema import Column, ColumnDef, CreateTable, Logical, Schema, TableName
from penstock.testing.postgres import EmbeddedPostgres

BACKEND = DuckDBBackend()

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


@dataclass
class Files:
    """Two files in a folder, and runs between them without Spark."""

    folder: Path
    lock_timeout: float = 10
    made: list[str] = field(default_factory=list)

    def config(self, name: str, **options: object) -> DuckDBConfig:
        path = str(self.folder / f"{name}.duckdb")
        return DuckDBConfig.model_validate({"path": path, "name": name, "lock_timeout": self.lock_timeout, **options})

    def sql(self, name: str, *statements: str) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        with duckdb.connect(str(self.folder / f"{name}.duckdb")) as connection:
            connection.execute("set TimeZone = 'UTC'")
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def run(self, pipeline: str = "orders") -> RunContext:
        return RunContext(uuid.uuid4().hex, pipeline, self.folder / "unused")

    def source(self, name: str = "source", **request: object) -> Source:
        made = {"table": TableName(None, "t")} if "query" not in request else {}
        return BACKEND.source(self.config(name), ReadRequest(**(made | request)), self.run())  # type: ignore[arg-type]

    def plan(self, columns: Sequence[Column], run: RunContext | None = None, table: str = "t") -> LoadPlan:
        """Create the table if it is not there, and append."""
        run = run or self.run()
        target = BACKEND.target(self.config("target"), run)
        name = target.qualify(TableName(None, table))
        existing = target.inspect(name)
        staged = tuple(
            StagedColumn(c.name, c, target.native(c, existing.column(c.name) if existing else None, None))
            for c in columns
        )
        quote = target.dialect.quote
        decoded = ", ".join(
            f"{s.native.decode.replace('{}', quote(s.column.name))} as {quote(s.column.name)}" for s in staged
        )
        names = ", ".join(quote(s.column.name) for s in staged)
        create = CreateTable(name, tuple(ColumnDef(s.column.name, s.native.sql) for s in staged))
        steps = [Execute(sql) for sql in (target.render(create) if existing is None else [])]
        steps.append(Execute(f"create temp view {STAGED} as select {decoded} from {RAW}"))
        into = f"insert into {target.dialect.relation(name)} ({names}) select {names} from {STAGED}"
        steps.append(Execute(into, "inserted"))
        watermark, continues = json.dumps({"run": run.run_id}), target.watermark(run.pipeline, name)
        return LoadPlan(run, (TableLoad(name, staged, tuple(steps)),), watermark, continues)

    def copy(self, schema: Schema, source: Source, want: int = 1) -> LoadPlan:
        plan = self.plan(list(schema))
        load = BACKEND.target(self.config("target"), plan.run).begin(plan)
        try:
            split = source.partitions(list(schema), want)
            sink = pickle.loads(pickle.dumps(load.sink(0)))  # noqa: S301  as Spark carries it
            parts = pickle.loads(pickle.dumps(split.partitions))  # noqa: S301
            receipts = [sink.write(number, part.read()) for number, part in enumerate(parts)]
            source.close()
            load.commit(receipts)
        finally:
            load.close()
        return plan

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if ".penstock" in path.name)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


INTS = [Column("id", pa.int64())]


def ints(*values: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": pa.array(values, pa.int64())})


def rows_of(batches: Iterator[pa.RecordBatch], name: str) -> list[object]:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


# ---------------------------------------------------------------- types


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


def load_batches(files: Files, columns: Sequence[Column], *batches: pa.RecordBatch) -> LoadPlan:
    plan = files.plan(columns)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    try:
        load.commit([load.sink(0).write(0, iter(batches))])
    finally:
        load.close()
    return plan


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


# ---------------------------------------------------------------- splitting


@pytest.mark.parametrize("deleted", ["", "delete from t where id % 3 = 0 or id between 100 and 90000"])
def test_row_id_ranges_are_complete_and_disjoint(files: Files, monkeypatch: pytest.MonkeyPatch, deleted: str) -> None:
    monkeypatch.setattr(read, "MIN_ROWS", 1_000)
    files.sql("source", "create table t as select range as id from range(150000)", *([deleted] if deleted else []))
    expected = [row[0] for row in files.sql("source", "select id from t order by id")]
    source = files.source()
    split = source.partitions(list(source.schema()), 7)
    parts = [rows_of(part.read(), "id") for part in split.partitions]
    source.close()
    assert len(parts) == 7
    assert sorted(value for part in parts for value in part) == expected
    assert max(map(len, parts)) < 2 * len(expected) / 7
    assert "row ids" in split.reason


def test_small_tables_views_limits_and_queries_are_one_partition(files: Files) -> None:
    files.sql("source", "create table t as select range as id from range(500000)", "create view v as from t")
    for request in ({"table": TableName(None, "v")}, {"query": "from t"}, {"limit": 7}):
        source = files.source(**request)
        split = source.partitions(list(source.schema()), 4)
        assert len(split.partitions) == 1
        assert "one partition" in split.reason
        got = rows_of(split.partitions[0].read(), "id")
        assert len(got) == (7 if "limit" in request else 500_000)
        source.close()


@pytest.mark.parametrize(
    "values",
    [
        "select case when range % 10 = 0 then null when range % 11 = 0 then 'nan'::double"
        " when range % 13 = 0 then 'inf'::double when range % 17 = 0 then '-inf'::double else random() end as k",
        "select case when range % 10 = 0 then range else 5 end as k",
        "select null::integer as k",
        "select 'key ''' || range as k",
        "select timestamptz '2020-01-01' + to_seconds(range) as k",
    ],
)
def test_partition_on_loses_and_doubles_nothing(files: Files, values: str) -> None:
    files.sql("source", f"create table t as {values}, range as id from range(20000)")
    source = files.source(query="select k, id from t where id >= 0", partition_on="k")
    split = source.partitions(list(source.schema()), 6)
    got = [value for part in split.partitions for value in rows_of(part.read(), "id")]
    source.close()
    assert sorted(got) == list(range(20_000))
    assert len(split.partitions) == 1 or f"runs {len(split.partitions)} times" in split.reason


def test_batches_are_bounded_by_bytes(files: Files) -> None:
    files.sql("source", "create table t as select range as id, repeat('x', 2000) as pad from range(60000)")
    source = files.source()
    (part,) = source.partitions(list(source.schema()), 1).partitions
    sizes = [batch.nbytes for batch in part.read()]
    source.close()
    assert len(sizes) > 3
    assert max(sizes) < 2.5 * files.run().batch_bytes


# ---------------------------------------------------------------- one moment


def test_nobody_writes_while_a_source_is_open(files: Files) -> None:
    files.sql("source", "create table t as select 1 as id")
    source = files.source()
    writer = f"import duckdb; duckdb.connect({str(files.folder / 'source.duckdb')!r})"
    held = subprocess.run([sys.executable, "-c", writer], capture_output=True, text=True, check=False)
    assert "Conflicting lock" in held.stderr
    source.close()
    assert subprocess.run([sys.executable, "-c", writer], capture_output=True, check=False).returncode == 0


def test_an_abandoned_read_lets_go_of_the_file(files: Files) -> None:
    files.sql("source", "create table t as select range as id from range(500000)")
    source = files.source()
    (part,) = source.partitions(list(source.schema()), 1).partitions
    reading = part.read()
    next(reading)
    reading.close()
    source.close()
    with open_file(files.config("source", lock_timeout=0), read_only=False) as session:
        session.execute("insert into t values (1)")


def test_a_replaced_file_is_noticed_by_the_worker(files: Files) -> None:
    files.sql("source", "create table t as select 1 as id")
    source = files.source()
    (part,) = source.partitions(list(source.schema()), 1).partitions
    source.close()
    files.sql("source", "insert into t values (2)")
    with pytest.raises(SourceMoved):
        list(part.read())


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that has the file open for writing, until its input is closed."""
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_held_by_another_process_is_waited_for_then_named(files: Files, read_only: bool) -> None:
    files.sql("source", "create table t as select 1 as id")
    with hold(files.folder / "source.duckdb") as holder:
        with pytest.raises(LinkLost, match=rf"process {holder.pid} .*0\.3 s") as raised:
            open_file(files.config("source", lock_timeout=0.3), read_only=read_only)
        assert raised.value.retryable
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(open_file, files.config("source"), read_only=read_only)
            assert holder.stdin is not None
            holder.stdin.close()
            waiting.result(timeout=20).close()


def test_one_process_has_one_writer_and_no_reader_beside_it(files: Files) -> None:
    files.sql("source", "create table t as select 1 as id")
    config = files.config("source", lock_timeout=0.1)
    readers = [open_file(config, read_only=True) for _ in range(2)]
    with pytest.raises(LinkLost, match="open in this process"):
        open_file(config, read_only=False)
    for reader in readers:
        reader.close()
    with open_file(config, read_only=False):
        for read_only in (True, False):
            with pytest.raises(LinkLost, match="open in this process"):
                open_file(config, read_only=read_only)
    open_file(config, read_only=False).close()


# ---------------------------------------------------------------- what users write


def test_a_missing_file_a_missing_table_and_no_database_are_told_apart(files: Files) -> None:
    with pytest.raises(ConnectionFailed, match="no DuckDB file"):
        files.source()
    assert BACKEND.target(files.config("source"), files.run()).inspect(TableName(None, "t")) is None
    (files.folder / "source.duckdb").write_text("hello" * 5000)
    with pytest.raises(ConnectionFailed, match="not a valid DuckDB database"):
        files.source()
    files.sql("other", "create table u (id int)")
    with pytest.raises(SourceError, match=r"no table main\.t"):
        files.source("other")


@pytest.mark.parametrize("tail", [";", ";;  ", " -- note", " -- note\n;", "/* ; */ ; -- ;"])
def test_trailing_semicolons_and_comments_are_harmless(files: Files, tail: str) -> None:
    files.sql("source", "create table t as select 1 as id")
    source = files.source(query=f"select id, ';' as semi from t{tail}")
    (part,) = source.partitions(list(source.schema()), 1).partitions
    assert rows_of(part.read(), "semi") == [";"]
    source.close()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select id,\n nope from t", "LINE 2:  nope from t\n         ^"),
        ("select id frm t where", "syntax error"),
        ("select * from missing", "LINE 1: select * from missing"),
        ("delete from t returning id", "found DELETE"),
        ("select 1; select 2", "found SELECT, SELECT"),
        ("-- nothing", "no statement"),
    ],
)
def test_bad_sql_is_shown_with_its_position(files: Files, query: str, told: str) -> None:
    files.sql("source", "create table t as select 1 as id")
    with pytest.raises(SourceError) as raised:
        files.source(query=query)
    assert told in str(raised.value)
    files.sql("source", "insert into t values (2)")  # and the file is free again


def test_a_name_twice_in_a_query_is_refused(files: Files) -> None:
    files.sql("source", "create table t as select 1 as id")
    with pytest.raises(PlanRefused, match="more than once"):
        files.source(query='select id, id as "ID" from t')


def test_cell_values_stay_out_of_errors(files: Files) -> None:
    files.sql("source", "create table t as select 'secret-7' as id")
    source = files.source(query="select cast(id as integer) as id from t")
    (part,) = source.partitions(list(source.schema()), 1).partitions
    with pytest.raises(DataError) as raised:
        list(part.read())
    source.close()
    assert "secret-7" not in json.dumps(raised.value.to_record())
    assert "INT32" in str(raised.value)


# ---------------------------------------------------------------- incremental windows


def windowed(files: Files, lower: str | None, cursor: Cursor, on_null: str = "error") -> tuple[str, list[object]]:
    source = files.source(keys=("id",))
    try:
        upper = source.upper(cursor)
        window = Window(cursor.column, lower, upper, on_null)  # type: ignore[arg-type]
        parts = source.partitions([source.schema()["id"]], 1, window).partitions
        return upper, sorted(value for part in parts for value in rows_of(part.read(), "id"))  # type: ignore[type-var]
    finally:
        source.close()


def test_integer_windows_are_half_open_and_lag_in_units(files: Files) -> None:
    files.sql("source", "create table t as select range::integer as id from range(10)")
    assert windowed(files, "3", Cursor("id", "2", None)) == ("8", [3, 4, 5, 6, 7])
    files.sql("source", "insert into t values (2147483647)")
    assert windowed(files, "9", Cursor("id", None, None)) == ("2147483648", [9, 2147483647])
    files.sql("source", "delete from t")
    assert windowed(files, "9", Cursor("id", None, None))[1] == []


def test_timestamp_windows_end_at_the_clock_minus_lag(files: Files) -> None:
    files.sql(
        "source",
        'create table t (id integer, "at" timestamptz, local timestamp, day date)',
        "insert into t select range, now() - to_hours(range), timezone('Asia/Tokyo', now()) - to_hours(range),"
        " current_date - range::integer from range(4)",
    )
    assert windowed(files, None, Cursor("at", "90m", None))[1] == [2, 3]
    assert windowed(files, None, Cursor("local", "90m", "Asia/Tokyo"))[1] == [2, 3]
    assert windowed(files, None, Cursor("day", None, "UTC"))[1] == [1, 2, 3]  # today is not over
    with pytest.raises(PlanRefused, match="no time zone"):
        windowed(files, None, Cursor("local", None, None))


def test_null_cursors_are_an_error_included_or_skipped(files: Files) -> None:
    files.sql("source", 'create table t as select range as id, nullif(range, 1) as "at" from range(3)')
    with pytest.raises(DataError, match="no value in the cursor") as raised:
        windowed(files, None, Cursor("at", None, None))
    assert raised.value.keys == ("id=1",)
    assert windowed(files, None, Cursor("at", None, None), "include")[1] == [0, 1, 2]
    assert windowed(files, None, Cursor("at", None, None), "skip")[1] == [0, 2]


@pytest.mark.parametrize("type_", ["double", "varchar", "uuid", "time"])
def test_cursors_without_a_next_value_are_refused(files: Files, type_: str) -> None:
    files.sql("source", f'create table t (id integer, "at" {type_})')
    with pytest.raises(PlanRefused, match="cannot be an incremental cursor"):
        windowed(files, None, Cursor("at", None, None))


# ---------------------------------------------------------------- staging


def test_racing_attempts_leave_one_receipt_and_one_file(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda _: sink.write(3, ints(*range(1000))), range(8)))
    assert len(set(receipts)) == 1
    assert [path.name for path in area.folder.glob("*.parquet")] == [receipts[0].ref]
    assert sink.write(3, ints(1)) == receipts[0]
    assert area.files(0, [receipts[0]])
    area.close()
    assert not (files.folder / "stage").exists()


def test_a_failed_task_leaves_neither_file_nor_receipt(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ints(1, 2)
        raise SourceError("the link broke")

    with pytest.raises(SourceError):
        area.sink(0, INTS).write(0, broken())
    assert [path.name for path in area.folder.iterdir()] == [staging.TOKEN]
    area.close()


def test_a_worker_without_the_token_writes_nothing(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    with pytest.raises(StagingLost, match="is not here"):
        replace(sink, folder=files.folder).write(0, ints(1))
    area.remove()
    with pytest.raises(StagingLost, match="is not here"):
        sink.write(0, ints(1))
    area.close()


def test_other_columns_than_planned_are_refused_by_name(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, [Column("a", pa.int64()), Column("b", pa.int64())])
    swapped = pa.record_batch({"b": pa.array([2], pa.int64()), "a": pa.array([1], pa.int64())})
    receipt = sink.write(0, iter([swapped]))
    assert pq.read_table(area.folder / receipt.ref).to_pylist() == [{"a": 1, "b": 2}]
    with pytest.raises(TargetError, match="other columns"):
        sink.write(1, ints(1))
    area.close()


def test_a_full_disk_is_said_and_leaves_nothing(files: Files) -> None:
    area = staging.StagingArea.create(files.folder / "stage", files.run())
    sink = area.sink(0, INTS)
    batches = (pa.record_batch({"id": pa.array(range(n, n + 100_000), pa.int64())}) for n in range(0, 10**6, 10**5))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(TargetError, match="the disk is full"):
            sink.write(0, batches)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in area.folder.iterdir()] == [staging.TOKEN]
    area.close()


def test_free_space_is_checked_before_staging(files: Files) -> None:
    with pytest.raises(TargetError, match="the disk is full"):
        staging.StagingArea.create(files.folder / "stage", files.run(), expected_bytes=2**60)
    assert files.leftovers() == []
    assert not (files.folder / "stage").exists()


# ---------------------------------------------------------------- locks and sweeps


def test_a_second_run_is_told_who_holds_the_target(files: Files) -> None:
    first = files.plan(INTS, files.run("first"))
    load = BACKEND.target(files.config("target"), first.run).begin(first)
    second = files.plan(INTS, files.run("second"))
    with pytest.raises(Busy, match=rf"pipeline 'first', run {first.run.run_id}, process {os.getpid()}"):
        BACKEND.target(files.config("target"), second.run).begin(second)
    load.close()
    BACKEND.target(files.config("target"), second.run).begin(second).close()
    assert files.leftovers() == []


def test_the_sweep_takes_dead_runs_and_spares_live_ones(files: Files) -> None:
    base = files.config("target").staging_base
    live = staging.StagingArea.create(base, files.run())
    dead = base / uuid.uuid4().hex
    dead.mkdir()
    (dead / staging.TOKEN).write_text(dead.name)
    (dead / "t0-p0-x.parquet").write_text("left")
    (base / f"{dead.name}.lock").touch()
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    assert not dead.exists()
    assert live.folder.exists()
    assert (live.folder / staging.TOKEN).exists()
    load.close()
    live.close()
    assert files.leftovers() == []


def test_a_killed_driver_frees_its_lock_and_the_next_run_sweeps(files: Files) -> None:
    lock = files.config("target").lock_file
    code = (
        "import os, sys; from pathlib import Path; from penstock.backends.locks import FileLock\n"
        f"FileLock.acquire(Path({str(lock)!r}), 'r', 'p', 't'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert FileLock.try_acquire(lock) is None
        holder.kill()
        holder.wait()
    load_batches(files, INTS, *ints(1))
    assert files.leftovers() == []


# ---------------------------------------------------------------- the commit


def test_a_load_carries_watermark_and_owner_and_leaves_one_file(files: Files) -> None:
    plan = load_batches(files, INTS, *ints(1, 2, 3))
    target = BACKEND.target(files.config("target"), files.run())
    name = TableName("main", "t")
    assert json.loads(target.watermark("orders", name) or "") == {"run": plan.run.run_id}
    assert target.watermark("other", name) is None
    found = target.inspect(name)
    assert found is not None
    assert (found.owners, found.loaded) == (frozenset({"orders"}), frozenset({"id"}))
    assert [path.name for path in files.folder.iterdir()] == ["target.duckdb"]  # no log, no staging, no lock
    assert [info.name for info in BACKEND.tables(files.config("target"))] == [name]


def test_zero_parts_and_zero_rows_load_nothing(files: Files) -> None:
    for parts in (0, 1):
        plan = files.plan(INTS)
        load = BACKEND.target(files.config("target"), plan.run).begin(plan)
        done = load.commit([load.sink(0).write(0, iter(()))] if parts else [])
        load.close()
        assert (done.rows, done.inserted) == (0, 0)
    assert files.sql("target", "select count(*) from t") == [(0,)]


@pytest.mark.parametrize("harm", ["gone", "cut", "rows", "twice"])
def test_staging_that_is_not_what_the_receipts_say_commits_nothing(files: Files, harm: str) -> None:
    load_batches(files, INTS, *ints(0))
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipts = [load.sink(0).write(part, ints(part, part)) for part in range(2)]
    file = files.config("target").staging_base / plan.run.run_id / receipts[1].ref
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        os.truncate(file, 40)
    elif harm == "rows":
        receipts[1] = replace(receipts[1], rows=3)
    else:
        receipts.append(receipts[1])
    with pytest.raises(StagingLost):
        load.commit(receipts)
    load.close()
    assert files.sql("target", "select id from t") == [(0,)]
    assert files.leftovers() == []


def test_staged_types_other_than_planned_are_refused(files: Files) -> None:
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    path = files.config("target").staging_base / plan.run.run_id / "t0-p0-x.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), path)
    forged = Receipt(0, 0, 1, path.stat().st_size, path.name)
    with pytest.raises(StagingLost, match="INTEGER instead of BIGINT"):
        load.commit([forged])
    load.close()
    assert BACKEND.target(files.config("target"), plan.run).inspect(TableName(None, "t")) is None


def test_files_without_a_receipt_are_never_loaded(files: Files) -> None:
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    folder = files.config("target").staging_base / plan.run.run_id
    pq.write_table(pa.table({"id": pa.array([9], pa.int64())}), folder / "t0-p0-lost.parquet")
    load.commit([receipt])
    load.close()
    assert files.sql("target", "select id from t") == [(1,)]


@pytest.mark.parametrize("where", ["commit.begin", "commit.loaded"])
def test_a_failure_before_commit_leaves_the_target_as_it_was(
    files: Files, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    load_batches(files, INTS, *ints(0))
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", f"{where}=raise")
    with pytest.raises(RuntimeError, match=where):
        load.commit([receipt])
    load.close()
    assert files.sql("target", "select id from t") == [(0,)]
    assert files.sql("target", "select count(*) from _penstock.loads") == [(1,)]


def test_a_commit_killed_after_its_answer_is_replayed_by_the_next_opener(files: Files) -> None:
    plan = files.plan(INTS)
    code = (
        "import pickle, sys; from penstock.backends.duckdb import DuckDBBackend\n"
        "config, plan, batches = pickle.load(sys.stdin.buffer)\n"
        "load = DuckDBBackend().target(config, plan.run).begin(plan)\n"
        "load.commit([load.sink(0).write(0, iter(batches))])"
    )
    payload = pickle.dumps((files.config("target"), plan, list(ints(1, 2))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=payload,
        check=False,
        env=os.environ | {"PENSTOCK_FAILPOINTS": "commit.done=kill"},
    )
    assert done.returncode == -9
    assert files.sql("target", "select id from t order by id") == [(1,), (2,)]
    assert BACKEND.target(files.config("target"), plan.run).watermark("orders", TableName("main", "t")) is not None
    load_batches(files, INTS, *ints(3))
    assert files.leftovers() == []


def test_a_lost_answer_to_commit_is_looked_up_not_repeated(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    # DuckDB answers the second COMMIT of a transaction with an error: the first has taken effect.
    again = load._send_commit  # type: ignore[attr-defined]

    def twice(session: object, *done: object) -> None:
        session.connection.execute("commit")  # type: ignore[attr-defined]
        again(session, *done)

    monkeypatch.setattr(load, "_send_commit", twice)
    assert load.commit([receipt]).inserted == 1
    load.close()
    assert files.sql("target", "select id from t") == [(1,)]


def test_a_broken_constraint_is_a_data_error_and_commits_nothing(files: Files) -> None:
    files.sql("target", "create table t (id bigint primary key)", "insert into t values (1)")
    with pytest.raises(DataError, match="constraint") as raised:
        load_batches(files, INTS, *ints(2, 1))
    assert '"1"' not in str(raised.value)
    assert files.sql("target", "select id from t") == [(1,)]


def test_user_sql_that_ends_the_transaction_is_caught(files: Files) -> None:
    plan = files.plan(INTS)
    table = plan.tables[0]
    plan = replace(plan, tables=(replace(table, steps=(*table.steps, UserSql("commit", "transforms_post[0]"))),))
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    receipt = load.sink(0).write(0, ints(1))
    with pytest.raises(TargetError, match="ended the load's transaction"):
        load.commit([receipt])
    load.close()


def test_inside_one_file_nothing_is_staged(files: Files) -> None:
    files.sql("target", "create table origin as select range as id from range(5)")
    source = files.source("target", query="select id as number, interval '1 day' as span from origin;")
    (number,) = (column for column in source.schema() if column.name == "number")
    query = source.select_sql([(number, "id")])
    source.close()
    plan = replace(files.plan(INTS), native_query=query)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    assert not files.config("target").staging_base.exists()
    assert load.commit([]).rows == 5
    load.close()
    assert files.sql("target", "select count(*) from t") == [(5,)]
    assert BACKEND.same_database(files.config("target"), files.config("target"))[0]
    assert not BACKEND.same_database(files.config("target"), files.config("source"))[0]


def test_several_tables_commit_together(files: Files) -> None:
    run = files.run()
    first, second = files.plan(INTS, run, "t"), files.plan(INTS, run, "u")
    plan = replace(first, tables=first.tables + second.tables)
    load = BACKEND.target(files.config("target"), run).begin(plan)
    receipts = [load.sink(0).write(0, ints(1)), load.sink(1).write(0, ints(2, 3))]
    assert load.commit(receipts).inserted == 3
    load.close()
    assert files.sql("target", "select * from t union all select * from u order by 1") == [(1,), (2,), (3,)]


# ---------------------------------------------------------------- planning


def test_inspect_tells_keys_defaults_generated_columns_and_constraints(files: Files) -> None:
    files.sql(
        "target",
        "create table t (id integer primary key, name varchar collate nocase default 'x', twice integer as (id * 2),"
        " rate double check (rate > 0))",
        "create view v as select 1 as id",
    )
    target = BACKEND.target(files.config("target"), files.run())
    found = target.inspect(TableName(None, "T"))
    assert found is not None
    assert found.primary_key == ("id",)
    assert [(c.name, c.type_sql, c.nullable, c.has_default, c.generated) for c in found.columns] == [
        ("id", "INTEGER", False, False, False),
        ("name", "VARCHAR COLLATE nocase", True, True, False),
        ("twice", "INTEGER", True, True, True),
        ("rate", "DOUBLE", True, False, False),
    ]
    assert any("CHECK" in note for note in found.notes)
    view = target.inspect(TableName(None, "v"))
    assert view is not None
    assert view.refusals == ("main.v is a view",)


def test_paths_that_cannot_be_written_are_said_at_planning(files: Files) -> None:
    nowhere = files.config("target").model_copy(update={"path": str(files.folder / "no" / "t.duckdb")})
    with pytest.raises(TargetError, match="there is no folder"):
        BACKEND.target(nowhere, files.run())
    with pytest.raises(TargetError, match="read-only"):
        BACKEND.target(files.config("target", read_only=True), files.run())
    memory = DuckDBConfig(path=":memory:", name="scratch")
    with pytest.raises(ConnectionFailed, match="in-memory"):
        BACKEND.source(memory, ReadRequest(query="select 1"), files.run())


def test_a_schema_named_like_its_file_is_refused(files: Files) -> None:
    with pytest.raises(PlanRefused, match="name of its file"):
        BACKEND.target(files.config("shop", schema="shop"), files.run()).inspect(TableName(None, "t"))


def test_the_version_is_told(files: Files) -> None:
    files.sql("source", "select 1")
    assert BACKEND.test(files.config("source")) == f"DuckDB {duckdb.__version__}"


def test_the_test_of_types_covers_the_tables() -> None:
    covered = {type_ for type_, _ in TYPES.values()}
    assert set(types.ARROW) | types.AS_TIMESTAMP <= covered
    refused = {name.upper() for name, kind in types.AS_TEXT.items() if kind == types.OPAQUE}
    assert {name.upper() for name in types.AS_TEXT} - refused <= covered
