"""The modes against a model: random histories of a source, loaded step by step into a real DuckDB in memory.

The planner's own statements are run as they are; what the target then holds must be what a few
lines of Python say it should hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.base import RAW, LoadPlan, Native, RunContext, Target, TargetColumn, TargetTable
from penstock.backends.duckdb import types
from penstock.backends.duckdb.capabilities import CAPABILITIES
from penstock.backends.duckdb.dialect import DuckDBDialect, render
from penstock.backends.sql import Counts, SqlSession, run_steps
from penstock.load.plan import LoadRequest, plan_load
from penstock.project.model import Pipeline
from penstock.schema import Column, Ddl, Schema, TableName

TABLE = TableName("main", "items")


class Session(SqlSession):
    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})  # a few rows have no work for more
        self.connection.execute("set timezone = 'UTC'")

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        rows = self.connection.execute(sql, list(params)).fetchall()
        return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else 0

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, list(params)).fetchall()

    def transaction(self) -> str:
        return "one"


class Planned(Target):
    """A target as far as planning goes: the catalog of the session's own DuckDB."""

    dialect = DuckDBDialect()

    def __init__(self, session: Session) -> None:
        self.session = session

    def inspect(self, table: TableName) -> TargetTable | None:
        rows = self.session.query(
            "select column_name, data_type, is_nullable, column_default is not null from duckdb_columns()"
            " where table_name = ? and not internal and database_name <> 'temp' order by column_index",
            (table.table,),
        )
        columns = tuple(TargetColumn(name, type_, null, default) for name, type_, null, default in rows)
        return TargetTable(table, columns) if columns else None

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return types.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:
        return render(ddl)

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        return None

    def begin(self, plan: LoadPlan) -> Any:
        raise AssertionError("nothing is loaded by a planned target")

    def qualify(self, table: TableName) -> TableName:
        return table

    def has_schema(self, schema: str) -> bool:
        return True


NAMES = st.lists(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(
        lambda name: not name.startswith("_penstock") and name == name.strip()
    ),
    min_size=2,
    max_size=2,
    unique_by=lambda name: name.lower(),
).filter(lambda names: not {name.lower() for name in names} & {"valid_from", "valid_to", "is_current", "row_hash"})
STATES = st.lists(
    st.dictionaries(st.integers(0, 6), st.none() | st.sampled_from(["a", "b", "", "A"]), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)
RUN = RunContext("0" * 32, "p", Path("/nowhere"))


@dataclass
class Loader:
    """Loads one state of the source after the other."""

    names: list[str]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self.session = Session()
        self.target = Planned(self.session)
        self.pipeline = Pipeline.model_validate(
            {"name": "p", "source": "s", "table": "t", "target": "w.items", "max_delete_ratio": 1, "allow_empty": True}
            | self.options
        )
        key, value = self.names
        self.schema = Schema.of([Column(key, pa.int64(), nullable=False), Column(value, pa.string())])

    def load(self, state: dict[int, str | None]) -> Counts:
        planned = plan_load(
            LoadRequest(self.pipeline, self.schema, (self.names[0],), TABLE, self.target.inspect(TABLE), RUN),
            self.target,
            CAPABILITIES,
        )
        planned.require("test")
        table = pa.table({self.names[0]: list(state), self.names[1]: list(state.values())}, schema=self.schema.arrow())
        self.session.connection.register("staged_rows", table)
        self.session.execute(f"create or replace temp table {RAW} as select * from staged_rows")
        counts = Counts()
        run_steps(self.session, planned.load.tables[0], counts, savepoints=False)
        for kind, name in self.session.query(
            "select 'view', view_name from duckdb_views() where temporary and view_name like '\\_penstock%' escape '\\'"
            " union all select 'table', table_name from duckdb_tables() where temporary"
            " and table_name like '\\_penstock%' escape '\\'"
        ):
            self.session.execute(f"drop {kind} temp.{name}")
        return counts

    def rows(self, extra: str = "") -> list[tuple[Any, ...]]:
        columns = ", ".join(self.target.dialect.quote(name) for name in self.names) + extra
        return self.session.query(f"select {columns} from items order by 1, 2 nulls first")


def ordered(pairs: Any) -> list[tuple[Any, ...]]:
    return sorted(pairs, key=lambda row: (row[0], row[1] is not None, row[1] or ""))


@settings(deadline=None, max_examples=15)
@given(names=NAMES, states=STATES)
def test_append_is_the_sum_of_all_states(names: list[str], states: list[dict[int, str | None]]) -> None:
    loader = Loader(names, {"mode": "append"})
    for state in states:
        loader.load(state)
    assert loader.rows() == ordered(pair for state in states for pair in state.items())


@settings(deadline=None, max_examples=15)
@given(names=NAMES, states=STATES)
def test_truncate_is_the_last_state(names: list[str], states: list[dict[int, str | None]]) -> None:
    loader = Loader(names, {"mode": "truncate"})
    for state in states:
        loader.load(state)
    assert loader.rows() == ordered(states[-1].items())


@settings(deadline=None, max_examples=25)
@given(names=NAMES, states=STATES, deletes=st.sampled_from(["none", "hard", "soft"]))
def test_merge_is_the_union_of_states_less_what_vanished(
    names: list[str], states: list[dict[int, str | None]], deletes: str
) -> None:
    loader = Loader(names, {"mode": "merge", "deletes": deletes})
    held: dict[int, str | None] = {}
    gone: set[int] = set()
    for state in states:
        counts = loader.load(state)
        returning = {key for key in state if key in gone}
        assert counts.inserted == len(state.keys() - held.keys())
        assert counts.updated == len(
            {key for key in state if key in held and (held[key] != state[key] or key in returning)}
        )
        vanished = held.keys() - state.keys() - gone
        assert counts.deleted == (len(vanished) if deletes != "none" else 0)
        if deletes == "hard":
            held = {key: value for key, value in held.items() if key in state}
        elif deletes == "soft":
            gone = (gone | vanished) - state.keys()
        held |= state
    assert loader.rows() == ordered(held.items())
    if deletes == "soft":
        assert {row[0] for row in loader.rows(", _penstock_deleted") if row[2]} == gone


@settings(deadline=None, max_examples=25)
@given(names=NAMES, states=STATES, deletes=st.sampled_from(["none", "close"]))
def test_scd2_is_every_version_once_without_gap_or_overlap(
    names: list[str], states: list[dict[int, str | None]], deletes: str
) -> None:
    loader = Loader(names, {"mode": "scd2", "deletes": deletes})
    current: dict[int, str | None] = {}
    versions: list[tuple[int, str | None]] = []
    for state in states:
        loader.load(state)
        if deletes == "close":
            current = {key: value for key, value in current.items() if key in state}
        for key, value in state.items():
            if key not in current or current[key] != value:
                versions.append((key, value))
        current |= state
    assert loader.rows() == ordered(versions)
    key = loader.target.dialect.quote(names[0])
    assert ordered(row[:2] for row in loader.rows(", is_current") if row[2]) == ordered(current.items())
    overlaps = f"""
        select count(*) from items a join items b on a.{key} = b.{key} and a.valid_from < b.valid_from
        where a.valid_to is null or a.valid_to > b.valid_from"""
    assert loader.session.query(overlaps) == [(0,)]
