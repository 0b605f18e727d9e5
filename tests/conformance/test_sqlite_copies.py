"""Several tasks on one SQLite file: they read a copy, so all of them read one moment."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.base import ReadRequest, Source, Split
from penstock.backends.exchange import Exchange
from penstock.backends.sqlite import read
from penstock.backends.sqlite.connect import open_target
from penstock.errors import DataError, SourceMoved, StagingLost
from penstock.run.pipeline import stage_with_spark
from penstock.schema import TableName
from tests.conformance.harness import Flow
from tests.conformance.sqlite_bench import BACKEND, Bench, holding, sqlite

__all__ = ["sqlite"]

NUMBERS = "with recursive g(n) as (select 1 union all select n + 1 from g where n < 3000)"


@pytest.fixture(autouse=True)
def _small_files_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LEAST_BYTES", 1)
    monkeypatch.setattr(read, "MIN_ROWS", 100)
    monkeypatch.setattr(read, "LEAST_SHARE", 0.02)


def split(source: Source, want: int = 4) -> Split:
    made = source.partitions(list(source.schema()), want)
    return pickle.loads(pickle.dumps(made))  # noqa: S301  as Spark carries it


def ids(made: Split) -> list[list[int]]:
    return [[n for batch in part.read() for n in batch.column("id").to_pylist()] for part in made.partitions]


def copies(sqlite: Bench) -> list[Path]:
    """Wherever they are: a run and a source alone stage in different folders."""
    return list((sqlite.folder / ".penstock").rglob("copy.db"))


@pytest.mark.parametrize("key", ["integer primary key", "integer"])
@pytest.mark.parametrize("gaps", ["", "delete from t where id % 3 = 0 or id between 10 and 2000"])
def test_1_sqlite_ranges_of_row_ids_are_complete_and_disjoint(sqlite: Bench, key: str, gaps: str) -> None:
    sqlite.sql(f"create table t (id {key}, v text)", f"insert into t {NUMBERS} select n, 'x' from g")
    sqlite.sql("insert into t values (-5, 'below')", *([gaps] if gaps else []))
    expected = [row[0] for row in sqlite.sql("select id from t order by id")]
    with closing(sqlite.open()) as source:
        made = split(source)
        source.hand_out()
        parts = ids(made)
    assert len(parts) == 4
    assert "ranges of row ids" in made.reason
    assert "a copy of the file" in made.reason
    assert sorted(n for part in parts for n in part) == expected


def test_1_sqlite_all_partitions_read_the_moment_of_the_copy(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v text)", f"insert into t {NUMBERS} select n, 'x' from g")
    with closing(sqlite.open()) as source:
        made = split(source, 3)
        assert copies(sqlite) == []  # a plan copies nothing
        source.hand_out()
        first, *rest = made.partitions
        got = [n for batch in first.read() for n in batch.column("id").to_pylist()]
        sqlite.sql("delete from t where id > 1500", "insert into t values (9999, 'y')")
        got += [n for part in rest for batch in part.read() for n in batch.column("id").to_pylist()]
        assert len(copies(sqlite)) == 1
    assert sorted(got) == list(range(1, 3001))
    assert copies(sqlite) == []


@pytest.mark.parametrize(
    "table",
    [
        "create table t (id integer primary key, rowid text, oid text, _rowid_ text)",  # no name is left for them
        "create table t (id integer primary key, v text) without rowid",
    ],
)
def test_1_sqlite_without_row_ids_a_table_is_one_partition(sqlite: Bench, table: str) -> None:
    sqlite.sql(table, f"insert into t (id) {NUMBERS} select n from g")
    with closing(sqlite.open()) as source:
        made = split(source)
        source.hand_out()
        assert copies(sqlite) == []
        assert ids(made) == [list(range(1, 3001))]


def test_1_sqlite_a_column_called_rowid_is_not_taken_for_the_row_ids(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer, rowid text)", f"insert into t {NUMBERS} select n, null from g")
    with closing(sqlite.open()) as source:
        made = split(source)
        source.hand_out()
        assert sorted(n for part in ids(made) for n in part) == list(range(1, 3001))
    assert len(made.partitions) == 4


def test_1_sqlite_what_a_copy_would_not_pay_for_is_one_partition(
    sqlite: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.sql("create table t (id integer)", f"insert into t {NUMBERS} select n from g", "create view v as select 1")
    sqlite.sql("create table other (b blob)", "insert into other values (zeroblob(9000000))")
    with closing(sqlite.open()) as source:
        assert "too small a part of its file" in split(source).reason
    for request in ({"limit": 7}, {"query": "select * from t"}):
        with closing(sqlite.open(**request)) as source:
            assert len(split(source).partitions) == 1
    monkeypatch.setattr(read, "LEAST_BYTES", 2**30)
    with closing(sqlite.open()) as source:
        assert "is read before it is copied" in split(source).reason


def test_1_sqlite_a_table_that_was_altered_is_not_copied(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v text)", f"insert into t {NUMBERS} select n, 'x' from g")
    with closing(sqlite.open()) as source:
        split(source)
        sqlite.sql("alter table t add column w text")
        for _ in range(2):  # what was refused once has not become right
            with pytest.raises(SourceMoved, match="not as the run began"):
                source.hand_out()
            assert copies(sqlite) == []


def test_1_sqlite_what_a_dead_writer_has_left_is_rolled_back_and_copied(sqlite: Bench) -> None:
    """A session that may write, but is told not to, makes no copy."""
    sqlite.sql("create table t (id integer primary key, v integer)", f"insert into t {NUMBERS} select n, 0 from g")
    with closing(sqlite.open()) as source:
        made = split(source)
        with holding(
            sqlite.source.path, "pragma cache_size = 1", "begin immediate", "update t set v = 1"
        ) as kill:  # its pages have reached the file
            kill()
        assert Path(f"{sqlite.source.path}-journal").stat().st_size > 0
        source.hand_out()
        parts = [batch for part in made.partitions for batch in part.read()]
    assert sum(sum(batch.column("v").to_pylist()) for batch in parts) == 0
    assert sum(batch.num_rows for batch in parts) == 3000


def test_1_sqlite_the_copy_goes_whatever_becomes_of_the_rest(sqlite: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as large as the database."""
    sqlite.sql("create table t (id integer primary key, v text)", f"insert into t {NUMBERS} select n, 'x' from g")
    source = sqlite.open()
    split(source)
    source.hand_out()

    def fails(_: Exchange) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(Exchange, "close", fails)
    with pytest.raises(OSError, match="no such luck"):
        source.close()
    assert copies(sqlite) == []


