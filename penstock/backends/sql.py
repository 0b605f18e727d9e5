"""What all SQL targets share: running a load's steps, and the `_penstock` tables beside the data.

`_penstock.loads` is the truth about what was committed: its row is written in the load's own
transaction, so after a COMMIT whose answer was lost it tells whether the load is there.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.backends.base import (
    Check,
    Execute,
    LoadPlan,
    LoadResult,
    Receipt,
    Step,
    TableLoad,
    Tally,
    UserSql,
    Widen,
    Window,
)
from penstock.errors import (
    COPY_TABLE_AGAIN,
    DataError,
    PenstockError,
    PlanStale,
    RowsLacking,
    SourceError,
    SourceMoved,
    StagingLost,
    StateError,
    TargetError,
)
from penstock.schema import Column, Logical, TableName, WidenColumn

FORMAT = 1  # of the `_penstock` tables; a newer one is refused
KEYS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Catalog:
    """Where the tables beside the data are, and how a target spells their columns' types."""

    prefix: str = "_penstock."  # a schema of its own, or the beginning of a name
    integer: str = "bigint"
    time: str = "timestamp with time zone"
    now: str = "current_timestamp"
    suffix: str = ""  # after the column list

    def statements(self) -> list[str]:
        head, tail = f"create table if not exists {self.prefix}", f"){self.suffix}"
        schema = [f"create schema if not exists {self.prefix[:-1]}"] if self.prefix.endswith(".") else []
        return [
            *schema,
            f"{head}loads (run text primary key, pipeline text not null, target text not null, mode text not null,"
            f" staged {self.integer} not null, watermark text, format {self.integer} not null,"
            f" committed_at {self.time} not null{tail}",
            f"{head}tables (target text not null, pipeline text not null, mode text not null, watermark text,"
            f" primary key (target, pipeline){tail}",
            f"{head}columns (target text not null, name text not null, type_sql text not null, native text not null,"
            f" logical text, primary key (target, name){tail}",
            f"{head}loaded (target text not null, pipeline text not null, name text not null,"
            f" primary key (target, pipeline, name){tail}",
        ]


class SqlSession(ABC):
    """One connection inside one transaction, errors mapped to Penstock's own."""

    placeholder: str = "?"
    catalog: Catalog = Catalog()

    @abstractmethod
    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it touched, 0 where there is no such number."""

    @abstractmethod
    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a small answer: keys, counts, catalog entries. Never data."""

    def touched(self, sql: str, params: Sequence[Any]) -> int:
        """As `execute`, and the number of rows is true with parameters too."""
        return self.execute(sql, params)

    @abstractmethod
    def transaction(self) -> str:
        """An id of the open transaction, which changes when it ends."""

    def widen(self, columns: Sequence[WidenColumn]) -> None:
        """Carry out a `Widen`, of targets that make one."""
        raise TypeError(columns)

    def savepoint(self) -> None:
        """Mark a place to return to, where the dialect has savepoints."""

    def rollback_to_savepoint(self) -> None:
        """Return to the mark."""

    def marks(self, sql: str) -> str:
        """`?` placeholders as this driver writes them, and `_penstock.` as this target names it."""
        if self.catalog.prefix != "_penstock.":
            sql = sql.replace("_penstock.", self.catalog.prefix)
        return sql if self.placeholder == "?" else sql.replace("?", self.placeholder)

    def knows(self, table: str) -> bool:
        """Whether `_penstock` has this table: an older version may have made it without."""
        found = "select 1 from information_schema.tables where table_schema = '_penstock' and table_name = ?"
        return bool(self.query(self.marks(found), (table,)))


@dataclass(slots=True)
class Counts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def add(self, name: str, rows: int) -> None:
        if name:
            setattr(self, name, getattr(self, name) + max(rows, 0))


def run_steps(session: SqlSession, load: TableLoad, counts: Counts, *, savepoints: bool) -> None:
    """Run a table's steps in order; the first finding ends the load."""
    for step in load.steps:
        _run_step(session, load, step, counts, savepoints=savepoints)


def _run_step(session: SqlSession, load: TableLoad, step: Step, counts: Counts, *, savepoints: bool) -> None:
    if isinstance(step, Check):
        raise_findings(session, load, step)
    elif isinstance(step, UserSql):
        before = session.transaction()
        session.execute(step.sql)
        if session.transaction() != before:
            # Died here: the user's statement has committed part of the load. It cannot be undone,
            # so it is said loudly; plans refuse transaction control before it comes to this.
            raise TargetError(
                f"{step.place} ended the load's transaction",
                why="after it, another transaction was open",
                kept="what ran before it may be committed",
                remedy="remove the transaction control from it",
                place=str(load.table),
            )
    elif isinstance(step, Widen):
        session.widen(step.columns)
    elif isinstance(step, Tally):
        counts.add(step.counts, int(session.query(step.sql)[0][0]))
    elif step.diagnose and savepoints:
        session.savepoint()
        try:
            counts.add(step.counts, _execute(session, load, step))
        except PenstockError:
            session.rollback_to_savepoint()
            for check in step.diagnose:
                raise_findings(session, load, check)
            raise
    else:
        counts.add(step.counts, _execute(session, load, step))


