"""The commit of a load into a DuckDB file: what is loaded, and what stays when it fails."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.base import Receipt, UserSql
from penstock.backends.duckdb import config
from penstock.errors import DataError, StagingLost, TargetError
from penstock.schema import Column, TableName
from tests.conformance.duckdb_bench import BACKEND, INTS, Files, ints, load_batches


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
    again = load._send_commit  # type: ignore[attr-defined]  # the backend's own part

    def twice(session: object, *done: object) -> None:
        session.connection.execute("commit")  # type: ignore[attr-defined]  # the backend's own part
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


@pytest.mark.parametrize(
    ("type_sql", "type_", "key"),
    [("varchar", pa.string(), lambda number: sha256(b"%d" % number).hexdigest()), ("bigint", pa.int64(), int)],
    ids=["in a statement", "in the commit"],
)
def test_a_load_that_cannot_do_with_its_memory_gets_more_unless_it_was_told_how_much(
    files: Files, monkeypatch: pytest.MonkeyPatch, type_sql: str, type_: pa.DataType, key: Callable[[int], object]
) -> None:
    """The index of a key cannot be spilled."""
    monkeypatch.setattr(config, "FIRST_MEMORY_LIMIT", 8 * 2**20)
    files.sql("target", f"create table t (id {type_sql} primary key)")
    rows = 400_000

    def load(**options: object) -> int:
        plan = files.plan([Column("id", type_)])
        load = BACKEND.target(files.config("target", **options), plan.run).begin(plan)
        try:
            batch = pa.record_batch({"id": pa.array([key(number) for number in range(rows)], type_)})
            return load.commit([load.sink(0).write(0, iter([batch]))]).inserted
        finally:
            load.close()

    with pytest.raises(TargetError, match="memory_limit") as caught:
        load(memory_limit="8MiB")
    assert caught.value.kept == "nothing was committed"
    assert files.sql("target", "select count(*) from t") == [(0,)]
    assert load() == rows
    assert files.sql("target", "select count(*), count(distinct id) from t") == [(rows, rows)]
