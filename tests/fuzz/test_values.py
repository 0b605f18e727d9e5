"""Fuzz: random values of every native type, through every direction, compared with the source's own text.

`make fuzz` runs many examples (PENSTOCK_FUZZ_EXAMPLES); the suite runs a few. Each example is a
table with a column per type.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.run.pipeline import run
from penstock.state import RunRecord
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow, Harness, PostgresHarness, SQLiteHarness
from tests.faults.bare import stage_here

pytestmark = [pytest.mark.postgres]

EXAMPLES = int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "5"))
ROWS = 12
FORMATS = ("parquet", "csv", "jsonl")  # of files, each the source of another

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20)
DIGITS = st.text("0123456789", min_size=1, max_size=40)


def integers(bits: int) -> st.SearchStrategy[str]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda n: f"{'-' if n < 0 else ''}{abs(n) // 10**scale}.{abs(n) % 10**scale:0{scale}d}"
    )


def quoted(values: list[str | None]) -> str:
    parts = ["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values]
    return "{" + ",".join(parts) + "}"


def arrays(element: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.none() | element, max_size=4).map(quoted)


MICROS = st.integers(-(10**12), 10**12)
DATES = st.dates().map(str) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01", "4713-01-01 BC"]
)
TIMESTAMPS = st.datetimes().map(str) | st.sampled_from(
    ["infinity", "-infinity", "0001-01-01 BC", "200000-01-01 00:00:00.1"]
)
INTERVALS = st.builds(
    lambda months, days, micros: f"{months} mons {days} days {micros} us",
    st.integers(-(10**9), 10**9),
    st.integers(-(10**9), 10**9),
    st.integers(-(10**17), 10**17),
)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT.filter(lambda text: "\0" not in text)
DOCUMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
FLOATS = st.floats(width=64).map(repr)

POSTGRES: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "smallint": integers(16),
    "integer": integers(32),
    "bigint": integers(64),
    "real": st.floats(width=32).map(repr),
    "double precision": FLOATS,
    "numeric": st.builds(lambda a, b, sign: f"{sign}{a}.{b}", DIGITS, DIGITS, st.sampled_from(["", "-"]))
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "0", "1e100", "1e-100"]),
    "numeric(38,12)": decimals(38, 12),
    "numeric(12,3)": decimals(12, 3),
    "numeric(60,20)": decimals(60, 20),
    "text": TEXT,
    "varchar(20)": TEXT,
    "char(20)": TEXT,
    "bytea": st.binary(max_size=30).map(lambda data: "\\x" + data.hex()),
    "date": DATES,
    "time": st.times().map(str) | st.just("24:00:00"),
    "timestamp": TIMESTAMPS,
    "timestamptz": TIMESTAMPS.map(lambda text: text if "inf" in text or "BC" in text else f"{text}+03"),
    "interval": INTERVALS,
    "uuid": st.uuids().map(str),
    "json": DOCUMENTS.map(lambda value: json.dumps(value, ensure_ascii=False).replace("\\u0000", "")),
    "jsonb": DOCUMENTS.map(lambda value: json.dumps(value, ensure_ascii=False).replace("\\u0000", "")),
    "inet": st.ip_addresses().map(str),
    "bit varying": st.text("01", max_size=70),
    "int8range": st.tuples(integers(32), st.integers(0, 10)).map(lambda r: f"[{r[0]},{int(r[0]) + r[1]})"),
    "integer[]": arrays(integers(32)),
    "text[]": arrays(TEXT),
    "numeric(20,5)[]": arrays(decimals(20, 5)),
    "timestamptz[]": arrays(TIMESTAMPS.filter(lambda text: "BC" not in text)),
    "double precision[]": arrays(FLOATS),
    "uuid[]": arrays(st.uuids().map(str)),
}


def tables(types: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[list[tuple[str | None, ...]]]:
    return st.lists(st.tuples(*(st.none() | values for values in types.values())), min_size=1, max_size=ROWS)


def held_by_sqlite(text: str) -> bool:
    """It has neither NaN nor a negative zero: those are refused, each with its key."""
    return text not in ("nan", "-0.0")


SQLITE = POSTGRES | {name: POSTGRES[name].filter(held_by_sqlite) for name in ("real", "double precision")}

# What a cell of a foreign file may be, by the declaration of its column; as SQLite itself spells it.
INTEGERS = integers(64).filter(lambda text: text != str(-(2**63)))  # to SQLite's parser, that is a real
REALS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: str(value) != "-0.0").map(repr)
LETTERS = TEXT.map(lambda text: "'" + text.replace("'", "''") + "'")
BYTES = st.binary(max_size=20).map(lambda data: f"x'{data.hex()}'")
FOREIGN: dict[str, st.SearchStrategy[str]] = {
    "integer": INTEGERS,
    "bigint": INTEGERS,
    "real": REALS,
    "text": LETTERS,
    "varchar(5)": LETTERS,
    "blob": BYTES,
    # Beyond these, a whole real is an integer to SQLite that no double holds among others: such a mix is refused.
    "decimal(10,2)": st.integers(-(2**53), 2**53).map(str) | st.floats(-(2.0**53), 2.0**53).map(repr),
    "": LETTERS,
    "datetime": st.datetimes().map(lambda moment: f"'{moment}'"),
}


@pytest.fixture
def ends(harness: Callable[[str], Harness], tmp_path: Path) -> tuple[PostgresHarness, PostgresHarness, Path]:
    source, target = harness("postgres"), harness("postgres")
    assert isinstance(source, PostgresHarness)
    assert isinstance(target, PostgresHarness)
    return source, target, tmp_path


def seed(source: PostgresHarness, table: str, rows: list[tuple[str | None, ...]]) -> None:
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(POSTGRES))
    casts = ", ".join(["%s::int", *(f"%s::text::{name}" for name in POSTGRES)])
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        connection.execute(f"create table {table} (id int primary key, {columns})".encode())
        for number, row in enumerate(rows):
            connection.execute(f"insert into {table} select {casts}".encode(), (number, *row))


def texts(end: PostgresHarness, table: str) -> list[tuple[Any, ...]]:
    cells = ", ".join(f"c{n}::text" for n in range(len(POSTGRES)))
    return end.query(f"select id, {cells} from {table} order by id")


def move(
    source: Harness, target: Harness, root: Path, table: str, path: str = "fused", mode: str = "merge"
) -> RunRecord:
    flow = Flow(source, target, root)
    pipeline = flow.pipeline(
        mode=mode,
        keys=["id"],
        table=f"{source.schema}.{table}",
        target=f"to.{target.schema}.{table}",
        path=path,
    )
    return run(flow.project(pipeline), pipeline, flow.store, stage=stage_here)[-1]


FUZZED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@FUZZED
@given(rows=tables(POSTGRES))
def test_random_values_are_the_same_on_every_way(
    ends: tuple[PostgresHarness, PostgresHarness, Path], rows: list[tuple[str | None, ...]]
) -> None:
    source, target, root = ends
    table = f"t{uuid.uuid4().hex[:10]}"
    seed(source, table, rows)
    expected = texts(source, table)
    move(source, target, root, table)
    assert texts(target, table) == expected

    lake = DuckDBHarness(root / f"{table}.duckdb")
    move(source, lake, root, table)
    target.execute(f"drop table {table}")
    move(lake, target, root, table)
    assert texts(target, table) == expected


@FUZZED
@given(rows=tables(SQLITE))
def test_random_values_are_the_same_by_way_of_sqlite(
    ends: tuple[PostgresHarness, PostgresHarness, Path], rows: list[tuple[str | None, ...]]
) -> None:
    source, target, root = ends
    table = f"t{uuid.uuid4().hex[:10]}"
    seed(source, table, rows)
    file, other = (SQLiteHarness(root / f"{table}{number}.db") for number in range(2))
    move(source, file, root, table)
    assert move(source, file, root, table).updated == 0
    move(file, other, root, table)
    assert cells(other, table) == cells(file, table)
    move(other, target, root, table)
    assert texts(target, table) == texts(source, table)


@FUZZED
@given(rows=tables(POSTGRES), formats=st.permutations(FORMATS))
def test_random_values_are_the_same_by_way_of_files(
    ends: tuple[PostgresHarness, PostgresHarness, Path], rows: list[tuple[str | None, ...]], formats: list[str]
) -> None:
    source, target, root = ends
    table = f"t{uuid.uuid4().hex[:10]}"
    seed(source, table, rows)
    at: Harness = source
    for name in formats:
        lake = FilesHarness(root / f"{table}-{name}", name)
        assert move(at, lake, root, table, mode="append").rows == len(rows)
        at = lake
    move(at, target, root, table)
    assert texts(target, table) == texts(source, table)


def cells(end: SQLiteHarness, table: str) -> list[tuple[Any, ...]]:
    """Each cell with its storage class; a real in full, as `quote` prints it."""
    columns = [name for name in end.columns(table) if name != "id"]
    shown = ", ".join(f"typeof({name}) || ' ' || quote({name})" for name in columns)
    return end.query(f"select id, {shown} from {table} order by id")


@FUZZED
@given(rows=tables(FOREIGN))
def test_random_cells_of_a_foreign_file_are_the_same_on_every_way(
    tmp_path: Path, rows: list[tuple[str | None, ...]]
) -> None:
    table = f"t{uuid.uuid4().hex[:10]}"
    source, target = (SQLiteHarness(tmp_path / f"{table}{number}.db") for number in range(2))
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(FOREIGN))
    values = ", ".join(f"({n}, {', '.join(cell or 'null' for cell in row)})" for n, row in enumerate(rows))
    source.execute(f"create table {table} (id integer primary key, {columns})", f"insert into {table} values {values}")
    move(source, target, tmp_path, table)
    expected, loose = cells(source, table), list(FOREIGN).index("decimal(10,2)") + 1
    reals = {"integer", "real"} <= {row[loose].split()[0] for row in expected}
    for there, row in zip(cells(target, table), expected, strict=True):
        # Integers among reals are reals.
        assert there[:loose] == row[:loose]
        assert there[loose + 1 :] == row[loose + 1 :]
        assert reals or there[loose] == row[loose]
    flow = Flow(source, source, tmp_path)
    flow.run(mode="merge", keys=["id"], table=f"main.{table}", target="to.main.again", path="native")
    assert cells(source, "again") == cells(target, table)
