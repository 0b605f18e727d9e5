"""How a DuckDB file is read: splitting, batches bounded by bytes, one moment, incremental windows."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.backends.base import Cursor, ReadRequest, RunContext, Window
from penstock.backends.duckdb import read
from penstock.backends.duckdb.connect import open_file
from penstock.errors import DataError, PlanRefused, SourceError, SourceMoved
from penstock.schema import TableName
from tests.conformance.duckdb_bench import BACKEND, Files, rows_of

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


@pytest.mark.parametrize("name", ["rowid", "RowID"])
def test_a_column_called_rowid_is_not_taken_for_the_row_ids(files: Files, name: str) -> None:
    files.sql(
        "source",
        f"create table t as select case when range % 2 = 0 then range end as {name}, range as id from range(250000)",
    )
    source = files.source()
    split = source.partitions(list(source.schema()), 2)
    got = [value for part in split.partitions for value in rows_of(part.read(), "id")]
    source.close()
    assert sorted(got) == list(range(250_000))
    assert "hides the row ids" in split.reason


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


# ---------------------------------------------------------------- batches


def test_batches_are_bounded_by_bytes(files: Files) -> None:
    files.sql("source", "create table t as select range as id, repeat('x', 2000) as pad from range(60000)")
    source = files.source()
    (part,) = source.partitions(list(source.schema()), 1).partitions
    sizes = [batch.nbytes for batch in part.read()]
    source.close()
    assert len(sizes) > 3
    assert max(sizes) < 2.5 * files.run().batch_bytes


def test_what_was_read_of_the_file_is_let_go(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB keeps it up to its limit: every worker would grow with the table it reads."""
    files.sql("source", "create table t as select hash(range) as a, hash(range + 1) as b from range(6000000)")

    def kept_at_the_end() -> int:
        with closing(files.source()) as source:
            (part,) = source.partitions(list(source.schema()), 1).partitions
            kept = 0
            for _ in part.read():
                with open_file(files.config("source"), read_only=True) as session:
                    kept = session.query("select sum(memory_usage_bytes)::bigint from duckdb_memory()")[0][0]
            return kept

    monkeypatch.setattr(read, "LET_GO_BYTES", sys.maxsize)
    held = kept_at_the_end()
    monkeypatch.setattr(read, "LET_GO_BYTES", 1)
    assert kept_at_the_end() < held / 2


def test_a_query_that_needs_more_memory_gets_what_the_connection_says(files: Files) -> None:
    query = "select list(md5(range::varchar)) as words from range(400000)"

    def read_with(memory_limit: str) -> int:
        config = files.config("source", memory_limit=memory_limit)
        with closing(BACKEND.source(config, ReadRequest(query=query), files.run())) as source:
            (part,) = source.partitions(list(source.schema()), 1).partitions
            return sum(len(words) for words in rows_of(part.read(), "words"))  # type: ignore[arg-type]  # a list

    files.sql("source", "select 1")
    with pytest.raises(SourceError, match="memory_limit") as caught:
        read_with("12MiB")
    assert "raise memory_limit" in caught.value.remedy
    assert read_with("512MiB") == 400_000


BATCH_BYTES = 1024 * 1024


@pytest.mark.parametrize(
    ("width", "rows", "least", "most"),
    [
        (40_000, 3_000, 100, 300),  # a vector of them is 80 times the limit
        (2 * BATCH_BYTES, 5, 5, 5),  # one row is beyond it: a batch of its own
        (100, 50_000, 5, 12),  # narrow rows are joined
    ],
)
def test_no_batch_is_far_beyond_batch_bytes(tmp_path: Path, width: int, rows: int, least: int, most: int) -> None:
    files = Files(tmp_path)
    files.sql("source", f"create table t as select range as id, repeat('x', {width}) as doc from range({rows})")
    run = RunContext("0" * 32, "p", tmp_path / "unused", batch_bytes=BATCH_BYTES)
    source = BACKEND.source(files.config("source"), ReadRequest(table=TableName(None, "t")), run)
    try:
        (part,) = source.partitions(source.schema().columns, 1).partitions
        ids: list[int] = []
        batches = 0
        for batch in part.read():
            batches += 1
            ids += batch.column("id").to_pylist()
            assert batch.num_rows == 1 or batch.get_total_buffer_size() <= 1.1 * BATCH_BYTES
    finally:
        source.close()
    assert sorted(ids) == list(range(rows))
    assert least <= batches <= most


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


# ---------------------------------------------------------------- incremental windows


def windowed(
    files: Files, lower: str | None, cursor: Cursor, on_null: str = "error", now: str = ""
) -> tuple[str, list[object]]:
    source = files.source(keys=("id",))
    source._now = now or source._now  # type: ignore[attr-defined]  # the backend's own part
    try:
        upper = source.upper(cursor)
        window = Window(cursor.column, lower, upper, on_null)  # type: ignore[arg-type]  # a choice of a table of cases
        parts = source.partitions([source.schema()["id"]], 1, window).partitions
        return upper, sorted(value for part in parts for value in rows_of(part.read(), "id"))  # type: ignore[type-var]  # ids are integers
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


def test_the_hour_that_comes_twice_is_read_whole(files: Files) -> None:
    """In Prague clocks went from 03:00 back to 02:00 at 01:00 UTC; a row of every quarter of an hour is written."""
    files.sql("source", 'create table t (id integer, "at" timestamp)')
    got: list[object] = []
    lower = None
    for quarter in range(20):
        moment = f"timestamptz '2024-10-26 23:00:00+00' + to_minutes({quarter} * 15)"
        files.sql("source", f"insert into t select {quarter}, timezone('Europe/Prague', {moment})")
        [(now,)] = files.sql("source", f"select cast({moment} + interval '1 minute' as varchar)")
        lower, ids = windowed(files, lower, Cursor("at", None, "Europe/Prague", lower), now=str(now))
        got += ids
    assert sorted(got) == list(range(20))


@pytest.mark.parametrize(
    ("type_", "upper"), [("timestamp_s", ":10"), ("timestamp_ms", ":10.6"), ("timestamp", ":10.6007")]
)
def test_upper_bound_is_never_ahead_of_the_clock(files: Files, type_: str, upper: str) -> None:
    files.sql("source", f'create table t (id integer, "at" {type_})')
    bound, _ = windowed(files, None, Cursor("at", None, "UTC"), now="2024-01-01 00:00:10.6007+00")
    assert bound == f"2024-01-01 00:00{upper}"


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
