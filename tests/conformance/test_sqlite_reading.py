"""How a SQLite file is read: what its columns are, one moment, locks, and files that are none."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.base import Cursor, ReadRequest, Window
from penstock.backends.sqlite.connect import Session, open_source
from penstock.backends.sqlite.marks import FileMark
from penstock.backends.sqlite.read import SQLitePartition
from penstock.errors import ConnectionFailed, DataError, LinkLost, PlanRefused, SourceError, SourceMoved
from penstock.schema import TableName
from tests.conformance.harness import SQLiteHarness
from tests.conformance.sqlite_bench import BACKEND, Bench, holding, sqlite

__all__ = ["sqlite"]

# ---------------------------------------------------------------- what a column is


def test_6_sqlite_the_type_of_a_foreign_column_is_its_affinity_or_what_it_holds(sqlite: Bench) -> None:
    sqlite.sql(
        "create table t (id integer primary key, i bigint, r float, v varchar(20), b blob, d decimal(10,2),"
        " m decimal(10,2), w datetime, bare, empty numeric)",
        "insert into t values (1, 7, 1.5, '007', x'00', 3, 3, '2024-01-01 00:00:00', 'x', null),"
        " (2, null, 2, '', x'', 4, 1.25, null, 'y', null)",
    )
    assert sqlite.types() == {
        "id": "int64",
        "i": "int64",
        "r": "double",
        "v": "string",
        "b": "binary",
        "d": "int64",  # 3 and 4 are integers to SQLite, whatever the declaration says
        "m": "double",
        "w": "string",
        "bare": "string",
        "empty": "string",
    }
    assert sqlite.rows() == [
        (1, 7, 1.5, "007", b"\0", 3, 3.0, "2024-01-01 00:00:00", "x", None),
        (2, None, 2.0, "", b"", 4, 1.25, None, "y", None),
    ]


@pytest.mark.parametrize(
    ("declared", "cells"),
    [
        ("integer", "7, 'seven'"),
        ("integer", "7, 7.5"),
        ("real", "1.5, 'x'"),
        ("varchar(9)", "'a', x'00'"),
    ],
)
def test_6_sqlite_a_cell_of_another_storage_class_is_a_data_error_with_its_key(
    sqlite: Bench, declared: str, cells: str
) -> None:
    one, other = cells.split(", ")
    sqlite.sql(
        f"create table t (id integer primary key, v {declared})", f"insert into t values (1, {one}), (5, {other})"
    )
    with pytest.raises(DataError, match="column 'v' holds cells that are no") as caught:
        sqlite.rows()
    assert caught.value.keys == ("id=5",)
    assert "cast(v as text)" in caught.value.remedy
    assert [row[1] for row in sqlite.rows(query="select id, cast(v as text) as v from t where id = 1")] == [
        one.strip("'")
    ]


def test_6_sqlite_a_late_value_of_another_class_is_not_taken_for_the_first_ones(sqlite: Bench) -> None:
    """ADBC takes a column's type from its first values: text after 5,000 integers made a text of none of them."""
    sqlite.sql(
        "create table t (id integer primary key, v integer)",
        "insert into t with recursive g(n) as (select 1 union all select n + 1 from g where n < 5000)"
        " select n, n from g",
    )
    assert len(sqlite.rows()) == 5000
    sqlite.sql("insert into t values (5001, 'late')")
    with pytest.raises(DataError) as caught:
        sqlite.rows()
    assert caught.value.keys == ("id=5001",)


@pytest.mark.parametrize("cells", ["1), ('x'", "1.5), (9007199254740993", "x'00'), ('x'"])
def test_6_sqlite_a_loose_column_of_several_classes_is_refused_with_what_would_do(sqlite: Bench, cells: str) -> None:
    sqlite.sql("create table t (v)", f"insert into t values ({cells})")
    with pytest.raises(PlanRefused, match="column 'v' holds cells of several storage classes") as caught:
        sqlite.types()
    assert "cast(v as text)" in caught.value.remedy
    assert sqlite.types(query="select cast(v as text) as v from t") == {"v": "string"}


def test_integers_among_reals_are_checked_again_when_they_are_read(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v numeric)", "insert into t values (1, 1.5), (2, 2)")
    with closing(sqlite.open()) as source:
        (part,) = source.partitions(list(source.schema()), 1).partitions
        sqlite.sql("insert into t values (3, 9007199254740993)")
        with pytest.raises(DataError) as caught:
            list(part.read())
    assert caught.value.keys == ("id=3",)


