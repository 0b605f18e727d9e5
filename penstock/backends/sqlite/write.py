"""Loading a SQLite file: tasks stage Parquet beside it, the driver loads them in one transaction.

A task makes SQLite's own values out of the canonical ones, and finds there what SQLite cannot hold.
The file is opened for writing in `commit` alone, and closed at once. Until then only the lock file
says that a run is under way. Journal and `synchronous` are left as the file's owner has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.backends.arrowtypes import cast_batch
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
    StagedColumn,
    TableLoad,
    Target,
    TargetColumn,
    TargetTable,
)
from penstock.backends.locks import FileLock, ProcessLock
from penstock.backends.sql import (
    KEYS_SHOWN,
    Counts,
    check_format,
    check_staged,
    check_watermark,
    ensure_catalog,
    last_watermark,
    loaded_by,
    owners_of,
    raise_findings,
    record_load,
    remembered,
    result,
    run_steps,
    was_committed,
)
from penstock.backends.sqlite import types
from penstock.backends.sqlite.classes import class_check
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session, open_planning, open_target
from penstock.backends.sqlite.dialect import MAIN, SQLiteDialect, render
from penstock.backends.sqlite.encode import ARROW, Unfit, stored
from penstock.backends.sqlite.read import require_main
from penstock.backends.staging import ParquetSink, StagingArea, staged_batches, sweep
from penstock.errors import NOT_COMMITTED, DataError, PenstockError, TargetError, Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Ddl, TableName


class SQLiteTarget(Target):
    """A SQLite file as a target. Planning opens it for one question at a time."""

    def __init__(self, config: SQLiteConfig, run: RunContext) -> None:
        self._config = config
        self._run = run
        self.dialect = SQLiteDialect()
        _check_writable(config)

    def qualify(self, table: TableName) -> TableName:
        require_main(table)
        session = self._read()
        if session is None:
            return TableName(MAIN, table.table)
        with session:
            return _as_spelled(session, table)

    def has_schema(self, schema: str) -> bool:
        return schema == MAIN

    def inspect(self, table: TableName) -> TargetTable | None:
        require_main(table)
        session = self._read()
        if session is None:
            return None
        with session:
            return _inspect(session, _as_spelled(session, table), self._run.pipeline)

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return types.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:
        return render(ddl)

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        session = self._read()
        if session is None:
            return None
        with session:
            if not session.knows("tables"):
                return None
            check_format(session)
            return last_watermark(session, pipeline, _as_spelled(session, table))

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.staging(self._base(), self._config.name),)

    def _base(self) -> Path:
        return self._config.staging_base or StagingArea.base_of(self._run)

    def begin(self, plan: LoadPlan) -> Load:
        if any(load.adopt for load in plan.tables):
            raise Unsupported("a SQLite load cannot adopt its staging", why="it is staged in files")
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
        return SQLiteLoad(self._config, plan, lock, staging)

    def _lock(self, run: RunContext) -> FileLock | ProcessLock:
        if self._config.in_memory:
            return ProcessLock.acquire(self._config.label, run.run_id, run.pipeline)
        return FileLock.acquire(self._config.lock_file, run.run_id, run.pipeline, target=str(self._config.file))

    def _read(self) -> Session | None:
        """A session that only asks, None while the file does not exist."""
        there = self._config.in_memory or self._config.file.exists()
        return open_planning(self._config) if there else None


def _check_writable(config: SQLiteConfig) -> None:
    """Say at planning what would otherwise fail after all rows have been staged."""
    if config.read_only:
        raise TargetError(f"connection {config.name!r} is read-only", remedy="remove read_only from it")
    if config.in_memory:
        return
    folder = config.file.parent
    if not folder.is_dir():
        raise TargetError(f"there is no folder {folder}", remedy="create it, or set another path")
    if not os.access(folder, os.W_OK | os.X_OK):  # the journal lies there
        raise TargetError(f"cannot write in {folder}", why="permission denied", remedy="make it writable")
    if config.file.exists() and not os.access(config.file, os.W_OK):
        raise TargetError(f"cannot write {config.file}", why="permission denied", remedy="make it writable")


# ---------------------------------------------------------------- what is there


def _as_spelled(session: Session, table: TableName) -> TableName:
    """As the file spells it: what is remembered of a table must not depend on who names it how."""
    rows = session.query(
        "select name from main.sqlite_schema where type in ('table', 'view') and name = ? collate nocase",
        (table.table,),
    )
    return TableName(MAIN, rows[0][0] if rows else table.table)


def _inspect(session: Session, name: TableName, pipeline: str) -> TargetTable | None:
    found = session.query("select type from pragma_table_list where schema = 'main' and name = ?", (name.table,))
    if not found:
        return None
    if found[0][0] != "table":
        return TargetTable(
            name, (), refusals=(f"{name} is a {found[0][0]} table" if found[0][0] != "view" else f"{name} is a view",)
        )
    if session.knows("loads"):
        check_format(session)
    memory = remembered(session, name) if session.knows("columns") else {}
    rows = session.query(
        "select name, type, \"notnull\", dflt_value, pk, hidden from pragma_table_xinfo(?, 'main') order by cid",
        (name.table,),
    )
    collations = _collations(session, name, [row[0] for row in rows])
    key = [row[0] for row in sorted((row for row in rows if row[4]), key=lambda row: int(row[4]))]
    numbered = _numbered(session, name, key)
    columns = tuple(
        TargetColumn(
            column,
            _word(column, declared, memory),
            # SQLite would make up a number for a NULL there, as for a column that is left out.
            not required and column != numbered,
            default is not None or column == numbered,
            generated=hidden in (2, 3),
            collation=collations.get(column, ""),
        )
        for column, declared, required, default, _, hidden in rows
        if hidden != 1
    )
    triggers = session.query(
        "select name, sql from main.sqlite_schema where type = 'trigger' and tbl_name = ? collate nocase", (name.table,)
    )
    return TargetTable(
        name,
        columns,
        tuple(key),
        notes=(*(f"trigger {trigger} runs with the load" for trigger, _ in triggers), *_references(session, name)),
        owners=owners_of(session, name) if session.knows("tables") else frozenset(),
        loaded=loaded_by(session, pipeline, name) if session.knows("tables") else frozenset(),
        triggers=tuple(trigger for trigger, sql in triggers if "ignore" in sql.lower()),
    )


def _numbered(session: Session, name: TableName, key: Sequence[str]) -> str:
    """The key that is the row's own number; "" where there is none."""
    rows = session.query(
        "select column.name from pragma_table_list as found"
        " join pragma_table_xinfo(found.name, 'main') as column on column.pk and lower(column.type) = 'integer'"
        " where found.schema = 'main' and found.name = ? and not found.wr"
        # With an index of its own, as of `integer primary key desc`, it is a key like any other.
        " and not exists (select 1 from pragma_index_list(found.name, 'main') where origin = 'pk')",
        (name.table,),
    )
    return rows[0][0] if len(key) == 1 and rows else ""


