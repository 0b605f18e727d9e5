"""Rows without a key that go from SQLite: found by all of their values, and never each compared with each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.backends.applier import DELETES
from penstock.backends.base import Execute, Native, StagedColumn, TableLoad
from penstock.backends.sql import Counts, run_steps
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session, open_target
from penstock.backends.sqlite.dialect import SQLiteDialect
from penstock.errors import TargetError
from penstock.load.flush import TIMES, Replica, Shape, flush_steps
from penstock.schema import Column, TableName

COLUMNS = tuple(
    StagedColumn(name, Column(name, type_), Native(word))
    for name, word, type_ in (
        ("n", "bigint", pa.int64()),
        ("x", "double", pa.float64()),
        ("s", "text", pa.string()),
        ("b", "binary", pa.binary()),
    )
)
BAG = TableName("main", "bag")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_target(SQLiteConfig(name="to", path=str(tmp_path / "a.db")), create=True) as made:
        yield made


def remove(session: Session, rows: str) -> str:
    """Delete rows of n, x, s, b, each as often as its fifth column says; returns how it was planned."""
    session.execute(f"create temporary table {DELETES} (n, x, s, b, {TIMES})")
    session.execute(f"insert into {DELETES} {rows}")
    shape = Shape(truncated=False, upserts=False, deletes=True, unsent=())
    made, change, drop = flush_steps(Replica(BAG, COLUMNS, (), metadata=False), SQLiteDialect(), shape)
    assert isinstance(change, Execute)
    run_steps(session, TableLoad(BAG, COLUMNS, (made,)), Counts(), savepoints=True)
    plan = "\n".join(row[3] for row in session.query(f"explain query plan {change.sql}"))
    try:
        run_steps(session, TableLoad(BAG, COLUMNS, (change,)), Counts(), savepoints=True)
    finally:
        run_steps(session, TableLoad(BAG, COLUMNS, (drop,)), Counts(), savepoints=True)
        session.execute(f"drop table {DELETES}")
    return plan


def test_rows_that_go_are_looked_up_and_not_compared_with_each(session: Session) -> None:
    numbers = "with recursive i(v) as (select 1 union all select v + 1 from i where v < 40000)"
    row = "v % 3, v / 8.0, 'row ' || (v % 20000), cast('b' || v as blob)"
    session.execute("create table bag (n integer, x real, s text, b blob) strict")
    session.execute(f"insert into bag {numbers} select {row} from i")
    plan = remove(session, f"{numbers} select {row}, 1 from i where v % 2 = 0")
    assert "SEARCH g USING AUTOMATIC" in plan
    assert "SCAN g" not in plan
    assert session.query("select count(*), sum(x), count(distinct s) from bag") == [(20_000, 50_000_000.0, 10_000)]


# No two of them are one.
UNLIKE = (
    "1, 1.0, 'a', x'00'",
    "1, 1, 'a', x'00'",  # of a column of floats, another class
    "1, 1.0, 'A', x'00'",
    "1, 1.0, 'a', x'0000'",
    "1, 1.0, 'a', null",
    "1, 1.0, null, x'00'",
    "1, null, 'a', x'00'",
    "null, 1.0, 'a', x'00'",
    "null, null, null, null",
    "1, 1.0, '', x''",
    "1, 1.0, ';', null",
    "1, 1.0, null, x''",
    "1, 1.0, 'a,', x'61'",
    "9007199254740993, 0.1, 'a', x'61'",
    "9007199254740992, 0.1, 'a', x'61'",
    "1, 0.30000000000000004, 'a', x'61'",
    "1, 0.3, 'a', x'61'",
    "1, 0.0, 'a', x'61'",
    "1, 1e300, 'a', x'61'",
    "1, -1e300, 'a', x'61'",
    "1, 9e999, 'a', x'61'",
    "9223372036854775807, 9223372036854775808.0, 'a', x'61'",
    "9223372036854775807, 9223372036854775807, 'a', x'61'",
)


@pytest.mark.parametrize("collation", ["", "collate nocase"])
def test_each_goes_as_often_as_is_said_and_none_that_only_looks_alike(session: Session, collation: str) -> None:
    # Of no declared type: a cell keeps the class that it came with.
    session.execute(f"create table bag (n, x, s {collation}, b, id integer primary key)")
    for times in (1, 2, 3):
        for number, row in enumerate(UNLIKE):
            session.execute(f"insert into bag values ({row}, {times * 100 + number})")
    remove(session, "values " + ", ".join(f"({row}, {1 + number % 2})" for number, row in enumerate(UNLIKE)))
    expected = {300 + number for number in range(len(UNLIKE))} | {200 + number for number in range(0, len(UNLIKE), 2)}
    assert {row[0] for row in session.query("select id from bag")} == expected


@pytest.mark.parametrize(
    ("held", "sent"),
    [
        ("1, 0.0, 'a', x'00'", "1.0, 0.0, 'a', x'00'"),
        ("1.0, 0.0, 'a', x'00'", "1, 0.0, 'a', x'00'"),
        ("1, -0.0, 'a', x'00'", "1, 0.0, 'a', x'00'"),
        ("1, 0.0, 'a', x'00'", "1, -0.0, 'a', x'00'"),
        ("1, 0.0 * -1, 'a', x'00'", "1, 0.0, 'a', x'00'"),
        ("-9223372036854775808, 0.5, 'a', x'00'", "-9223372036854775808.0, 0.5, 'a', x'00'"),
    ],
)
def test_what_the_target_calls_equal_is_found(session: Session, held: str, sent: str) -> None:
    session.execute("create table bag (n, x, s, b)")
    session.execute(f"insert into bag values ({held})")
    remove(session, f"values ({sent}, 1)")
    assert session.query("select count(*) from bag") == [(0,)]


def test_a_row_that_is_not_there_as_often_ends_the_flush(session: Session) -> None:
    session.execute("create table bag (n, x, s, b)")
    session.execute("insert into bag values (1, 1.0, 'a', null)")
    with pytest.raises(TargetError, match="did not take every row"):
        remove(session, "values (1, 1.0, 'a', null, 2)")