def test_a_query_and_a_view_are_what_all_their_rows_are(sqlite: Bench) -> None:
    sqlite.sql(
        "create table t (id integer primary key, v text)",
        "insert into t values (1, 'a'), (2, null)",
        "create view w as select id, v, id * 0.5 as half from t",
    )
    assert sqlite.types(table=TableName(None, "w")) == {"id": "int64", "v": "string", "half": "double"}
    assert sqlite.rows(query="select count(*) as n, max(v) as top, null as none from t") == [(2, "a", None)]
    assert sqlite.types(query="select 1 as a where false") == {"a": "string"}


def test_generated_columns_tables_without_row_ids_and_odd_names_are_read(sqlite: Bench) -> None:
    sqlite.sql(
        'create table "T ""x" (a text, "B c" integer, twice integer as ("B c" * 2), stored text as (a || a) stored,'
        ' primary key (a, "B c")) without rowid',
        'insert into "T ""x" (a, "B c") values (\'k\', 4)',
    )
    for name in ('T "x', 't "X'):  # SQLite does not tell upper from lower case
        assert sqlite.rows(table=TableName("main", name)) == [("k", 4, 8, "kk")]
    with closing(sqlite.open(table=TableName(None, 'T "x'))) as source:
        assert source.primary_key() == ("a", "B c")


def test_a_column_that_another_program_has_written_to_is_found_with_its_key(sqlite: Bench) -> None:
    sqlite.sql("create table items (id integer primary key, d text)", "insert into items values (1, '2024-01-01')")
    flow = sqlite.flow()
    flow.run(columns={"d": "date"}, mode="merge")
    sqlite.target.execute("update items set d = 'yesterday'")
    sqlite.source.path = sqlite.target.path
    with pytest.raises(DataError, match="column 'd' holds a value that is no") as caught:
        sqlite.rows(table=TableName(None, "items"))
    assert caught.value.keys == ("id=1",)


def test_a_text_that_is_no_utf8_is_a_data_error(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v text)", "insert into t values (1, cast(x'ff41' as text))")
    with pytest.raises(DataError, match="column 'v' holds a text that is not UTF-8") as caught:
        sqlite.rows()
    assert caught.value.keys == ("id=1",)


def test_nul_characters_and_empty_values_come_as_they_are(sqlite: Bench) -> None:
    sqlite.sql("create table t (v text, b blob)", "insert into t values ('a' || char(0) || 'b', x''), ('', null)")
    assert sqlite.rows() == [("a\0b", b""), ("", None)]


# ---------------------------------------------------------------- what users write


@pytest.mark.parametrize("tail", [";", ";;  ", " -- note", " -- note\n;", "/* ; */ ; -- ;"])
def test_trailing_semicolons_and_comments_are_harmless(sqlite: Bench, tail: str) -> None:
    assert sqlite.rows(query=f"select 1 as id, ';' as semi{tail}") == [(1, ";")]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("delete from t returning id", "syntax error"),
        ("select id from t; delete from t", "found 2 statements"),
        ("select * from missing", "no such table: missing"),
        ("insert into t values (2) returning id", "syntax error"),
        ("pragma writable_schema = 1", "syntax error"),
        ("-- nothing", "found 0 statements"),
    ],
)
def test_1_sqlite_a_query_only_reads(sqlite: Bench, query: str, told: str) -> None:
    sqlite.sql("create table t (id integer primary key)", "insert into t values (1)")
    with pytest.raises(SourceError) as caught:
        sqlite.rows(query=query)
    assert told in str(caught.value)
    assert query not in str(caught.value)  # the driver repeats the statement, which may hold a secret
    assert sqlite.sql("select id from t") == [(1,)]


def test_a_name_in_double_quotes_that_is_no_column_is_refused_and_never_a_text(sqlite: Bench) -> None:
    sqlite.sql('create table t (id integer primary key, "od""d `v" text)', "insert into t values (1, 'a')")
    with pytest.raises(PlanRefused, match="names a column that is not there") as caught:
        sqlite.rows(query='select id, "nosuch" from t')
    assert "no such column: nosuch" in caught.value.why
    assert "single quotes" in caught.value.remedy
    query = """select id, "od""d `v" as "v", [id] as i, `id` as j, 'say "no"' as s from "t" where "id" = 1 -- "x" y"""
    assert sqlite.rows(query=query) == [(1, "a", 1, 1, 'say "no"')]


