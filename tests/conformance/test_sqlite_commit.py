"""How a load gets into a SQLite file: one transaction, whose answer is looked for, beside other programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.base import Receipt
from penstock.backends.sqlite import SQLiteConfig, write
from penstock.backends.sqlite.connect import Session, open_source, open_target
from penstock.backends.staging import StagingArea
from penstock.errors import (
    DataError,
    LinkLost,
    PenstockError,
    PlanRefused,
    StagingLost,
    StateError,
    TargetError,
    Unsupported,
)
from penstock.schema import TableName
from tests.conformance.harness import Flow
from tests.conformance.sqlite_bench import BACKEND, Bench, holding, sqlite

__all__ = ["sqlite"]


@pytest.fixture
def flow(sqlite: Bench) -> Flow:
    sqlite.sql("create table items (id integer primary key, v text)", "insert into items values (1, 'a'), (2, 'b')")
    return sqlite.flow()


def options_of(flow: Flow, **options: Any) -> None:
    """Make the target's connection have these options."""
    known = flow.target.options()
    flow.target.options = lambda: known | options  # type: ignore[method-assign]


def loads(flow: Flow) -> int:
    if not flow.target.has_table("_penstock_loads"):
        return 0
    return int(flow.target.query("select count(*) from _penstock_loads")[0][0])


# ---------------------------------------------------------------- one transaction


def test_3_sqlite_the_end_of_our_transaction_is_noticed(sqlite: Bench) -> None:
    with closing(open_target(sqlite.config())) as session:
        session.execute("begin immediate")
        first = session.transaction()
        session.execute("create table u (a)")
        assert session.transaction() == first
        session.savepoint()
        session.rollback_to_savepoint()
        assert session.transaction() == first
        session.execute("commit")
        second = session.transaction()
        assert second != first
        session.execute("rollback")
        assert session.transaction() != second


@pytest.mark.parametrize("place", ["transforms_pre", "transforms_post"])
def test_3_sqlite_user_sql_is_in_the_transaction_and_one_statement_at_a_time(flow: Flow, place: str) -> None:
    flow.target.execute("create table notes (n text)")
    flow.run(mode="merge", **{place: ["insert into notes values ('first; second')", "insert into notes values ('x');"]})
    assert flow.target.query("select n from notes") == [("first; second",), ("x",)]
    with pytest.raises(TargetError, match="more than one statement"):  # the driver would run the first alone
        flow.run(mode="merge", **{place: ["insert into notes values ('y'); insert into notes values ('z')"]})
    with pytest.raises(TargetError, match="no such table: missing"):
        flow.run(mode="merge", **{place: ["insert into notes values ('y')", "delete from missing"]})
    assert flow.target.query("select count(*) from notes") == [(2,)]
    assert loads(flow) == 1


@pytest.mark.parametrize("clause", ["replace", "ignore"])
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_3_sqlite_a_conflict_of_the_targets_own_loses_no_row(flow: Flow, clause: str, mode: str) -> None:
    flow.source.execute("create table twins (id integer primary key, v text)", "insert into twins values (1, 'x')")
    flow.target.execute(
        f"create table items (id integer primary key, v text unique on conflict {clause}) strict",
        "insert into items values (9, 'x')",
    )
    with pytest.raises(DataError):
        flow.run(mode=mode, table="main.twins")
    assert flow.target.rows("items") == [(9, "x")]


def test_3_sqlite_journal_and_synchronous_stay_as_they_are(flow: Flow) -> None:
    flow.target.execute("pragma journal_mode = wal")
    flow.run()
    assert flow.target.query("pragma journal_mode") == [("wal",)]
    with closing(open_target(SQLiteConfig(name="t", path=str(flow.target.path)))) as session:  # type: ignore[attr-defined]
        assert session.query("pragma synchronous") == [(2,)]


