"""Columns of a SQLite table that become another storage class: everything else about the table stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import testing
from penstock.backends.sqlite.connect import open_target
from penstock.errors import DataError, PlanRefused
from penstock.observe.failpoints import ENV
from penstock.project import Project
from penstock.schema import TableName, WidenColumn
from tests.conformance.harness import Flow, Harness
from tests.conformance.sqlite_bench import Bench, sqlite

__all__ = ["sqlite"]

REPO = Path(__file__).resolve().parents[2]
# Of a table that the load has made: of the source's type, and of what it becomes.
CHANGES = [
    ("integer", "double", "1.5", [(1.0,), (1.5,)]),
    ("smallint", "float", "1.5", [(1.0,), (1.5,)]),
    ("integer", "decimal(12,2)", "1.5", [("1.00",), ("1.50",)]),
    ("integer", "hugeint", "170141183460469231731687303715884105727", [("1",), (str(2**127 - 1),)]),
    ("uinteger", "ubigint", "18446744073709551615", [("1",), ("18446744073709551615",)]),
    ("decimal(10,2)", "decimal(20,4)", "1.5", [("1.0000",), ("1.5000",)]),
    ("integer[]", "bigint[]", "[5000000000]", [("[1]",), ("[5000000000]",)]),
    ("enum('1')", "enum('1', 'b')", "'b'", [("1",), ("b",)]),
    ("json", "varchar", "'{'", [("1",), ("{",)]),
]


@pytest.fixture
def flow(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Flow(harness("duckdb"), harness("sqlite"), tmp_path)


def source(flow: Flow, type_: str, *values: str, key: str = "int") -> None:
    flow.source.execute(
        f"create or replace table items (id {key} primary key, v {type_})",
        *(f"insert into items values ({number}, {value})" for number, value in enumerate(values, 1)),
    )


def seeded(flow: Flow, *statements: str, value: str = "1") -> None:
    """A table of somebody else's, whose integers may be of any size, or one that the load makes; loaded once."""
    source(flow, "integer", value)
    flow.target.execute(*statements)
    flow.run(mode="merge", keys=["id"])


def evolve(flow: Flow, **options: Any) -> Any:
    return flow.run(mode="merge", on_drift="evolve", **options)


def read(flow: Flow, table: str = "main.items") -> list[dict[str, Any]]:
    made = Project.from_objects(flow.root, {"to": flow.target.options()})
    return sorted(testing.rows(made.connection("to"), table), key=lambda row: row["id"])


def made(flow: Flow) -> dict[str, str]:
    """What the file consists of, Penstock's own tables aside."""
    found = "select name, sql from sqlite_schema where name not like '\\_penstock\\_%' escape '\\' and sql is not null"
    return dict(flow.target.query(found))


@pytest.mark.parametrize(("before", "after", "value", "held"), CHANGES)
def test_5_sqlite_a_wider_type_widens_the_column(
    flow: Flow, before: str, after: str, value: str, held: list[tuple[Any, ...]]
) -> None:
    first = "[1]" if before.endswith("[]") else "'1'" if before[0] in "ej" else "1"
    source(flow, before, first, "null")
    flow.run(mode="merge")
    source(flow, after, first, "null", value)
    with pytest.raises(PlanRefused) as caught:
        flow.run(mode="merge")
    assert 'on_drift = "evolve" would widen it to' in caught.value.remedy
    assert evolve(flow).inserted == 1
    assert flow.target.query("select v from items where v is not null order by id") == held
    assert [row["v"] for row in read(flow)] == [row[0] for row in expected(flow)]
    again = evolve(flow)
    assert (again.inserted, again.updated) == (0, 0)
    assert not flow.plan(mode="merge", on_drift="evolve").changes


def expected(flow: Flow) -> list[tuple[Any, ...]]:
    big = flow.source.query("select typeof(v) = 'HUGEINT' from items limit 1")[0][0]
    return flow.source.query(f"select {'cast(v as varchar)' if big else 'v'} from items order by id")