def _execute(session: SqlSession, load: TableLoad, step: Execute) -> int:
    if not step.touches:
        return session.execute(step.sql)
    wanted = int(session.query(step.touches)[0][0])
    touched = session.execute(step.sql)
    if touched != wanted and step.lacking:
        raise TargetError(
            "the target did not take every row",
            why=f"a statement had {wanted} rows to write and wrote {touched}: {step.lacking}",
            kept="nothing was committed",
            remedy=COPY_TABLE_AGAIN,
            place=str(load.table),
        )
    if touched != wanted:
        # A trigger that answers NULL leaves its row out, and the statement succeeds all the same.
        raise TargetError(
            "the target did not take every row",
            why=f"a statement had {wanted} rows to write and wrote {touched}: a trigger of the target left some out",
            kept="nothing was committed",
            remedy="see the triggers in `penstock plan`; disable the one that drops rows, or filter them in the query",
            place=str(load.table),
        )
    return touched


def raise_findings(session: SqlSession, load: TableLoad, check: Check) -> None:
    """Raise what a check has found, if it has."""
    rows = session.query(check.sql)
    if not rows:
        return
    if check.moved:
        raise SourceMoved(check.what, why=check.why, place=str(load.table))
    what = check.what
    keys: tuple[str, ...] = ()
    if check.figures:
        what = what.format(*rows[0])
    elif check.labelled:
        label = rows[0][0]
        what = what.format(label)
        keys = tuple(key for row in rows if row[0] == label and (key := _key(row[1:])))
    else:
        keys = tuple(_key(row) for row in rows)
    kind = RowsLacking if check.lacking else DataError
    raise kind(
        what,
        why=check.why,
        keys=keys[:KEYS_SHOWN],
        kept="nothing was committed",
        remedy=check.remedy,
        place=str(load.table),
    )


def _key(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)


def check_source(session: SqlSession, plan: LoadPlan) -> None:
    """Of a load inside one database: the source is still what was planned.

    First in the transaction: making our own tables may count as a change of the schema.
    """
    for check in plan.native_checks:
        raise_findings(session, plan.tables[0], check)


def check_staged(table: TableLoad, staged: int, receipts: Sequence[Receipt]) -> int:
    """Staging must hold exactly what the receipts say.

    Without this, an UNLOGGED table emptied by a crash, or a file lost from a temporary folder,
    would load as zero rows and be called a success.
    """
    promised = sum(receipt.rows for receipt in receipts)
    if staged != promised:
        raise StagingLost(
            "what was staged is not what the tasks reported",
            why=f"{staged} rows in staging, {promised} on the receipts",
            kept="nothing was committed",
            remedy="run it again; if it happens twice, look for something that cleans the staging area",
            place=str(table.table),
        )
    return staged


# ---------------------------------------------------------------- the `_penstock` tables


def ensure_catalog(session: SqlSession) -> None:
    for statement in session.catalog.statements():
        session.execute(statement)


def check_format(session: SqlSession) -> None:
    """Refuse a target that a newer Penstock has written to."""
    newest = session.query(session.marks("select max(format) from _penstock.loads"))[0][0]
    if newest is not None and newest > FORMAT:
        raise StateError(
            "the target was written by a newer Penstock",
            why=f"its _penstock tables have format {newest}, this version knows {FORMAT}",
            remedy="upgrade penstock",
        )


def record_load(session: SqlSession, plan: LoadPlan, counts: dict[int, int]) -> None:
    """The run's row, the tables' owners and the remembered types, in the load's own transaction."""
    for number, load in enumerate(plan.tables):
        target = str(load.table)
        run = plan.run.run_id if number == 0 else f"{plan.run.run_id[:28]}{number:04d}"
        session.execute(
            session.marks(f"insert into _penstock.loads values (?, ?, ?, ?, ?, ?, ?, {session.catalog.now})"),
            (run, plan.run.pipeline, target, load.mode, counts[number], plan.watermark, FORMAT),
        )
        session.execute(
            session.marks("delete from _penstock.tables where target = ? and pipeline = ?"),
            (target, plan.run.pipeline),
        )
        session.execute(
            session.marks("insert into _penstock.tables values (?, ?, ?, ?)"),
            (target, plan.run.pipeline, load.mode, plan.watermark),
        )
        remember(session, plan.run.pipeline, load)


