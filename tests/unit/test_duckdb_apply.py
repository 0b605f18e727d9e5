"""What a flush into DuckDB holds, and how long."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pyarrow as pa

from penstock.backends.duckdb.apply import DuckDBApplier
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.steps import TableLoad
from penstock.schema import TableName


def test_the_rows_of_a_round_are_let_go_before_the_transaction_ends(tmp_path: Path) -> None:
    """A large transaction comes in rounds: held until its end, they would be all of it."""
    applier = DuckDBApplier(DuckDBConfig(name="to", path=str(tmp_path / "a.duckdb")), "r")
    load = TableLoad(TableName("main", "docs"), (), ())
    with applier.session() as session:
        session.execute("create table docs (id bigint, body varchar)")
        for number in range(3):
            rows = pa.table({"id": pa.array([number, number + 10], pa.int64()), "body": ["x" * 1000, None]})
            held = weakref.ref(rows)
            applier.stage(session, "staged", rows, load)
            del rows
            session.execute("delete from docs where exists (select 1 from staged as s where s.id = docs.id)")
            session.execute("insert into docs select * from staged")
            assert session.query("select id from staged where body is null") == [(number + 10,)]
            applier.unstage(session, "staged")
            gc.collect()
            assert held() is None
    with applier.session() as session:
        assert session.query("select count(*), count(body), sum(id) from docs") == [(6, 3, 36)]
