"""Loading a DuckDB file: tasks stage Parquet beside it, the driver loads them in one transaction.

While it is open for writing, nobody else can even read the file. A database in memory is loaded by a
cursor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import sqlglot
from sqlglot import exp

from penstock.backends.base import (
    RAW,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    Sink,
    TableLoad,
    TargetColumn,
    TargetTable,
)
from penstock.backends.duckdb import reactions, types
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import OutOfMemory, Session, mapped, open_file
from penstock.backends.duckdb.dialect import DuckDBDialect, literal, render, same_name
from penstock.backends.file_load import FileLoad, FileTarget
from penstock.backends.locks import FileLock, ProcessLock
from penstock.backends.reactions import Reaction
from penstock.backends.sql import (
    check_format,
    check_staged,
    loaded_by,
    owners_of,
)
from penstock.backends.staging import StagingArea
from penstock.errors import NOT_COMMITTED, PlanRefused, StagingLost
from penstock.observe import logs
from penstock.schema import Column, Ddl, TableName
from penstock.schema.names import folded

log = logs.Log("duckdb")


class DuckDBTarget(FileTarget[Session, DuckDBConfig]):
    """A DuckDB file as a target. Planning opens it read-only, for one question at a time."""

    dialect = DuckDBDialect()

    def qualify(self, table: TableName) -> TableName:
        session = self._read()
        if session is None:
            schema = self._schema(table)
            return TableName("main" if folded(schema) == "main" else schema, table.table)
        with session:
            return self._as_spelled(session, table)

    def _as_spelled(self, session: Session, table: TableName) -> TableName:
        schema = self._schema(table)
        own = "database_name = current_database()"
        schemas = session.query(
            f"select schema_name from duckdb_schemas() where {own} and {same_name('schema_name')}", (schema,)
        )
        tables = session.query(
            f"select table_name from duckdb_tables() where {own}"
            f" and {same_name('schema_name')} and {same_name('table_name')}",
            (schema, table.table),
        )
        return TableName(schemas[0][0] if schemas else schema, tables[0][0] if tables else table.table)

    def _schema(self, table: TableName) -> str:
        schema = table.schema or self._config.default_schema
        if folded(schema) == folded(self._config.database) != "main":
            raise PlanRefused(
                f"schema {schema!r} has the name of its {'database' if self._config.in_memory else 'file'}",
                why="DuckDB calls the database after the file and cannot tell the two apart",
                remedy="rename the file, or use another schema",
            )
        return schema

    def has_schema(self, schema: str) -> bool:
        session = self._read()
        if session is None:
            return schema == "main"
        with session:
            return session.has_schema(schema)

    def inspect(self, table: TableName) -> TargetTable | None:
        self._schema(table)
        session = self._read()
        if session is None:
            return None
        with session:
            return _inspect(session, self._as_spelled(session, table), self._run.pipeline)

    def _reactions(self, session: Session, table: TableName, keys: Sequence[str]) -> list[Reaction]:
        return reactions.reactions(session, table, keys)

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return types.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:
        return render(ddl)

    def _asking(self) -> Session:
        return open_file(self._config, read_only=True)

    def _load(self, plan: LoadPlan, lock: FileLock | ProcessLock, staging: StagingArea | None) -> DuckDBLoad:
        return DuckDBLoad(self._config, plan, lock, staging)


# ---------------------------------------------------------------- what is there


def _inspect(session: Session, name: TableName, pipeline: str) -> TargetTable | None:
    where = "database_name = current_database() and schema_name = ? and table_name = ?"
    found = session.query(f"select sql, estimated_size, index_count from duckdb_tables() where {where}", name.parts)
    if not found:
        return _refuse_view(session, name)
    sql, rows, indexes = found[0]
    collations = _collations(sql)
    columns = tuple(
        TargetColumn(
            column,
            spelling + collations.get(column, ""),
            nullable,
            default is not None,
            bool(generated),
            collation=collations.get(column, "").removeprefix(" COLLATE "),
        )
        for column, spelling, nullable, default, generated in session.query(
            "select column_name, data_type, is_nullable, column_default, is_generated from duckdb_columns()"
            f" where {where} order by column_index",
            name.parts,
        )
    )
    constraints = session.query(
        f"select constraint_type, constraint_column_names, constraint_text from duckdb_constraints() where {where}",
        name.parts,
    )
    notes = [f"{kind.lower()}: {text}" for kind, _, text in constraints if kind in {"CHECK", "FOREIGN KEY", "UNIQUE"}]
    if indexes:
        notes.append(f"{indexes} indexes are kept up to date by the load, in memory")
    known = session.has_schema("_penstock")
    if known:
        check_format(session)
    return TargetTable(
        name,
        columns,
        next((tuple(names) for kind, names, _ in constraints if kind == "PRIMARY KEY"), ()),
        notes=tuple(notes),
        owners=owners_of(session, name) if known else frozenset(),
        loaded=loaded_by(session, pipeline, name) if known else frozenset(),
        rows=rows,
    )


def _refuse_view(session: Session, name: TableName) -> TargetTable | None:
    views = session.query(
        "select 1 from duckdb_views() where database_name = current_database()"
        f" and {same_name('schema_name')} and {same_name('view_name')}",
        name.parts,
    )
    return TargetTable(name, (), refusals=(f"{name} is a view",)) if views else None


def _collations(sql: str) -> dict[str, str]:
    """Collated columns; the catalog tells of them only in the table's own statement."""
    if " collate " not in sql.lower():
        return {}
    return {
        # The whole of it: `nocase.noaccent` is parsed like the name of a column.
        column.name: f" COLLATE {collation.this.sql(dialect='duckdb')}"
        for column in sqlglot.parse_one(sql, dialect="duckdb").find_all(exp.ColumnDef)
        for collation in column.find_all(exp.CollateColumnConstraint)
    }