def remember(session: SqlSession, pipeline: str, load: TableLoad) -> None:
    """What each column was at its source, and which of them this pipeline brings."""
    target, names = str(load.table), [staged.column.name for staged in load.columns]
    if load.creates:
        # What is remembered of an older table of this name is not true of this one.
        for memory in ("columns", "loaded"):
            session.execute(session.marks(f"delete from _penstock.{memory} where target = ?"), (target,))
    # Only these columns and this pipeline: others may fill the table too.
    these = ", ".join("?" for _ in names)
    session.execute(
        session.marks(f"delete from _penstock.columns where target = ? and name in ({these})"), (target, *names)
    )
    session.execute(session.marks("delete from _penstock.loaded where target = ? and pipeline = ?"), (target, pipeline))
    values: list[Any] = []
    for staged in load.columns:
        column = staged.column
        logical = json.dumps(column.logical.to_record()) if column.logical else None
        values += [target, column.name, staged.native.sql, column.native, logical]
    rows = ", ".join("(?, ?, ?, ?, ?)" for _ in names)
    session.execute(session.marks(f"insert into _penstock.columns values {rows}"), values)
    rows = ", ".join("(?, ?, ?)" for _ in names)
    session.execute(
        session.marks(f"insert into _penstock.loaded values {rows}"),
        [value for name in names for value in (target, pipeline, name)],
    )


def _null_note(window: Window, count: int) -> tuple[str, ...]:
    """What the plan says about rows whose cursor is NULL."""
    if not count:
        return ()
    rows = "1 row has" if count == 1 else f"{count} rows have"
    fate = {"include": "read every time", "skip": "never read"}.get(window.on_null, "an error")
    return (f'{rows} no value in {window.column}: {fate} (on_null_cursor = "{window.on_null}")',)


def without_cursor(window: Window, count: int, place: str, keys: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """What the plan says about rows whose cursor is NULL; raises where they are an error."""
    if not count or window.on_null != "error":
        return _null_note(window, count)
    raise DataError(
        f"{count} rows have no value in the cursor column {window.column!r}",
        why="they belong to no window, so an incremental run would never load them",
        kept="nothing was committed",
        remedy='on_null_cursor = "include" or "skip"',
        place=place,
        keys=keys(),
    )


def no_column(name: str, known: Iterable[str]) -> SourceError:
    return SourceError(f"the source has no column {name!r}", remedy=f"its columns: {', '.join(known)}")


def check_watermark(session: SqlSession, plan: LoadPlan) -> None:
    """With the target locked: the window must begin where the last load ended.

    The plan was made before the lock. A run that committed in between has loaded the same window,
    and an append would have it twice.
    """
    if plan.watermark is None:
        return
    for load in plan.tables:
        if last_watermark(session, plan.run.pipeline, load.table) != plan.continues:
            raise PlanStale(
                "another run has loaded since this one was planned",
                why="the stored watermark is not the one that the window begins at",
                kept="nothing was committed",
                remedy="run it again",
                place=str(load.table),
            )


def was_committed(session: SqlSession, run_id: str) -> bool:
    return bool(session.query(session.marks("select 1 from _penstock.loads where run = ?"), (run_id,)))


def last_watermark(session: SqlSession, pipeline: str, table: TableName) -> str | None:
    """Where the pipeline's last load into the table ended. One row, replaced by every commit: the
    newest of many would be chosen by somebody's clock."""
    rows = session.query(
        session.marks("select watermark from _penstock.tables where target = ? and pipeline = ?"),
        (str(table), pipeline),
    )
    return rows[0][0] if rows else None


def owners_of(session: SqlSession, table: TableName) -> frozenset[str]:
    """All pipelines that have loaded into the table."""
    rows = session.query(session.marks("select pipeline from _penstock.tables where target = ?"), (str(table),))
    return frozenset(row[0] for row in rows)


def loaded_by(session: SqlSession, pipeline: str, table: TableName) -> frozenset[str]:
    """The columns that the pipeline's last load into the table brought."""
    rows = []
    if session.knows("loaded"):
        rows = session.query(
            session.marks("select name from _penstock.loaded where target = ? and pipeline = ?"), (str(table), pipeline)
        )
    if not rows and owners_of(session, table) == {pipeline}:
        return frozenset(remembered(session, table))  # by a version that kept no such list
    return frozenset(name for (name,) in rows)


def remembered(session: SqlSession, table: TableName) -> dict[str, tuple[str, str, Logical | None]]:
    """`name → (type_sql, native, logical)` of every column that Penstock has loaded."""
    rows = session.query(
        session.marks("select name, type_sql, native, logical from _penstock.columns where target = ?"), (str(table),)
    )
    return {
        name: (type_sql, native, Logical.from_record(json.loads(logical)) if logical else None)
        for name, type_sql, native, logical in rows
    }


def recall(column: Column, memory: dict[str, tuple[str, str, Logical | None]], type_sql: str) -> Column:
    """The column with its remembered meaning, if it still has the type it was remembered with."""
    known = memory.get(column.name)
    if known is None or known[0] != type_sql:
        return column
    # A logical word belongs to a text form; the same column may have travelled in another one.
    logical = known[2] if pa.types.is_string(column.type) else column.logical
    return Column(column.name, column.type, logical, known[1], column.nullable)


def result(counts: Counts, staged: int) -> LoadResult:
    return LoadResult(staged, counts.inserted, counts.updated, counts.deleted)