def test_a_name_twice_in_a_query_is_refused(sqlite: Bench) -> None:
    for query in ("select 1 as a, 2 as a", "select 1 as a, 2 as A"):
        with pytest.raises(PlanRefused, match="gives a name more than once"):
            sqlite.types(query=query)


def test_other_schemas_and_own_tables_are_refused(sqlite: Bench) -> None:
    with pytest.raises(PlanRefused, match="SQLite has no schema 'public'"):
        sqlite.rows(table=TableName("public", "t"))
    with pytest.raises(PlanRefused, match="_penstock_loads is a table of Penstock itself"):
        sqlite.rows(table=TableName(None, "_penstock_loads"))
    with pytest.raises(PlanRefused, match="SQLite has no schema 'temp'"):
        BACKEND.target(sqlite.config(), sqlite.run()).qualify(TableName("temp", "t"))


def test_tables_and_connections_are_told(sqlite: Bench) -> None:
    sqlite.sql("create table t (a integer, b text, primary key (b, a))", "insert into t values (1, 'x')")
    sqlite.sql("create view v as select 1 as one")
    found = {info.name.table: (info.kind, info.rows, info.primary_key) for info in BACKEND.tables(sqlite.config())}
    assert found == {"t": ("table", 1, ("b", "a")), "v": ("view", None, ())}
    assert BACKEND.test(sqlite.config()).startswith("SQLite 3.")
    assert "no file yet" in BACKEND.test(sqlite.config(path=str(sqlite.folder / "none.db")))


# ---------------------------------------------------------------- files that are none


def test_files_that_are_no_databases_are_told_apart(sqlite: Bench) -> None:
    def refused(path: Path) -> str:
        with pytest.raises((ConnectionFailed, SourceError)) as caught:
            BACKEND.source(sqlite.config(path=str(path)), ReadRequest(query="select 1"), sqlite.run())
        return str(caught.value)

    assert "there is no SQLite file" in refused(sqlite.folder / "none.db")
    assert not (sqlite.folder / "none.db").exists()
    assert "is a folder" in refused(sqlite.folder)
    junk = sqlite.folder / "junk.db"
    junk.write_bytes(b"hello " * 5000)
    assert "is not a SQLite database" in refused(junk)