def _word(column: str, declared: str, memory: types.Memory) -> str:
    known = types.remembered_column(column, declared, memory, nullable=True)
    if known is not None:
        return memory[column][0]
    affinity = types.affinity(declared)
    return types.WORDS.get(affinity, affinity)


def _references(session: Session, name: TableName) -> tuple[str, ...]:
    rows = session.query("select distinct \"table\" from pragma_foreign_key_list(?, 'main')", (name.table,))
    return tuple(f"foreign key to {other}: SQLite checks none unless a connection asks for it" for (other,) in rows)


def _collations(session: Session, name: TableName, columns: Sequence[str]) -> dict[str, str]:
    """Columns under whose collation different texts are equal, found by comparing: SQLite has no question for it.

    It has two such collations; of an application's own it knows nothing in any other program.
    """
    [(sql,)] = session.query("select sql from main.sqlite_schema where type = 'table' and name = ?", (name.table,))
    if "collate" not in sql.lower():
        return {}
    found = {}
    for column in columns:
        # A text takes the collation of the column that it stands under; no row of the table is read.
        cells = f"select t.{types.quote(column)} as cell from {SQLiteDialect().relation(name)} as t where false"
        try:
            [(nocase, rtrim)] = session.query(
                f"select cell = 'A', cell = 'a ' from ({cells} union all select 'a') as probe"
            )
        except PenstockError as error:
            raise TargetError(
                f"column {column} of {name} has a collation that is not SQLite's own",
                why=error.why,
                kept=NOT_COMMITTED,
                remedy="load into another table",
            ) from error
        if nocase or rtrim:
            found[column] = "nocase" if nocase else "rtrim"
    return found


