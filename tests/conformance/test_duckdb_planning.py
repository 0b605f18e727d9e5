"""What DuckDB tells before a load: files, the user's SQL, and the tables that are there."""

from __future__ import annotations

import json

import duckdb
import pytest

from penstock.errors import ConnectionFailed, DataError, PlanRefused, SourceError, TargetError
from penstock.schema import TableName
from tests.conformance.duckdb_bench import BACKEND, Files, rows_of

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


@pytest.mark.parametrize("before", [0, 30_000, 400_000], ids=str)
def test_cell_values_stay_out_of_errors(files: Files, before: int) -> None:
    """Those too that DuckDB meets when Arrow has the first rows already, and tells as an error of the system."""
    files.sql("source", f"create table t as select i::text as id from range({before}) r(i) union all select 'secret-7'")
    source = files.source(query="select cast(id as integer) as id from t")
    (part,) = source.partitions(list(source.schema()), 1).partitions
    with pytest.raises(DataError) as raised:
        list(part.read())
    source.close()
    assert raised.value.what == "reading failed"
    assert "secret-7" not in json.dumps(raised.value.to_record())
    assert "INT32" in str(raised.value)


def test_a_damaged_block_is_the_sources_fault(files: Files) -> None:
    files.sql("source", "create table t as select i as id, md5(i::text) as v from range(2_000_000) r(i)")
    path = files.config("source").file
    with path.open("r+b") as file:
        file.seek(path.stat().st_size * 3 // 4)
        file.write(b"\xff" * (1 << 20))
    source = files.source(query="select * from t")
    (part,) = source.partitions(list(source.schema()), 1).partitions
    with pytest.raises(SourceError, match="reading failed"):
        list(part.read())
    source.close()


# ---------------------------------------------------------------- targets


def test_inspect_tells_keys_defaults_generated_columns_and_constraints(files: Files) -> None:
    files.sql(
        "target",
        "create table t (id integer primary key, name varchar collate nocase default 'x', twice integer as (id * 2),"
        " rate double check (rate > 0), word varchar collate nocase.noaccent)",
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
        ("word", "VARCHAR COLLATE nocase.noaccent", True, False, False),
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


def test_a_schema_named_like_its_file_is_refused(files: Files) -> None:
    with pytest.raises(PlanRefused, match="name of its file"):
        BACKEND.target(files.config("shop", schema="shop"), files.run()).inspect(TableName(None, "t"))


def test_the_version_is_told(files: Files) -> None:
    files.sql("source", "select 1")
    assert BACKEND.test(files.config("source")) == f"DuckDB {duckdb.__version__}"
