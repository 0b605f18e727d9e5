"""Loading a SQLite file: tasks stage Parquet beside it, the driver loads them in one transaction.

A task makes SQLite's own values out of the canonical ones, and finds there what SQLite cannot hold.
Journal and `synchronous` are left as the file's owner has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.backends.arrowtypes import cast_batch
from penstock.backends.base import (
    RAW,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    Sink,
    StagedColumn,
    Step,
    TableLoad,
    TargetColumn,
    TargetTable,
    Widen,
)
from penstock.backends.file_load import FileLoad, FileTarget
from penstock.backends.locks import FileLock, ProcessLock
from penstock.backends.reactions import Reaction
from penstock.backends.sql import (
    KEYS_SHOWN,
    check_format,
    check_staged,
    loaded_by,
    owners_of,
    raise_findings,
    remembered,
)
from penstock.backends.sqlite import reactions, types
from penstock.backends.sqlite.classes import class_check
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session, open_planning, open_target
from penstock.backends.sqlite.dialect import MAIN, SQLiteDialect, render
from penstock.backends.sqlite.encode import ARROW, Unfit, stored
from penstock.backends.sqlite.read import require_main
from penstock.backends.sqlite.rebuild import fixed
from penstock.backends.staging import ParquetSink, StagingArea, staged_batches
from penstock.errors import NOT_COMMITTED, DataError, PenstockError, TargetError
from penstock.schema import Column, Ddl, TableName, WidenColumn
from penstock.schema.names import folded


class SQLiteTarget(FileTarget[Session, SQLiteConfig]):
    """A SQLite file as a target. Planning opens it for one question at a time."""

    dialect = SQLiteDialect()

    def qualify(self, table: TableName) -> TableName:
        require_main(table)
        session = self._read()
        if session is None:
            return TableName(MAIN, table.table)
        with session:
            return self._as_spelled(session, table)

    def has_schema(self, schema: str) -> bool:
        return schema == MAIN

    def inspect(self, table: TableName) -> TargetTable | None:
        require_main(table)
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

    def steps(self, ddl: Sequence[Ddl]) -> list[Step]:
        """All wider columns at once: the table may have to be made again for them."""
        wider = tuple(one for one in ddl if isinstance(one, WidenColumn))
        steps = super().steps([one for one in ddl if not isinstance(one, WidenColumn)])
        shown = "\n".join(line for one in wider for line in self.render(one))
        return [*steps, Widen(wider, shown)] if wider else steps

    def _as_spelled(self, session: Session, table: TableName) -> TableName:
        rows = session.query(
            "select name from main.sqlite_schema where type in ('table', 'view') and name = ? collate nocase",
            (table.table,),
        )
        return TableName(MAIN, rows[0][0] if rows else table.table)

    def _asking(self) -> Session:
        return open_planning(self._config)

    def _load(self, plan: LoadPlan, lock: FileLock | ProcessLock, staging: StagingArea | None) -> SQLiteLoad:
        return SQLiteLoad(self._config, plan, lock, staging)


# ---------------------------------------------------------------- what is there


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
    same = fixed(session, name)
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
            fixed=same.get(folded(column), ""),
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
    """Stages SQLite's own values."""

    files: ParquetSink
    cells: Cells

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return self.files.write(part, (self.cells.stored(batch) for batch in batches))


@dataclass(frozen=True, slots=True)
class Cells:
    """Makes SQLite's own values; what it could not hold ends the load, with the keys."""

    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]
    place: str

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
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


class SQLiteLoad(FileLoad[Session, SQLiteConfig]):
    # At once for writing: a reader that becomes a writer half way may not, if another has written.
    begin = "begin immediate"
    savepoints = SQLiteDialect.savepoints

    def sink(self, table: int) -> Sink:
        load = self._plan.tables[table]
        wires = [Column(staged.column.name, ARROW[types.held_class(staged.native.sql)]) for staged in load.columns]
        cells = Cells(load.columns, self._plan.key_columns, str(load.table))
        return SQLiteSink(self._area().sink(table, wires), cells)

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        return self._committed(open_target(self._config, create=True), receipts)

    def _asking(self) -> Session:
        return open_planning(self._config)

    def _make_raw(self, session: Session, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> int:
        if self._plan.native_query is not None:
            session.execute(f"create temporary table {RAW} as {self._plan.native_query}")
            _check_classes(session, load, self._plan.key_columns)
            return int(session.query(f"select count(*) from temp.{RAW}")[0][0])
        files = self._area().files(number, receipts)
        schema = pa.schema([(s.column.name, ARROW[types.held_class(s.native.sql)]) for s in load.columns])
        session.ingest(RAW, pa.RecordBatchReader.from_batches(schema, _staged_batches(files, schema)))
        rows = int(session.query(f"select count(*) from temp.{RAW}")[0][0])
        return check_staged(load, rows, [receipt for receipt in receipts if receipt.table == number])

    def _remember(self, session: Session) -> None:
        """What the columns of the mode mean: a flag is an integer in the file, a time is text."""
        for load in self._plan.tables:
            for column in load.metadata:
                session.execute(
                    session.marks("insert or replace into _penstock.columns values (?, ?, ?, '', null)"),
                    (str(load.table), column.name, column.type_sql),
                )

    def _drop_relations(self, session: Session) -> None:
        for kind in ("view", "table"):
            found = "select name from sqlite_temp_schema where type = ? and name glob '_penstock_*'"
            for (name,) in session.query(found, (kind,)):
                session.execute(f"drop {kind} temp.{types.quote(name)}")


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