# ---------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True)
class SQLiteSink(Sink):
    """Stages SQLite's own values; what it could not hold ends the load, with the keys."""

    files: ParquetSink
    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]
    place: str

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return self.files.write(part, (self._stored(batch) for batch in batches))

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._column(batch, staged) for staged in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=[staged.column.name for staged in self.columns])

    def _column(self, batch: pa.RecordBatch, staged: StagedColumn) -> pa.Array:
        name = staged.column.name
        if name not in batch.schema.names:
            raise TargetError(f"a batch lacks column {name!r}", place=self.place)
        try:
            return stored(cast_batch(batch, [staged], self.keys).column(0))
        except Unfit as unfit:
            keys = self._keys(batch, [int(row) for row in unfit.rows[:KEYS_SHOWN]])
            remedy = f'columns.{types.toml_key(staged.source)} = "text"'
            if "NaN" in unfit.why:
                remedy += f', or columns.{types.toml_key(staged.source)} = {{nan = "null"}}'
            raise self._unfit(name, unfit.why, keys, remedy) from None

    def _unfit(self, name: str, why: str, keys: tuple[str, ...], remedy: str) -> DataError:
        what = f"column {name} has a value that its target type cannot hold"
        return DataError(what, why=why, kept=NOT_COMMITTED, remedy=remedy, keys=keys, place=self.place)

    def _keys(self, batch: pa.RecordBatch, rows: Sequence[int]) -> tuple[str, ...]:
        known = [key for key in self.keys if key in batch.schema.names]
        return tuple(", ".join(f"{key}={_shown(batch.column(key), row)}" for key in known) for row in rows if known)


def _shown(array: pa.Array, row: int) -> str:
    text = stored(array.slice(row, 1)).to_pylist()[0]
    return f"'{text}'" if pa.types.is_string(array.type) and text is not None else str(text)


# ---------------------------------------------------------------- the load