def test_what_a_query_stumbles_over_is_not_called_damage(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v text)", "insert into t values (1, '{}'), (2, '{s3cret')")
    with pytest.raises(SourceError, match="malformed JSON") as caught:
        sqlite.rows(query="select id, json_extract(v, '$.a') as a from t")
    assert "damaged" not in str(caught.value)
    assert ".recover" not in caught.value.remedy
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_file_is_told_and_nothing_is_loaded(sqlite: Bench, damage: str) -> None:
    sqlite.sql(
        "create table items (id integer primary key, v text)",
        "insert into items with recursive g(n) as (select 1 union all select n + 1 from g where n < 5000)"
        " select n, hex(randomblob(50)) from g",
    )
    size = sqlite.source.path.stat().st_size
    with sqlite.source.path.open("r+b") as file:  # nobody has it open
        if damage == "truncated":
            file.truncate(size // 2)
        else:
            file.seek(size // 2)
            file.write(b"\xff" * 20_000)
    with pytest.raises(SourceError, match=r"source\.db is damaged") as caught:
        sqlite.flow().run()
    assert ".recover" in caught.value.remedy
    assert not sqlite.target.has_table("items")
    assert sqlite.target.leftovers() == []


# ---------------------------------------------------------------- one moment


def test_1_sqlite_one_partition_reads_one_moment_in_one_transaction(sqlite: Bench) -> None:
    """Rows that come, and go, while it is read are neither in nor missing."""
    sqlite.sql(
        "pragma journal_mode = wal",
        "create table t (id integer primary key, v text)",
        "insert into t with recursive g(n) as (select 1 union all select n + 1 from g where n < 5000)"
        " select n, 'x' from g",
    )
    with closing(sqlite.open()) as source:
        split = source.partitions(list(source.schema()), 4)
        assert len(split.partitions) == 1
        assert "one connection's own" in split.reason
        batches = split.partitions[0].read()
        first = next(batches)
        sqlite.sql("delete from t where id > 4000", "insert into t values (9999, 'y')")
        ids = [n for batch in (first, *batches) for n in batch.column("id").to_pylist()]
    assert ids == list(range(1, 5001))


def test_1_sqlite_what_is_written_between_the_checks_and_the_rows_is_not_read(
    sqlite: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.sql(
        "pragma journal_mode = wal",
        "create table t (id integer primary key, v integer)",
        "insert into t values (1, 7)",
    )
    real = SQLitePartition._look

    def looked(part: SQLitePartition, session: Session) -> int:
        width = real(part, session)
        sqlite.sql("insert into t values (2, 'late')")
        return width

    monkeypatch.setattr(SQLitePartition, "_look", looked)
    assert sqlite.rows() == [(1, 7)]
    assert sqlite.sql("select count(*) from t") == [(2,)]  # it did come meanwhile


@pytest.mark.parametrize("change", ["replaced", "altered", "gone"])
def test_1_sqlite_a_worker_reads_the_very_file_that_was_planned(sqlite: Bench, change: str) -> None:
    sqlite.sql("create table t (id integer primary key, v text) strict", "insert into t values (1, 'a')")
    with closing(sqlite.open()) as source:
        (part,) = source.partitions(list(source.schema()), 1).partitions
        if change == "replaced":
            shutil.copy(sqlite.source.path, sqlite.folder / "copy.db")
            os.replace(sqlite.folder / "copy.db", sqlite.source.path)
        elif change == "altered":
            sqlite.sql("alter table t drop column v", "alter table t add column v integer")
        else:
            sqlite.source.path.unlink()
        with pytest.raises((SourceMoved, ConnectionFailed)) as caught:
            list(part.read())
    assert "not as the run began" in str(caught.value) or change == "gone"


def test_1_sqlite_a_file_overwritten_in_place_is_not_the_one_that_was_planned(sqlite: Bench) -> None:
    """Its inode is the same, and so may be the count of changes to its schema: `v` was read as the text 'v'."""
    sqlite.sql("create table t (id integer primary key, v text)", "insert into t values (1, 'a')")
    other = SQLiteHarness(sqlite.folder / "other.db")
    other.execute("create table t (id integer primary key, w text)", "insert into t values (1, 'a')")
    assert other.query("pragma schema_version") == sqlite.sql("pragma schema_version")
    with closing(sqlite.open()) as source:
        (part,) = source.partitions(list(source.schema()), 1).partitions
        shutil.copyfile(other.path, sqlite.source.path)
        with pytest.raises(SourceMoved, match="not as the run began"):
            list(part.read())


def test_1_sqlite_a_name_that_is_no_column_of_the_relation_is_an_error(sqlite: Bench) -> None:
    """Whatever stands before it: a quoted name alone is a text to SQLite."""
    sqlite.sql("create table t (id integer primary key, v text)", "insert into t values (1, 'a')")
    with closing(sqlite.open()) as source:
        (part,) = source.partitions(list(source.schema()), 1).partitions
        sqlite.sql("alter table t rename column v to w")
        assert isinstance(part, SQLitePartition)
        with closing(open_source(sqlite.config())) as session:
            unmarked = replace(part, mark=FileMark.of(sqlite.config(), session))
        with pytest.raises(SourceError, match=r"no such column: source\.v"):
            list(unmarked.read())


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_1_sqlite_a_source_is_opened_without_the_right_to_write(sqlite: Bench, journal: str) -> None:
    sqlite.sql(
        f"pragma journal_mode = {journal}", "create table t (id integer primary key)", "insert into t values (1)"
    )
    before = sqlite.source.path.read_bytes()
    with closing(sqlite.open()) as source:
        session = source._session  # type: ignore[attr-defined]
        for statement in ("delete from t", "create table u (a)", "pragma user_version = 7"):
            with pytest.raises(SourceError, match="readonly database"):
                session.execute(statement)
    assert sqlite.source.path.read_bytes() == before


def test_1_sqlite_what_a_dead_writer_has_left_is_rolled_back_and_read(sqlite: Bench) -> None:
    """A connection that may only read cannot roll a journal back, and would not read at all."""
    sqlite.sql(
        "create table t (id integer primary key, v integer)",
        "insert into t with recursive g(n) as (select 1 union all select n + 1 from g where n < 50000)"
        " select n, 0 from g",
    )
    with holding(
        sqlite.source.path, "pragma cache_size = 5", "begin immediate", "update t set v = 1"
    ) as kill:  # its pages have reached the file
        kill()
    assert Path(f"{sqlite.source.path}-journal").stat().st_size > 0
    assert sqlite.rows(query="select count(*) as n, sum(v) as v from t") == [(50_000, 0)]


def test_1_sqlite_a_locked_file_is_waited_for_then_told(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key)", "insert into t values (1)")
    with holding(sqlite.source.path, "begin exclusive"):
        sqlite.lock_timeout = 0.2
        with pytest.raises(LinkLost, match=r"source\.db is locked.*lock_timeout = 0.2 s") as caught:
            sqlite.rows()
    assert "raise lock_timeout" in caught.value.remedy
    assert sqlite.rows() == [(1,)]


# ---------------------------------------------------------------- incremental windows


def test_integer_windows_end_after_the_highest_value(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, n integer)", "insert into t values (1, 10), (2, 20), (3, null)")
    with closing(sqlite.open()) as source:
        assert source.upper(Cursor("n", None, None)) == "21"
        assert source.upper(Cursor("n", "5", None)) == "16"
        assert source.upper(Cursor("n", "5", None, floor="18")) == "18"
        with pytest.raises(PlanRefused, match="its lag is a number"):
            source.upper(Cursor("n", "5m", None))
    assert sqlite.rows(Window("n", "10", "20", "skip")) == [(1, 10)]
    assert sqlite.rows(Window("n", None, "21", "include")) == [(1, 10), (2, 20), (3, None)]
    with pytest.raises(DataError, match="1 rows have no value in the cursor column 'n'") as caught:
        sqlite.rows(Window("n", None, "21"))
    assert caught.value.keys == ("id=3",)


def test_an_empty_table_and_the_largest_integer_have_a_window(sqlite: Bench) -> None:
    sqlite.sql("create table t (n integer)")
    with closing(sqlite.open()) as source:
        assert source.upper(Cursor("n", None, None)) == str(-(2**63))
    sqlite.sql("insert into t values (9223372036854775807)")
    with closing(sqlite.open()) as source:
        upper = source.upper(Cursor("n", None, None))
    assert sqlite.rows(Window("n", None, upper)) == [(2**63 - 1,)]


TIMES = ["2024-01-01 00:00:00", "2024-01-01 00:00:00.5", "2024-06-01 00:00:00", "infinity", "-infinity"]


def remembered(sqlite: Bench, type_: str, *values: str) -> None:
    """A table that Penstock has loaded: its texts are remembered as times."""
    sqlite.sql("create table items (id integer primary key, at text)")
    for number, value in enumerate(values):
        sqlite.sql(f"insert into items values ({number}, '{value}')")
    sqlite.flow().run(columns={"at": type_}, target="to.main.t")
    sqlite.source.path = sqlite.target.path


def test_times_kept_as_text_have_windows_by_their_order(sqlite: Bench) -> None:
    remembered(sqlite, "timestamp", *TIMES)
    assert sqlite.types() == {"id": "int64", "at": "timestamp[us]"}
    window = Window("at", "2024-01-01 00:00:00", "2024-06-01 00:00:00")
    assert sqlite.ids(window) == [0, 1]
    assert sqlite.ids(Window("at", None, "2024-06-01 00:00:00")) == [0, 1, 4]
    sqlite.sql("insert into t values (9, '10000-01-01 00:00:00')")  # as text it would stand below 2024
    assert sqlite.ids(Window("at", None, "2024-06-01 00:00:00")) == [0, 1, 4]


@pytest.mark.parametrize("type_", ["", "date", "timestamp"])
def test_a_cell_that_no_window_could_hold_is_a_data_error_with_its_key(sqlite: Bench, type_: str) -> None:
    """A text is above every integer: it ended in an error of Python's with the cell in it, or was never loaded."""
    if type_:
        remembered(sqlite, type_, "2024-02-01" if type_ == "date" else TIMES[0])
    else:
        sqlite.sql("create table t (id integer primary key, at integer)", "insert into t values (0, 7)")
    sqlite.sql("insert into t values (5, 's3cret')")
    with closing(sqlite.open(keys=("id",))) as source, pytest.raises(DataError, match="'at' holds a value") as caught:
        source.upper(Cursor("at", "1d" if type_ else "0", "UTC"))
    assert caught.value.keys == ("id=5",)
    assert "s3cret" not in f"{caught.value} {caught.value.remedy} {caught.value.why}"
    sqlite.sql("delete from t where id = 5", "insert into t values (6, null)")
    with closing(sqlite.open()) as source:
        assert source.upper(Cursor("at", "1d" if type_ else "0", "UTC"))


def test_times_before_christ_are_in_the_first_window_and_in_no_other(sqlite: Bench) -> None:
    """As text, most of them stand above the clock: they were never loaded."""
    remembered(sqlite, "date", "2024-02-01")
    for number, old in enumerate(["4713-11-24 BC", "2024-03-01 BC", "0058-12-14 BC", "12000-01-01 BC"], 1):
        sqlite.sql(f"insert into t values ({number}, '{old}')")
    assert sqlite.ids(Window("at", None, "2024-06-01")) == [0, 1, 2, 3, 4]
    assert sqlite.ids(Window("at", "2024-01-01", "2024-06-01")) == [0]
    assert sqlite.ids(Window("at", "2024-06-01", "2024-07-01")) == []


def test_the_end_of_a_window_is_the_clock_less_the_lag(sqlite: Bench) -> None:
    remembered(sqlite, "timestamp", "2024-01-01 00:00:00")
    with closing(sqlite.open()) as source:
        with pytest.raises(PlanRefused, match="has no time zone") as caught:
            source.upper(Cursor("at", "5m", None))
        assert "cursor_timezone" in caught.value.remedy
        bound = datetime.fromisoformat(source.upper(Cursor("at", "5m", "UTC")))
        late = datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=5)
        assert timedelta(0) <= late - bound < timedelta(minutes=1)
        ahead = "9999-01-01 00:00:00"
        assert source.upper(Cursor("at", "5m", "UTC", floor=ahead)) == ahead
        with pytest.raises(PlanRefused, match="no time zone 'Nowhere'"):
            source.upper(Cursor("at", "5m", "Nowhere"))


def test_a_date_is_a_cursor_and_a_text_is_none(sqlite: Bench) -> None:
    remembered(sqlite, "date", "2024-01-01")
    with closing(sqlite.open()) as source:
        assert date.fromisoformat(source.upper(Cursor("at", "1d", "UTC"))) >= datetime.now(UTC).date() - timedelta(2)
    sqlite.sql("create table u (v text, f real)")
    with closing(sqlite.open(table=TableName(None, "u"))) as source:
        for column in ("v", "f"):
            with pytest.raises(PlanRefused, match="cannot be an incremental cursor"):
                source.upper(Cursor(column, "0", None))
        with pytest.raises(SourceError, match="no column 'w'"):
            source.upper(Cursor("w", "0", None))


def test_incremental_loads_lose_and_double_nothing(sqlite: Bench) -> None:
    sqlite.sql("create table items (id integer primary key, v text)", "insert into items values (1, 'a'), (2, 'b')")
    flow = sqlite.flow()
    options: dict[str, Any] = {"incremental": "id", "lag": "0"}
    assert flow.run(**options).rows == 2
    sqlite.sql("insert into items values (3, 'c')")
    assert flow.run(**options).rows == 1
    assert flow.run(**options).rows == 0
    assert sqlite.target.query("select * from items order by id") == [(1, "a"), (2, "b"), (3, "c")]


# ---------------------------------------------------------------- batches


def test_batches_are_bounded_by_bytes(sqlite: Bench) -> None:
    sqlite.sql(
        "create table t (id integer primary key, pad text)",
        "insert into t with recursive g(n) as (select 1 union all select n + 1 from g where n < 20000)"
        " select n, hex(zeroblob(1000)) from g",
    )
    with closing(sqlite.open()) as source:
        (part,) = source.partitions(list(source.schema()), 1).partitions
        sizes = [batch.nbytes for batch in part.read()]
    assert len(sizes) > 2
    assert max(sizes) < 1.5 * sqlite.run().batch_bytes


def test_a_limit_and_columns_in_another_order_are_kept(sqlite: Bench) -> None:
    sqlite.sql("create table t (a integer, b text)", "insert into t values (1, 'x'), (2, 'y')")
    with closing(sqlite.open(limit=1)) as source:
        schema = source.schema()
        (part,) = source.partitions([schema["b"], schema["a"].as_text()], 3).partitions
        [batch] = list(part.read())
    assert batch.schema.names == ["b", "a"]
    assert batch.to_pylist() == [{"b": "x", "a": "1"}]
    assert batch.schema.field("a").type == pa.string()


def test_more_than_a_thousand_columns(sqlite: Bench) -> None:
    """A chain of a thousand tests is an expression that SQLite refuses, and so is a result of 2,000 columns."""
    names = [f"c{n}" for n in range(1_100)]
    sqlite.sql(
        f"create table items (id integer primary key, {', '.join(names)})",
        f"insert into items select 1, {', '.join(str(n) for n in range(1_100))}",
    )
    flow = sqlite.flow()
    flow.run(mode="merge")
    sqlite.sql("update items set c1099 = 7")
    assert flow.run(mode="merge").updated == 1
    assert sqlite.target.query("select c0, c900, c1099 from items") == [(0, 900, 7)]
