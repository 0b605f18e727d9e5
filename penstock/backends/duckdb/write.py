"""Loading a DuckDB file: tasks stage Parquet beside it, the driver loads them in one transaction.

The file is opened for writing in `commit` alone, and closed at once: nobody else can even read it
meanwhile. Until then only the lock file says that a run is under way. A database in memory is loaded
in the same way, by a cursor of its own; its lock is the process's, its staging the project's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import duckdb
import sqlglot
from sqlglot import exp

from penstock.backends.base import (
    RAW,
    Load,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    RunContext,
    Shared,
    Sink,
    TableLoad,
    Target,
    TargetColumn,
    TargetTable,
)
from penstock.backends.duckdb import types
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import OutOfMemory, Session, open_file, translate
from penstock.backends.duckdb.dialect import DuckDBDialect, literal, render, same_name
from penstock.backends.locks import FileLock, ProcessLock
from penstock.backends.sql import (
    Counts,
    check_format,
    check_staged,
    check_watermark,
    ensure_catalog,
    last_watermark,
    loaded_by,
    owners_of,
    record_load,
    result,
    run_steps,
    was_committed,
)
from penstock.backends.staging import StagingArea, sweep
from penstock.errors import NOT_COMMITTED, PenstockError, PlanRefused, StagingLost, TargetError, Unsupported
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Ddl, TableName
from penstock.schema.names import folded

log = logs.Log("duckdb")


class DuckDBTarget(Target):
    """A DuckDB file as a target. Planning opens it read-only, for one question at a time."""

    def __init__(self, config: DuckDBConfig, run: RunContext) -> None:
        self._config = config
        self._run = run
        self.dialect = DuckDBDialect()
        _check_writable(config)

    def qualify(self, table: TableName) -> TableName:
        session = self._read()
        if session is None:
            schema = self._schema(table)
            return TableName("main" if folded(schema) == "main" else schema, table.table)
        with session:
            return self._as_spelled(session, table)

    def _as_spelled(self, session: Session, table: TableName) -> TableName:
        """As the catalog spells it: what is remembered of a table must not depend on who names it how."""
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

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return types.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:
        return render(ddl)

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        session = self._read()
        if session is None:
            return None
        with session:
            if not session.has_schema("_penstock"):
                return None
            check_format(session)
            return last_watermark(session, pipeline, self._as_spelled(session, table))

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.staging(self._base(), self._config.name),)

    def begin(self, plan: LoadPlan) -> Load:
        if any(load.adopt for load in plan.tables):
            raise Unsupported("a DuckDB load cannot adopt its staging", why="it is staged in files")
        lock = self._lock(plan.run)
        staging: StagingArea | None = None
        try:
            failpoint("load.begin")
            base = self._base()
            sweep(base)
            if plan.native_query is None:
                staging = StagingArea.create(base, plan.run)
            failpoint("load.staging")
        except BaseException:  # Ctrl-C too: nobody else frees the lock
            if staging is not None:
                staging.close()
            lock.release()
            raise
        return DuckDBLoad(self._config, plan, lock, staging)

    def _base(self) -> Path:
        return self._config.staging_base or StagingArea.base_of(self._run)

    def _lock(self, run: RunContext) -> FileLock | ProcessLock:
        if self._config.in_memory:
            return ProcessLock.acquire(self._config.label, run.run_id, run.pipeline)
        return FileLock.acquire(self._config.lock_file, run.run_id, run.pipeline, target=str(self._config.file))

    def _read(self) -> Session | None:
        """A read-only session, None while the file does not exist."""
        there = self._config.in_memory or self._config.file.exists()
        return open_file(self._config, read_only=True) if there else None


def _check_writable(config: DuckDBConfig) -> None:
    """Say at planning what would otherwise fail after all rows have been staged."""
    if config.read_only:
        raise TargetError(f"connection {config.name!r} is read-only", remedy="remove read_only from it")
    if config.in_memory:
        return
    folder = config.file.parent
    if not folder.is_dir():
        raise TargetError(f"there is no folder {folder}", remedy="create it, or set another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TargetError(f"cannot write in {folder}", why="permission denied", remedy="make it writable")
    if config.file.exists() and not os.access(config.file, os.W_OK):
        raise TargetError(f"cannot write {config.file}", why="permission denied", remedy="make it writable")


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


class DuckDBLoad(Load):
    """A load of one or more tables of a file. Holds the lock file, not the database."""

    def __init__(
        self, config: DuckDBConfig, plan: LoadPlan, lock: FileLock | ProcessLock, staging: StagingArea | None
    ) -> None:
        self._config = config
        self._plan = plan
        self._lock = lock
        self._staging = staging

    def sink(self, table: int) -> Sink:
        if self._staging is None:
            raise TargetError("a load inside one database stages nothing")
        return self._staging.sink(table, [staged.column for staged in self._plan.tables[table].columns])

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
        session = open_file(self._config, read_only=False, memory_limit=memory_limit)
        try:
            done = self._in_transaction(session, receipts)
            self._send_commit(session, done)
        finally:
            # At once: nobody can read the file while it is open.
            _close(session)
        self.abort()
        return done

    def _in_transaction(self, session: Session, receipts: Sequence[Receipt]) -> LoadResult:
        session.execute("begin transaction")
        try:
            failpoint("commit.begin")
            ensure_catalog(session)
            check_format(session)
            check_watermark(session, self._plan)
            counts, staged = Counts(), {}
            for number, load in enumerate(self._plan.tables):
                rows = self._make_raw(session, number, load, receipts)
                run_steps(session, load, counts, savepoints=self._dialect.savepoints)
                staged[number] = rows
                _drop_relations(session)
            record_load(session, self._plan, staged)
            failpoint("commit.loaded")
        except BaseException:  # Ctrl-C too: no transaction stays open
            _roll_back(session)
            raise
        return result(counts, sum(staged.values()))

    _dialect = DuckDBDialect()

    def _send_commit(self, session: Session, done: LoadResult) -> None:
        try:
            session.connection.execute("commit")
            self.result = done
        except BaseException as error:
            # Neither an error nor Ctrl-C tells whether the log was written. Only the row that
            # travelled in the same transaction does; to report a failure, or to try again, before
            # looking for it could load everything twice.
            if self.result is None and self._was_committed(session, error):
                self.result = done
            if not isinstance(error, duckdb.Error):
                raise  # whoever handles it finds in `result` what has become of the load
            if self.result is None:
                raise translate(error, "target", "the commit was refused") from error
        failpoint("commit.done")

    def _was_committed(self, session: Session, error: BaseException) -> bool:
        run_id = self._plan.run.run_id
        try:
            _close(session)
            # Read-only, so that other readers are not in the way; it replays DuckDB's log all the same.
            with open_file(self._config, read_only=True) as again:
                return again.has_schema("_penstock") and was_committed(again, run_id)
        except BaseException as unknown:  # noqa: BLE001  a second Ctrl-C too leaves it unknown
            why = f"{unknown}" if isinstance(unknown, PenstockError) else type(unknown).__name__
            raise TargetError(
                "the answer to the commit was lost, and the file cannot be looked into",
                why=why,
                kept=f"it is not known whether the load was committed: run {run_id} in _penstock.loads tells",
                remedy=f"look there before you run it again: select * from _penstock.loads in {self._config.label}",
            ) from error

    def _make_raw(self, session: Session, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> int:
        """Make `RAW`; the number of rows in it."""
        if self._plan.native_query is not None:
            return session.execute(f"create temp table {RAW} as {self._plan.native_query}")
        if self._staging is None:
            raise TargetError("the load has no staging", kept=NOT_COMMITTED)
        files = self._staging.files(number, receipts)
        session.execute(f"create temp view {RAW} as {_raw_sql(session, load, files)}")
        rows = session.query(f"select count(*) from {RAW}")[0][0]
        return check_staged(load, rows, [receipt for receipt in receipts if receipt.table == number])

    def abort(self) -> None:
        if self._staging is not None:
            self._staging.close()

    def close(self) -> None:
        try:
            self.abort()
        finally:
            self._lock.release()


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


def _close(session: Session) -> None:
    """Close the file. Closing also writes DuckDB's log into it; if that fails, the next opener replays the log.

    So whether the load is done does not hang on it: before the COMMIT nothing is, after it all of it.
    """
    try:
        session.close()
    except duckdb.Error:
        return


def _drop_relations(session: Session) -> None:
    """Make room for the next table's relations: `RAW`, `STAGED` and whatever its mode made beside them."""
    for kind in ("view", "table"):
        found = f"select {kind}_name from duckdb_{kind}s() where temporary and starts_with({kind}_name, ?)"
        for (name,) in session.query(found, ("_penstock_",)):
            session.execute(f"drop {kind} temp.{types.quote(name)}")


def _roll_back(session: Session) -> None:
    """End the transaction; if that fails too, closing the connection ends it."""
    try:
        session.connection.execute("rollback")
    except duckdb.Error:
        session.close()