@dataclass(slots=True)
class SQLiteLoad(Load):
    """A load of one or more tables of a file. Holds the lock file, not the database."""

    config: SQLiteConfig = field(repr=False)
    plan: LoadPlan
    lock: FileLock | ProcessLock
    staging: StagingArea | None
    result: LoadResult | None = None

    def sink(self, table: int) -> Sink:
        if self.staging is None:
            raise TargetError("a load inside one database stages nothing")
        load = self.plan.tables[table]
        wires = [Column(staged.column.name, ARROW[types.held_class(staged.native.sql)]) for staged in load.columns]
        return SQLiteSink(self.staging.sink(table, wires), load.columns, self.plan.key_columns, str(load.table))

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        session = open_target(self.config, create=True)
        try:
            done = self._in_transaction(session, receipts)
            self._send_commit(session, done)
        finally:
            session.close()
        self.abort()
        return done

    def _in_transaction(self, session: Session, receipts: Sequence[Receipt]) -> LoadResult:
        # At once for writing: a reader that becomes a writer half way may not, if another has written.
        session.execute("begin immediate")
        try:
            failpoint("commit.begin")
            # First: making our own tables counts as a change of the schema.
            for check in self.plan.native_checks:
                raise_findings(session, self.plan.tables[0], check)
            ensure_catalog(session)
            check_format(session)
            check_watermark(session, self.plan)
            counts, staged = Counts(), {}
            for number, load in enumerate(self.plan.tables):
                rows = self._make_raw(session, number, load, receipts)
                run_steps(session, load, counts, savepoints=SQLiteDialect.savepoints)
                staged[number] = rows
                _drop_relations(session)
            record_load(session, self.plan, staged)
            _remember_metadata(session, self.plan)
            failpoint("commit.loaded")
        except BaseException:  # Ctrl-C too: no transaction stays open
            _roll_back(session)
            raise
        return result(counts, sum(staged.values()))

    def _send_commit(self, session: Session, done: LoadResult) -> None:
        try:
            session.execute("commit")
            self.result = done
        except BaseException as error:
            # Neither an error nor Ctrl-C tells whether the journal was written. Only the row that
            # travelled in the same transaction does; to report a failure, or to try again, before
            # looking for it could load everything twice.
            if self.result is None and self._was_committed(session, error):
                self.result = done
            if not isinstance(error, PenstockError):
                raise  # whoever handles it finds in `result` what has become of the load
            if self.result is None:
                raise
        failpoint("commit.done")

    def _was_committed(self, session: Session, error: BaseException) -> bool:
        run_id = self.plan.run.run_id
        try:
            session.close()  # what is not committed by now is rolled back
            with open_planning(self.config) as again:
                return again.knows("loads") and was_committed(again, run_id)
        except BaseException as unknown:  # noqa: BLE001  a second Ctrl-C too leaves it unknown
            why = f"{unknown}" if isinstance(unknown, PenstockError) else type(unknown).__name__
            raise TargetError(
                "the answer to the commit was lost, and the file cannot be looked into",
                why=why,
                kept=f"it is not known whether the load was committed: run {run_id} in _penstock_loads tells",
                remedy=f"look there before you run it again: select * from _penstock_loads in {self.config.label}",
            ) from error

    def _make_raw(self, session: Session, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> int:
        """Make `RAW`; the number of rows in it."""
        if self.plan.native_query is not None:
            session.execute(f"create temporary table {RAW} as {self.plan.native_query}")
            _check_classes(session, load, self.plan.key_columns)
            return int(session.query(f"select count(*) from temp.{RAW}")[0][0])
        if self.staging is None:
            raise TargetError("the load has no staging", kept=NOT_COMMITTED)
        files = self.staging.files(number, receipts)
        schema = pa.schema([(s.column.name, ARROW[types.held_class(s.native.sql)]) for s in load.columns])
        session.ingest(RAW, pa.RecordBatchReader.from_batches(schema, _staged_batches(files, schema)))
        rows = int(session.query(f"select count(*) from temp.{RAW}")[0][0])
        return check_staged(load, rows, [receipt for receipt in receipts if receipt.table == number])

    def abort(self) -> None:
        if self.staging is not None:
            self.staging.close()

    def close(self) -> None:
        try:
            self.abort()
        finally:
            self.lock.release()


def _staged_batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """By list, never by pattern; columns by name."""
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in staged_batches(file, schema.names):
                yield batch.select(schema.names).cast(schema)


def _check_classes(session: Session, load: TableLoad, keys: Sequence[str]) -> None:
    """Of a load inside the file: a STRICT table would make integers of texts that look like them."""
    tests = {
        staged.column.name: f"typeof({types.quote(staged.column.name)}) not in"
        f" ('{types.held_class(staged.native.sql).lower()}', 'null')"
        for staged in load.columns
    }
    shown = SQLiteDialect().key_text(keys) if keys else "''"
    for check in class_check(tests, f"temp.{RAW}", "", shown):
        raise_findings(session, load, check)


def _remember_metadata(session: Session, plan: LoadPlan) -> None:
    """What the columns of the mode mean: a flag is an integer in the file, a time is text."""
    for load in plan.tables:
        for column in load.metadata:
            session.execute(
                session.marks("insert or replace into _penstock.columns values (?, ?, ?, '', null)"),
                (str(load.table), column.name, column.type_sql),
            )


def _drop_relations(session: Session) -> None:
    """Make room for the next table's relations: `RAW`, `STAGED` and whatever its mode made beside them."""
    for kind in ("view", "table"):
        found = "select name from sqlite_temp_schema where type = ? and name glob '_penstock_*'"
        for (name,) in session.query(found, (kind,)):
            session.execute(f"drop {kind} temp.{types.quote(name)}")


def _roll_back(session: Session) -> None:
    """End the transaction; SQLite may have done so itself, and if it fails, closing ends it."""
    try:
        session.execute("rollback")
    except PenstockError:
        session.close()