def test_3_sqlite_staging_is_counted_against_the_receipts(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    real = StagingArea.files

    def lost(area: StagingArea, table: int, receipts: Sequence[Receipt]) -> list[Path]:
        return real(area, table, receipts)[:-1]

    monkeypatch.setattr(StagingArea, "files", lost)
    monkeypatch.setattr("penstock.run.pipeline.BACKOFF_SECONDS", 0)
    with pytest.raises(StagingLost, match="0 rows in staging, 2 on the receipts"):
        flow.run()
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


# ---------------------------------------------------------------- a COMMIT without an answer


def arm(monkeypatch: pytest.MonkeyPatch, commit: Callable[[Session], None]) -> list[str]:
    """Do something else at COMMIT; each is noted."""
    real, met = Session.execute, []

    def execute(session: Session, sql: str, params: Sequence[Any] = ()) -> int:
        if sql == "commit":
            met.append(sql)
            commit(session)
            return 0
        return real(session, sql, params)

    monkeypatch.setattr(Session, "execute", execute)
    return met


def carried_out(session: Session) -> None:
    with session.connection.cursor() as cursor:
        cursor.execute("commit")
        cursor.fetchall()


def test_3_sqlite_a_commit_whose_answer_is_lost_is_found(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(session: Session) -> None:
        carried_out(session)
        raise TargetError("the answer was lost")

    met = arm(monkeypatch, lost)
    assert flow.run().rows == 2
    assert met == ["commit"]
    assert flow.target.query("select count(*) from items") == [(2,)]
    assert loads(flow) == 1


def test_3_sqlite_a_commit_that_was_refused_is_not_called_done(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(session: Session) -> None:
        raise TargetError("refused")

    arm(monkeypatch, refused)
    with pytest.raises(TargetError, match="refused"):
        flow.run()
    assert not flow.target.has_table("items")
    assert loads(flow) == 0


def test_3_sqlite_a_commit_that_cannot_be_looked_up_is_neither_repeated_nor_called_failed(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(session: Session) -> None:
        carried_out(session)

        def closed(config: SQLiteConfig) -> Session:
            raise LinkLost(f"{config.file} is locked")

        monkeypatch.setattr(write, "open_planning", closed)
        raise TargetError("the answer was lost")

    arm(monkeypatch, lost)
    with pytest.raises(TargetError, match="the answer to the commit was lost") as caught:
        flow.run()
    assert "it is not known whether" in caught.value.kept
    assert "_penstock_loads" in caught.value.remedy
    assert loads(flow) == 1  # and it was not tried again


# ---------------------------------------------------------------- beside other programs


@pytest.mark.parametrize("held", ["begin immediate", "begin; select"])
def test_1_sqlite_a_file_that_is_in_use_is_waited_for_then_told(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    """A writer keeps the transaction from beginning, a reader keeps it from ending."""
    monkeypatch.setattr("penstock.run.pipeline.BACKOFF_SECONDS", 0)
    flow.target.execute("create table other (a)", "insert into other values (1)")
    path = flow.target.path  # type: ignore[attr-defined]
    statements = ["begin immediate"] if held == "begin immediate" else ["begin", "select * from other"]
    options_of(flow, lock_timeout=0.2)
    with holding(path, *statements):
        with pytest.raises(LinkLost, match=r"target\.db is locked"):
            flow.run()
        assert flow.target.leftovers() == []
    assert loads(flow) == 0
    assert not flow.target.has_table("items")
    flow.run()
    assert flow.target.query("select count(*) from items") == [(2,)]


def test_1_sqlite_a_writer_that_ends_in_time_is_waited_for(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Session.execute
    with holding(flow.target.path, "begin immediate") as end:  # type: ignore[attr-defined]

        def execute(session: Session, sql: str, params: Sequence[Any] = ()) -> int:
            if sql == "begin immediate":
                threading.Timer(0.3, end).start()
            return real(session, sql, params)

        monkeypatch.setattr(Session, "execute", execute)
        assert flow.run().rows == 2
    assert len(flow.store.runs()) == 1  # and no second attempt


def test_1_sqlite_readers_of_a_wal_file_go_on_while_it_is_loaded(flow: Flow) -> None:
    flow.target.execute("pragma journal_mode = wal", "create table other (a)")
    with holding(flow.target.path, "begin", "select * from other"):  # type: ignore[attr-defined]
        flow.run()
    assert flow.target.query("select count(*) from items") == [(2,)]


def test_1_sqlite_the_file_is_closed_after_every_run(flow: Flow) -> None:
    flow.run(mode="merge")
    flow.run(mode="merge")
    open_files = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert not {name for name in open_files if name.endswith(("source.db", "target.db"))}


def test_1_sqlite_one_file_as_source_and_target_lets_go_before_the_commit(sqlite: Bench) -> None:
    sqlite.sql("create table items (id integer primary key, v text)", "insert into items values (1, 'a')")
    here = Flow(sqlite.source, sqlite.source, sqlite.folder)
    for path in ("native", "fused"):
        assert here.run(path=path, target="to.main.copies", mode="merge").path == path
        assert sqlite.sql("select * from copies") == [(1, "a")]
    link = sqlite.folder / "link.db"
    link.symlink_to(sqlite.source.path)
    assert BACKEND.same_database(sqlite.config(), sqlite.config(path=str(link)))[0]
    other = sqlite.folder / "other.db"
    other.hardlink_to(sqlite.source.path)
    assert BACKEND.same_database(sqlite.config(), sqlite.config(path=str(other)))[0]
    assert not BACKEND.same_database(sqlite.config(), sqlite.config(path=":memory:"))[0]
    assert not BACKEND.same_database(sqlite.config(), sqlite.config(path=str(sqlite.target.path)))[0]


def test_6_sqlite_the_native_path_checks_classes_too(sqlite: Bench) -> None:
    """A STRICT table makes an integer of '12' without a word."""
    sqlite.sql("create table items (id integer primary key, v integer)", "insert into items values (1, 7)")
    here = Flow(sqlite.source, sqlite.source, sqlite.folder)
    here.run(target="to.main.copies", mode="merge")
    sqlite.sql("insert into items values (2, x'3132')")
    with pytest.raises(DataError, match="column v has cells that are not of its storage class") as caught:
        here.run(target="to.main.copies", mode="merge")
    assert caught.value.keys == ("id=2",)
    assert sqlite.sql("select * from copies") == [(1, 7)]


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Once, when a load is planned and its transaction is about to begin."""
    begin, acted = write.SQLiteLoad._in_transaction, []

    def late(self: write.SQLiteLoad, session: Session, receipts: Sequence[Receipt]) -> Any:
        if not acted:
            acted.append(act())
        return begin(self, session, receipts)

    monkeypatch.setattr(write.SQLiteLoad, "_in_transaction", late)


def test_1_sqlite_a_column_that_is_gone_is_never_read_as_its_name(
    sqlite: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quoted name that is no column is a text to SQLite: every row of the target had 'v' in it."""
    sqlite.sql("create table items (id integer primary key, v text, w text)", "insert into items values (1, 'a', 'x')")
    here = Flow(sqlite.source, sqlite.source, sqlite.folder)
    meanwhile(monkeypatch, lambda: sqlite.sql("alter table items drop column v"))
    assert here.run(target="to.main.copies", path="native").rows == 1  # planned again: the source had moved
    assert sqlite.source.columns("copies") == ["id", "w"]


def test_6_sqlite_integers_among_reals_are_checked_again_on_the_native_path(
    sqlite: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.sql("create table items (id integer primary key, v numeric)", "insert into items values (1, 1.5), (2, 7)")
    here = Flow(sqlite.source, sqlite.source, sqlite.folder)
    meanwhile(monkeypatch, lambda: sqlite.sql("insert into items values (3, 9007199254740993)"))
    with pytest.raises(DataError, match="column v has cells that are not of its storage class") as caught:
        here.run(target="to.main.copies", path="native")
    assert caught.value.keys == ("id=3",)
    assert not sqlite.source.has_table("copies")


def test_wide_rows_are_loaded_a_batch_of_a_task_at_a_time(sqlite: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow fills a batch across row groups: all rows of a file were in memory at once, however wide."""
    sqlite.sql(
        "create table items (id integer primary key, pad text)",
        "insert into items with recursive g(n) as (select 1 union all select n + 1 from g where n < 400)"
        " select n, hex(zeroblob(100000)) from g",
    )
    sizes: list[int] = []
    ingest = Session.ingest

    def watched(session: Session, table: str, batches: pa.RecordBatchReader) -> int:
        def looked() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                sizes.append(batch.nbytes)
                yield batch

        return ingest(session, table, pa.RecordBatchReader.from_batches(batches.schema, looked()))

    monkeypatch.setattr(Session, "ingest", watched)
    assert sqlite.flow().run().rows == 400
    assert len(sizes) >= 4
    assert max(sizes) <= sqlite.run().batch_bytes


# ---------------------------------------------------------------- tables that are there


def test_3_sqlite_a_trigger_that_leaves_out_rows_ends_the_load(flow: Flow) -> None:
    flow.target.execute(
        "create table items (id integer primary key, v text)",
        "create trigger picky before insert on items when new.id = 2 begin select raise(ignore); end",
    )
    assert any("trigger picky" in note for note in flow.plan().notes)
    with pytest.raises(TargetError, match="the target did not take every row"):
        flow.run()
    assert flow.target.query("select count(*) from items") == [(0,)]


def test_3_sqlite_generated_columns_are_left_out_and_foreign_keys_told(flow: Flow) -> None:
    flow.target.execute(
        "create table parents (id integer primary key)",
        "create table items (id integer primary key references parents, v text, loud text as (upper(v)))",
    )
    notes = flow.plan().notes
    assert any("loud is generated" in note for note in notes)
    assert any("foreign key to parents" in note for note in notes)
    flow.run(mode="merge")
    assert flow.target.query("select * from items") == [(1, "a", "A"), (2, "b", "B")]


@pytest.mark.parametrize(
    ("definition", "other"),
    [
        ("(id text collate nocase not null primary key, v text) without rowid", "A"),
        ("(v text, id text primary key collate nocase) strict, without rowid", "A"),
        ("(id text collate nocase, v text, n unsigned big int)", "A"),
        ("(id text not null on conflict abort collate RTRIM, v native character(70))", "a "),
        ("(id text collate binary, v text collate nocase)", ""),
    ],
)
def test_4_sqlite_keys_fall_together_under_the_collation_of_any_table(
    sqlite: Bench, definition: str, other: str
) -> None:
    """Of two spellings of one key, one row went missing where the table's statement was not understood."""
    flow = sqlite.flow()
    flow.target.execute(f"create table items {definition}", "insert into items (id, v) values ('a', 'old')")
    sqlite.sql("create table items (id text, v text)", f"insert into items values ('a', '1'), ('{other or 'A'}', '2')")
    if not other:
        assert flow.run(mode="merge", keys=["id"]).inserted == 1
        return
    with pytest.raises(DataError, match="duplicate keys in the source"):
        flow.run(mode="merge", keys=["id"])
    assert flow.target.query("select id, v from items") == [("a", "old")]


def test_4_sqlite_a_collation_of_an_applications_own_is_refused(flow: Flow) -> None:
    code = (
        "import sqlite3, sys\nconnection = sqlite3.connect(sys.argv[1])\n"
        "connection.create_collation('own', lambda a, b: 0)\n"
        "connection.execute('create table items (id integer primary key, v text collate own)')"
    )
    path = str(flow.target.options()["path"])
    subprocess.run([sys.executable, "-c", code, path], check=True)
    with pytest.raises(TargetError, match=r"column v of main\.items has a collation that is not SQLite's own"):
        flow.run(mode="merge")


@pytest.mark.parametrize("options", [{}, {"keys": ["id"]}, {"mode": "truncate"}])
def test_3_sqlite_no_number_is_made_up_for_a_null_in_a_key(sqlite: Bench, options: dict[str, Any]) -> None:
    """An `integer primary key` takes a NULL and gives the row the next number."""
    sqlite.sql("create table items (id integer, v text)", "insert into items values (10, 'a'), (null, 'b')")
    flow = sqlite.flow()
    flow.target.execute("create table items (id integer primary key, v text)")
    with pytest.raises(DataError, match="column id of the target takes no NULL"):
        flow.run(**options)
    assert flow.target.query("select count(*) from items") == [(0,)]
    flow.run(query="select v from items")  # left out, it is numbered, as the table's owner wants it
    assert flow.target.query("select id, v from items") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    "definition", ["(id integer primary key, v text) without rowid", "(id integer primary key desc)"]
)
def test_3_sqlite_a_key_that_nobody_numbers_has_no_default(sqlite: Bench, definition: str) -> None:
    sqlite.target.execute(f"create table items {definition}")
    with closing(BACKEND.target(sqlite.config(path=str(sqlite.target.path)), sqlite.run())) as target:
        found = target.inspect(TableName(None, "items"))
    assert found is not None
    assert not found.columns[0].has_default


def test_a_constraint_of_the_target_is_a_data_error(flow: Flow) -> None:
    flow.target.execute("create table items (id integer primary key, v text check (v <> 'b'))")
    with pytest.raises(DataError, match="CHECK constraint failed"):
        flow.run()
    assert flow.target.query("select count(*) from items") == [(0,)]


def test_3_sqlite_what_cannot_be_loaded_is_refused_at_planning(flow: Flow) -> None:
    flow.target.execute("create view items as select 1 as id, 'x' as v")
    with pytest.raises(PlanRefused, match=r"main\.items is a view"):
        flow.run()
    flow.target.execute("drop view items", "create virtual table items using fts5 (id, v)")
    with pytest.raises(PlanRefused, match=r"main\.items is a virtual table"):
        flow.run()
    flow.target.execute("drop table items")
    with pytest.raises(Unsupported, match="SQLite has no TRUNCATE"):
        flow.run(mode="truncate", truncate_with="truncate")


def test_6_sqlite_a_loose_column_takes_only_what_it_leaves_alone(flow: Flow) -> None:
    flow.target.execute("create table items (id integer primary key, v decimal(10,2))")
    with pytest.raises(PlanRefused, match="SQLite turns what looks like a number into one"):
        flow.run()


def test_names_that_differ_in_case_are_one_table_with_one_memory(flow: Flow) -> None:
    flow.run(mode="merge", target="to.main.Items")
    flow.run(mode="merge", target="to.main.ITEMS")
    assert flow.target.query("select distinct target from _penstock_tables") == [('main."Items"',)]
    with pytest.raises(PlanRefused, match="the same name in SQLite"):
        flow.run(query='select 1 as "a", 2 as "b"', columns={"b": {"rename": "A"}}, target="to.main.other")


# ---------------------------------------------------------------- what is told before


def test_a_target_of_a_newer_version_is_refused(flow: Flow) -> None:
    flow.run()
    flow.target.execute("update _penstock_loads set format = 99")
    with pytest.raises(StateError, match="written by a newer Penstock"):
        flow.run()


def test_targets_that_cannot_be_written_are_told_at_planning(sqlite: Bench) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(PenstockError) as caught:
            BACKEND.target(sqlite.config(**options), sqlite.run()).inspect(TableName(None, "t"))
        return str(caught.value)

    assert "is read-only" in refused(read_only=True)
    assert "there is no folder" in refused(path=str(sqlite.folder / "none" / "x.db"))
    junk = sqlite.folder / "junk.db"
    junk.write_bytes(b"hello " * 5000)
    assert "is not a SQLite database" in refused(path=str(junk))


def test_a_file_that_is_not_there_yet_is_made_by_the_commit(flow: Flow, tmp_path: Path) -> None:
    flow.target.path = tmp_path / "new %41?#.db"  # type: ignore[attr-defined]
    planned = flow.plan(mode="merge")
    assert json.dumps(planned.ddl)
    assert not flow.target.path.exists()  # type: ignore[attr-defined]
    flow.run(mode="merge")
    assert flow.target.query("select count(*) from items") == [(2,)]
    assert not (tmp_path / "new %41?#.db.penstock.lock").exists()


def test_planning_reads_a_target_that_a_dead_writer_has_left(flow: Flow) -> None:
    flow.target.execute(
        "create table other (n integer)",
        "insert into other with recursive g(n) as (select 1 union all select n + 1 from g where n < 50000)"
        " select n from g",
    )
    path = flow.target.path  # type: ignore[attr-defined]
    with holding(path, "pragma cache_size = 5", "begin immediate", "update other set n = 0") as kill:
        kill()
    flow.run()
    assert flow.target.query("select max(n) from other") == [(50_000,)]
    with open_source(SQLiteConfig(name="t", path=str(path))) as session:
        assert session.query("pragma integrity_check") == [("ok",)]