# ---------------------------------------------------------------- the load


class DuckDBLoad(FileLoad[Session, DuckDBConfig]):
    savepoints = DuckDBDialect.savepoints

    def sink(self, table: int) -> Sink:
        return self._area().sink(table, [staged.column for staged in self._plan.tables[table].columns])

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        *limits, most = self._config.memory_limits
        for limit in limits:
            try:
                return self._commit(receipts, limit)
            except OutOfMemory:
                # Rolled back as a whole, and what was staged is still there.
                log.info("a load needs more memory", limit=limit, target=self._config.label)
        return self._commit(receipts, most)

    def _commit(self, receipts: Sequence[Receipt], memory_limit: str) -> LoadResult:
        return self._committed(open_file(self._config, read_only=False, memory_limit=memory_limit), receipts)

    def _asking(self) -> Session:
        # Read-only, so that other readers are not in the way; it replays DuckDB's log all the same.
        return open_file(self._config, read_only=True)

    def _send(self, session: Session) -> None:
        with mapped("target", "the commit was refused"):
            session.connection.execute("commit")

    def _shut(self, session: Session) -> None:
        """Closing also writes DuckDB's log into the file; if that fails, the next opener replays the log.

        So whether the load is done does not hang on it: before the COMMIT nothing is, after it all of it.
        """
        try:
            session.close()
        except duckdb.Error:
            return

    def _make_raw(self, session: Session, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> int:
        if self._plan.native_query is not None:
            return session.execute(f"create temp table {RAW} as {self._plan.native_query}")
        files = self._area().files(number, receipts)
        session.execute(f"create temp view {RAW} as {_raw_sql(session, load, files)}")
        rows = session.query(f"select count(*) from {RAW}")[0][0]
        return check_staged(load, rows, [receipt for receipt in receipts if receipt.table == number])

    def _drop_relations(self, session: Session) -> None:
        for kind in ("view", "table"):
            found = f"select {kind}_name from duckdb_{kind}s() where temporary and starts_with({kind}_name, ?)"
            for (name,) in session.query(found, ("_penstock_",)):
                session.execute(f"drop {kind} temp.{types.quote(name)}")


def _raw_sql(session: Session, load: TableLoad, files: Sequence[Path]) -> str:
    planned = {staged.column.name: types.staged_type(staged.column.type) for staged in load.columns}
    if not files:
        nothing = ", ".join(f"cast(null as {sql}) as {types.quote(name)}" for name, sql in planned.items())
        return f"select {nothing} where false"
    listed = ", ".join(literal(str(path)) for path in files)
    # By list, never by pattern; a folder's name must not become a column.
    relation = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = false)"
    seen = {row[0]: row[1] for row in session.query(f"describe select * from {relation}")}
    if seen != planned:
        wrong = sorted(name for name in planned.keys() | seen.keys() if planned.get(name) != seen.get(name))
        raise StagingLost(
            "what was staged has other types than were planned",
            why="; ".join(f"{name}: {seen.get(name)} instead of {planned.get(name)}" for name in wrong),
            kept=NOT_COMMITTED,
            place=str(load.table),
        )
    return f"select {', '.join(types.quote(name) for name in planned)} from {relation}"
