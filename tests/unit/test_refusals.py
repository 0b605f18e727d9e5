"""docs/reference/refusals.md is the whole list of what may be refused, and the code refuses no more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.backends import arrowtypes
from penstock.backends.base import Native, Verdict
from penstock.backends.duckdb import types as duckdb_types
from penstock.backends.postgres import native as postgres_native
from penstock.backends.postgres import types as postgres_types
from penstock.backends.postgres.native import Held
from penstock.backends.postgres.types import PgType
from penstock.backends.sqlite import types as sqlite_types
from penstock.schema import Column
from tests.conformance.values import DUCKDB, DUCKDB_ONLY, POSTGRES, POSTGRES_ONLY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "refusals.md"
SERVER = 180_000

# What the table holds beyond the types of the conformance suite: families of the same kind, and
# values that no type of its own is made of.
RELATED = {
    ("postgres", "duckdb", "run"): {"timestamptz"},
    ("duckdb", "postgres", "planning"): {"TIMESTAMPTZ_NS", "UNION", "VARIANT", "GEOMETRY"},
    ("duckdb", "postgres", "run"): {"VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMPTZ"},
    ("duckdb", "duckdb", "planning"): {"UNION", "VARIANT", "GEOMETRY"},
    ("postgres", "memory", "run"): {"timestamptz"},
    ("duckdb", "memory", "planning"): {"UNION", "VARIANT", "GEOMETRY"},
    ("postgres", "sqlite", "run"): {"timestamptz", "real", "double precision"},
    ("duckdb", "sqlite", "run"): {"FLOAT", "DOUBLE"},
    ("duckdb", "sqlite", "planning"): {"UNION", "VARIANT", "GEOMETRY"},
}
# A fixed-size array is a list elsewhere, with the same elements.
LISTS = {"INTEGER[2]"}


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    target: str
    types: frozenset[str]
    when: str
    instead: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in ("postgres", "duckdb"):
            source, target, what, when, instead = cells
            found.append(Row(source, target, frozenset(re.findall(r"`([^`]+)`", what)), when, instead))
    return found


def table() -> dict[tuple[str, str, str], set[str]]:
    found: dict[tuple[str, str, str], set[str]] = {}
    for row in rows():
        found.setdefault((row.source, row.target, row.when), set()).update(row.types)
    return found


def family(spelling: str) -> str:
    """A type as the table calls it: `STRUCT(a INTEGER)` is a `STRUCT`, `integer[]` a `T[]`."""
    brackets = re.search(r"(\[\])+$", spelling)
    if brackets is not None:
        return "T" + brackets[0]
    if spelling.startswith("numeric("):
        return "numeric(p,s)"
    return spelling.partition("(")[0]


def test_rows_are_whole() -> None:
    assert len(rows()) > 5
    for row in rows():
        assert row.types
        assert row.when in ("planning", "run")
        assert row.instead


def test_the_table_holds_exactly_what_the_suites_refuse() -> None:
    expected = {
        ("postgres", "duckdb", "run"): {family(name) for name in POSTGRES_ONLY},
        # An interval is text in SQLite, which takes every one.
        ("postgres", "memory", "run"): {family(name) for name in POSTGRES_ONLY if name != "interval"},
        ("postgres", "sqlite", "run"): {family(name) for name in POSTGRES_ONLY if name != "interval"},
        ("postgres", "postgres", "run"): {name for name in POSTGRES if name.startswith("reg") or name == "aclitem"},
        ("duckdb", "postgres", "planning"): {family(name) for name in DUCKDB_ONLY if name not in LISTS},
    }
    for direction, names in RELATED.items():
        expected.setdefault(direction, set()).update(names)
    assert table() == expected


def into_postgres(column: Column) -> Native:
    own = postgres_native.own_type(column)
    return postgres_native.plan(column, Held(own) if own else None, None, asked=False, server=SERVER)


def into_duckdb(column: Column) -> Native:
    return duckdb_types.native(column, None, None)


OPAQUE = ["UNION(n INTEGER, t VARCHAR)", "VARIANT", "GEOMETRY"]
SPELLINGS = [*DUCKDB, *DUCKDB_ONLY, *OPAQUE, "TIMESTAMPTZ_NS", "STRUCT(a INTEGER)[]", "MAP(VARCHAR, INTEGER)[]"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_planning_refuses_from_duckdb_to_postgres_what_the_table_says(spelling: str) -> None:
    refused = into_postgres(duckdb_types.canonical("x", spelling)).verdict is Verdict.REFUSED
    said = table()["duckdb", "postgres", "planning"]
    listed = family(spelling) in said or family(spelling.removesuffix("[]")) in said
    assert refused == listed


@pytest.mark.parametrize("spelling", [*DUCKDB, *DUCKDB_ONLY, *OPAQUE])
def test_planning_refuses_from_duckdb_to_duckdb_what_the_table_says(spelling: str) -> None:
    planned = into_duckdb(duckdb_types.canonical("x", spelling))
    assert (planned.verdict is Verdict.REFUSED) == (family(spelling) in table()["duckdb", "duckdb", "planning"])


@pytest.mark.parametrize("spelling", [*DUCKDB, *DUCKDB_ONLY, *OPAQUE])
def test_planning_refuses_from_duckdb_to_sqlite_what_the_table_says(spelling: str) -> None:
    planned = sqlite_types.native(duckdb_types.canonical("x", spelling), None, None)
    assert (planned.verdict is Verdict.REFUSED) == (family(spelling) in table()["duckdb", "sqlite", "planning"])


@pytest.mark.parametrize("spelling", [*DUCKDB, *DUCKDB_ONLY, *OPAQUE])
def test_planning_refuses_from_duckdb_to_memory_what_the_table_says(spelling: str) -> None:
    planned = arrowtypes.native(duckdb_types.canonical("x", spelling), None, None)
    assert (planned.verdict is Verdict.REFUSED) == (family(spelling) in table()["duckdb", "memory", "planning"])


@pytest.mark.parametrize(
    ("name", "spelling", "typmod"),
    [
        *((name, name, -1) for name in postgres_types.SCALARS),
        ("numeric", "numeric", -1),
        ("numeric", "numeric(10,2)", ((10 << 16) | 2) + 4),
        ("interval", "interval", -1),
        ("inet", "inet", -1),
        ("int4range", "int4range", -1),
    ],
)
def test_planning_refuses_nothing_from_postgres(name: str, spelling: str, typmod: int) -> None:
    assert not [key for key in table() if key[0] == "postgres" and key[2] == "planning"]
    column = postgres_types.canonical("x", PgType(name, "pg_catalog", spelling, typmod))
    assert into_duckdb(column).verdict is not Verdict.REFUSED
    assert sqlite_types.native(column, None, None).verdict is not Verdict.REFUSED
    assert arrowtypes.native(column, None, None).verdict is not Verdict.REFUSED


def test_whatever_is_refused_at_planning_loads_as_text() -> None:
    text = Column("x", pa.string())
    assert into_postgres(text).verdict is Verdict.EXACT
    assert into_duckdb(text).verdict is Verdict.EXACT
    assert sqlite_types.native(text, None, None).verdict is Verdict.EXACT
    assert arrowtypes.native(text, None, None).verdict is Verdict.EXACT
    for row in rows():
        if row.when == "planning":
            assert '"text"' in row.instead