def test_1_sqlite_a_worker_without_the_copy_reads_nothing(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v text)", f"insert into t {NUMBERS} select n, 'x' from g")
    with closing(sqlite.open()) as source:
        made = split(source)
        with pytest.raises(StagingLost, match="is not here"):
            ids(made)


def test_1_sqlite_cells_are_checked_in_every_range_of_a_copy(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key, v integer)", f"insert into t {NUMBERS} select n, n from g")
    sqlite.sql("update t set v = 'x' where id = 2999")
    with closing(sqlite.open()) as source:
        made = split(source)
        source.hand_out()
        assert sum(len(part) for part in ids(Split(made.partitions[:3], ""))) == 2250
        with pytest.raises(DataError) as caught:
            ids(made)
    assert caught.value.keys == ("id=2999",)


def test_1_sqlite_a_whole_run_from_a_copy(sqlite: Bench) -> None:
    sqlite.sql(
        "create table items (id integer primary key, v text)", f"insert into items {NUMBERS} select n, 'x' from g"
    )
    flow = sqlite.flow()
    options: dict[str, Any] = {"parallel": 3, "mode": "merge", "incremental": "id", "lag": "0"}
    record = flow.run(**options)
    assert (record.partitions, record.rows) == (3, 3000)
    assert sqlite.target.query("select count(*), sum(id) from items") == [(3000, 4501500)]
    assert copies(sqlite) == []


def test_wide_rows_are_gathered_few_at_a_time(sqlite: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number alone, a thousand rows of a megabyte each would be in memory at once."""
    sqlite.sql("create table t (id integer primary key, b blob)", "insert into t values (1, zeroblob(2000000))")
    sqlite.sql(f"insert into t {NUMBERS} select n + 1, x'00' from g limit 300")
    asked: list[int] = []
    real = read.Session.stream

    def stream(session: read.Session, sql: str, rows: int) -> Any:
        asked.append(rows)
        return real(session, sql, rows)

    monkeypatch.setattr(read.Session, "stream", stream)
    assert len(sqlite.rows()) == 301
    assert asked == [8]


@pytest.mark.parametrize("memory", [False, True])
def test_1_sqlite_several_tables_of_a_transform_are_read_at_one_moment(sqlite: Bench, memory: bool) -> None:
    config = sqlite.config(path=f":memory:{sqlite.folder.name}") if memory else sqlite.config()
    run = sqlite.run()

    def write(*statements: str) -> None:
        with closing(open_target(config)) as session:
            for statement in statements:
                session.execute(statement)

    for table in ("cash", "bank"):
        write(f"create table {table} (id integer primary key, n integer)", f"insert into {table} values (1, 100)")
    with closing(BACKEND.source(config, ReadRequest(TableName(None, "cash")), run)) as cash:
        query = ReadRequest(query="select id, n from bank")
        with closing(BACKEND.beside(cash, config, query, run)) as bank:
            parts = [split(source).partitions for source in (cash, bank)]
            for source in (cash, bank):
                source.hand_out()
            sums = []
            for [part] in parts:
                sums += [n for batch in part.read() for n in batch.column("n").to_pylist()]
                write("update cash set n = n - 10", "update bank set n = n + 10")
    assert sums == [100, 100]
    assert copies(sqlite) == []


def test_1_sqlite_tables_that_changed_while_they_were_opened_are_opened_again(sqlite: Bench) -> None:
    sqlite.sql("create table t (id integer primary key)", "create table u (id integer primary key)")
    with closing(sqlite.open()) as first:
        sqlite.sql("alter table u add column v text")
        with pytest.raises(SourceMoved, match="was changed while its tables were opened"):
            BACKEND.beside(first, sqlite.config(), ReadRequest(TableName(None, "u")), sqlite.run())


@pytest.mark.spark
def test_1_sqlite_spark_s_tasks_read_the_copy(sqlite: Bench) -> None:
    sqlite.sql(
        "create table items (id integer primary key, v text)", f"insert into items {NUMBERS} select n, 'x' from g"
    )
    flow = Flow(sqlite.source, sqlite.target, sqlite.folder, stage_with_spark)
    record = flow.run(parallel=3, mode="merge")
    assert (record.partitions, record.rows) == (3, 3000)
    assert sqlite.target.query("select count(*), sum(id) from items") == [(3000, 4501500)]
    assert copies(sqlite) == []
    flow.run(mode="truncate", target="to.main.doubled", transform="select id, v || v as v from source where id <= 2")
    assert sqlite.target.query("select id, v from doubled order by id") == [(1, "xx"), (2, "xx")]