def test_5_sqlite_a_database_in_memory_is_widened_too(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = Flow(harness("duckdb"), harness("sqlite:memory"), tmp_path)
    seeded(flow)
    source(flow, "double", "1.5")
    evolve(flow)
    assert flow.target.query("select v from items") == [(1.5,)]


@pytest.mark.parametrize("after", ["double", "decimal(12,2)", "hugeint"])
def test_5_sqlite_a_key_is_widened_and_stays_the_key(flow: Flow, after: str) -> None:
    source(flow, "varchar", "'a'", "'b'")
    flow.run(mode="merge")
    source(flow, "varchar", "'A'", "'b'", "'c'", key=after)
    run = evolve(flow)
    assert (run.inserted, run.updated) == (1, 1)
    assert flow.target.query("select name, pk, \"notnull\" from pragma_table_info('items') where pk") == [("id", 1, 1)]
    assert [row["v"] for row in read(flow)] == ["A", "b", "c"]
    assert flow.target.query("select rowid from items order by rowid") == [(1,), (2,), (3,)]
    again = evolve(flow)
    assert (again.inserted, again.updated) == (0, 0)


def test_5_sqlite_everything_about_a_widened_table_stays(flow: Flow) -> None:
    seeded(
        flow,
        "create table notes (n text)",
        """create table "Items" ( -- of the shop, (really)
          "id" int primary key not null on conflict replace, v /* a, b */ INTEGER(7, 2)not null on conflict fail,
          "größe, cm" numeric default (1+1) check ("größe, cm" <> ')'),
          `note` varchar(20) collate nocase default 'v, (',
          [made of note] as (upper("note")) stored, other int references notes (n),
          constraint "as" unique (v, note)
        )""",
        "create index by_v on items (v desc)",
        "create index by_note on items (note collate rtrim) where note is not null",
        "create trigger told after insert on items begin insert into notes values (new.v); insert into notes"
        " select 'it''s; end' ; end",
        "create view seen as select i.v as v, rowid as r from items as i",
        "insert into items (id, v, note, rowid) values (9, 9, 'nine', 77)",
        "create table child (of_note text references items (note))",
    )
    before, rows = made(flow), flow.target.query('select rowid, id, note, "größe, cm", other from items order by id')
    source(flow, "decimal(22,2)", "1", "2.5")
    assert evolve(flow).inserted == 1
    before["Items"] = before["Items"].replace("INTEGER(7, 2)not null", "TEXT not null")
    assert made(flow) == before
    assert flow.target.query('select rowid, id, note, "größe, cm", other from items where id <> 2 order by id') == rows
    assert flow.target.query("select v, r from seen order by v") == [("1.00", 78), ("2.50", 79), ("9.00", 77)]
    assert flow.target.query("select n from notes where n like '%.%'") == [("2.50",)]  # not told of what was there
    assert flow.target.query("pragma integrity_check") == [("ok",)]
    assert flow.target.query('select upper(note), "made of note" from items where id = 9') == [("NINE", "NINE")]


@pytest.mark.parametrize("tail", ["", " strict", " without rowid", " strict, without rowid"])
def test_5_sqlite_several_columns_are_widened_in_every_kind_of_table(flow: Flow, tail: str) -> None:
    flow.source.execute("create table items as select 1 as id, 2 as w, 3 as v")
    flow.target.execute(f"create table items (id int, w int, v int, rowid int, primary key (id, w)){tail}")
    flow.run(mode="merge", keys=["id", "w"])
    flow.source.execute("create table other as select id, w::decimal(20,1) as w, v::hugeint as v from items")
    run = evolve(flow, table="main.other", keys=["id", "w"])
    assert (run.inserted, run.updated) == (0, 0)
    assert flow.target.query("select * from items") == [(1, "2.0", "3", None)]
    kind = "select strict, wr from pragma_table_list where name = 'items'"
    assert flow.target.query(kind) == [(int("strict" in tail), int("without" in tail))]


def test_5_sqlite_a_number_that_was_given_is_not_given_again(flow: Flow) -> None:
    seeded(
        flow,
        "create table items (n integer primary key autoincrement, id int, v int)",
        "insert into items values (50, 50, 50)",
        "delete from items",
    )
    flow.target.execute("insert into items (id, v) values (3, 3)", "delete from items where id = 3")
    source(flow, "hugeint", "1", "2")
    evolve(flow, keys=["id"])
    assert flow.target.query("select n, id, v from items order by n") == [(51, 1, "1"), (53, 2, "2")]


FIXED = [
    ("create table items (id int primary key, v int check (v > 0))", "it has a CHECK"),
    ("create table items (id int primary key, v int, check (id <= v))", "a CHECK names it"),
    ("create table items (id int primary key, v int, w as (v + 1))", "a generated column is made of it"),
    ("create table items (id int primary key, v int collate nocase)", "it has a collation"),
    ("create table items (id int primary key, v int references o (k))", "it is part of a foreign key"),
    ("create table items (id int primary key, v int, foreign key (v) references o)", "it is part of a foreign key"),
    ("create table items (id int primary key, v int default (1 + 1))", "it has the default 1 + 1"),
    (
        "create table items (id int primary key, v int unique);create table c (x int references ITEMS(V))",
        "a foreign key refers to it",
    ),
    (
        "create table items (id int primary key, v int);create index big on items (id) where v > 9",
        "the index big computes with it",
    ),
    (
        "create table items (id int, v int primary key);create table c (x int references items)",
        "a foreign key refers to it",
    ),
    ("create table items (id int primary key, v int);create index neg on items (-v)", "the index neg computes with it"),
    ("create table items (id int, v integer primary key)", "it may be the row's own number"),
    ("create table items (id int, v integer primary key) strict", "it may be the row's own number"),
]


@pytest.mark.parametrize(("statements", "why"), FIXED)
def test_5_sqlite_what_would_mean_something_else_is_refused_with_what_would_do(
    flow: Flow, statements: str, why: str
) -> None:
    seeded(flow, *statements.split(";"))
    options = {"keys": ["id"]}
    source(flow, "decimal(22,2)", "1", "3")
    before, rows = made(flow), flow.target.query("select * from items")
    with pytest.raises(PlanRefused, match=re.escape(why)) as caught:
        evolve(flow, **options)
    assert (made(flow), flow.target.query("select * from items")) == (before, rows)
    # A wider type of the same class goes in as it is.
    source(flow, "bigint", "1", "5000000000")
    evolve(flow, **options)
    assert flow.target.query("select v from items where id = 2") == [(5000000000,)]
    # What the remedy says.
    source(flow, "decimal(22,2)", "1", "3")
    assert 'columns.v = "bigint" takes what fits it' in caught.value.remedy
    evolve(flow, columns={"v": "bigint"}, **options)
    assert flow.target.query("select id, v from items order by id") == [(1, 1), (2, 3)]
    source(flow, "decimal(22,2)", "1", "2.5")
    assert "load into another table" in caught.value.remedy
    evolve(flow, target="to.main.wide", **options)
    assert flow.target.query("select id, v from wide order by id") == [(1, "1.00"), (2, "2.50")]
    with pytest.raises(DataError) as beyond:
        evolve(flow, columns={"v": "bigint"}, **options)
    assert beyond.value.keys == ("id=2",)


@pytest.mark.parametrize(
    ("after", "written"),
    [("double", 2**53 + 1), ("double", -(2**63)), ("decimal(12,2)", 10**10), ("decimal(12,2)", -(10**10))],
)
def test_5_sqlite_a_value_that_the_wider_type_cannot_hold_stops_with_its_key(
    flow: Flow, after: str, written: object
) -> None:
    seeded(flow)
    flow.target.execute(f"insert into items values (7, {written}), (8, 8)")
    before, rows = made(flow), flow.target.query("select * from items order by id")
    source(flow, after, "1", "2")
    with pytest.raises(DataError, match=r"column v has a value that .* cannot hold") as caught:
        evolve(flow)
    assert caught.value.keys == ("id=7",)
    assert (made(flow), flow.target.query("select * from items order by id")) == (before, rows)
    flow.target.execute("update items set v = 7 where id = 7")
    evolve(flow)
    assert [(row["id"], int(row["v"])) for row in read(flow)] == [(1, 1), (2, 2), (7, 7), (8, 8)]


@pytest.mark.parametrize("written", ["'x'", "1.5", "x''"])
def test_5_sqlite_a_cell_of_another_class_stops_with_its_key(flow: Flow, written: str) -> None:
    seeded(flow, "create table items (id int, v int)", f"insert into items (rowid, id, v) values (6, 7, {written})")
    source(flow, "hugeint", "1", "2")
    with pytest.raises(DataError, match="column v has a value that numeric cannot hold") as caught:
        evolve(flow)
    assert caught.value.keys == ("rowid=6",)
    assert flow.target.query("select count(*) from items where typeof(v) = 'integer'") == [(1,)]


def test_5_sqlite_what_is_remembered_goes_with_the_column(sqlite: Bench) -> None:
    """A class may widen a column that its source does not bring."""
    flow = Flow(sqlite.source, sqlite.target, sqlite.folder)
    sqlite.sql("create table items (id int primary key, v int)", "insert into items values (1, 5)")
    flow.run(mode="merge", columns={"v": "int"})
    config = sqlite.config(path=str(sqlite.target.path))
    with closing(open_target(config)) as session:
        session.execute("begin immediate")
        session.widen([WidenColumn(TableName("main", "items"), "v", "decimal(12,2)")])
        session.execute("commit")
    [row] = read(flow)
    assert row["v"] == Decimal("5.00")


def test_5_sqlite_a_table_that_was_changed_since_planning_is_not_made_again(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load looks at the table that is there, not at the one that was planned."""
    seeded(flow)
    source(flow, "double", "1.5")
    real = flow.stage

    def altered(*args: Any, **kwargs: Any) -> Any:
        flow.target.execute("alter table items add column late int default 3 check (late < v + 9)")
        return real(*args, **kwargs)

    flow.stage = altered
    with pytest.raises(Exception, match="a CHECK names it"):
        evolve(flow)
    assert flow.target.query("select id, v, late from items") == [(1, 1, 3)]


@pytest.mark.parametrize("place", ["commit.begin", "widen.dropped", "commit.loaded", "commit.done"])
def test_5_sqlite_killed_while_it_widens_the_table_is_as_before_or_as_after(flow: Flow, place: str) -> None:
    seeded(flow)
    flow.target.execute("create index by_v on items (v)")
    source(flow, "double", "1.5", "2.5")
    pipeline = {
        "name": flow.name,
        "place": "test",
        "source": "from_",
        "target": "to.main.items",
        "table": "main.items",
        "mode": "merge",
        "on_drift": "evolve",
    }
    connections = {"from_": flow.source.options(), "to": flow.target.options()}
    spec = flow.root / "spec.json"
    spec.write_text(json.dumps({"root": str(flow.root), "connections": connections, "pipeline": pipeline}))
    command = [sys.executable, "-m", "tests.faults.bare", str(spec)]
    killed = subprocess.run(command, cwd=REPO, env=os.environ | {ENV: f"{place}=kill"}, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    after = [(1, 1.5), (2, 2.5)]
    assert flow.target.query("select id, v from items order by id") == (after if place == "commit.done" else [(1, 1)])
    assert "by_v" in made(flow)
    evolve(flow)
    assert flow.target.query("select id, v from items order by id") == after
    assert flow.target.leftovers() == []
