"""Flushes into a target that runs SQL: the fence first, then every table, then COMMIT.

The watermark is a row of the target, changed by the first statement of every flush: it must be the one that this
agent left, under the epoch that it claimed. A stale agent changes no row there, and so commits nothing.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from penstock.backends.change_target import Applied, Applier, Flush, TableFailed, TableFlush, TableState
from penstock.backends.changes import Position
from penstock.backends.sql import Catalog, Counts, SqlSession, remember, run_steps
from penstock.backends.steps import StagedColumn, TableLoad
from penstock.errors import Busy, PenstockError
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName

# The relations that a flush is staged under, the first two followed by its tag.
UPSERTS, DELETES = "_penstock_upserts", "_penstock_deletes"
MISSING = "_penstock_missing"  # one row: what rows have that are older than a new column
ORIGIN = "_penstock_origin_"  # and a key column's place in the table: the key under which the target has the row


def staged_as(load: TableLoad, name: str) -> StagedColumn | None:
    """The column of the table whose values a column of a staged relation has; None of one that is no value of it.

    A key of the row before has the form of the key: compared in another, no row would be found by it.
    """
    if name.startswith(ORIGIN):
        return load.columns[int(name.removeprefix(ORIGIN))]
    return next((staged for staged in load.columns if staged.column.name == name), None)


def ledger_tables(kind: Catalog) -> tuple[str, ...]:
    """What a target remembers of its replications."""
    return (
        "create table if not exists _penstock.replications (name text primary key,"
        f" epoch {kind.integer} not null, origin text, committed {kind.integer}, ended {kind.integer},"
        f" updated_at {kind.time} not null){kind.suffix}",
        "create table if not exists _penstock.replicated (replication text not null, source text not null,"
        f" target text not null, phase text not null, committed {kind.integer}, reason text not null,"
        f" record text not null, updated_at {kind.time} not null, primary key (replication, source)){kind.suffix}",
    )


def removal(name: str) -> list[str]:
    """The statements after which a target knows nothing of the replication of this name, a constant or a mark."""
    tables = (("replicated", "replication"), ("replications", "name"))
    return [f"delete from _penstock.{table} where {column} = {name}" for table, column in tables]


def _move_memory(session: SqlSession, hidden: str, table: str) -> None:
    """What is remembered of a table that gets another name."""
    for memory in ("columns", "loaded", "tables"):
        session.execute(session.marks(f"delete from _penstock.{memory} where target = ?"), (table,))
        session.execute(session.marks(f"update _penstock.{memory} set target = ? where target = ?"), (table, hidden))


class SqlApplier(Applier):
    """What differs between the targets: how a session is had, and how an Arrow table becomes a relation of it."""

    def __init__(self, replication: str) -> None:
        self._replication = replication
        self._epoch = 0

    @abstractmethod
    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        """A session inside a transaction, committed on a good end and rolled back on any other."""

    @abstractmethod
    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None: ...

    @abstractmethod
    def unstage(self, session: SqlSession, name: str) -> None: ...

    @abstractmethod
    def exists(self, session: SqlSession, table: TableName) -> bool: ...

    def defer(self, session: SqlSession) -> None:
        """Let constraints be checked at the end of the flush, which has all rows of all tables."""

    def settle(self, session: SqlSession, tables: Mapping[TableName, TableName]) -> None:
        """Check what was put off, before COMMIT would; raises `TableFailed` with the source's own name of a table."""

    def has_table(self, table: TableName) -> bool:
        with self.session() as session:
            return self.exists(session, table)

    def claim(self) -> Applied:
        with self.session() as session:
            for statement in ledger_tables(session.catalog):
                session.execute(session.marks(statement))
            # Two that are the first: one of them waits here for the other.
            session.execute(
                session.marks(
                    f"insert into _penstock.replications values (?, 0, null, null, null, {session.catalog.now})"
                    " on conflict (name) do nothing"
                ),
                (self._replication,),
            )
            # The epoch first: a flush of the agent before may be on its way, and is waited for here. What is read
            # afterwards has it, and no other can follow.
            session.execute(
                session.marks("update _penstock.replications set epoch = epoch + 1 where name = ?"),
                (self._replication,),
            )
            applied = self._applied(session)
            assert applied is not None  # noqa: S101  changed above
            self._epoch = applied.epoch
            return applied

    def known(self) -> Applied:
        with self.session() as session:
            applied = self._applied(session)
            self._require_one(applied is not None and applied.epoch == self._epoch)
            assert applied is not None  # noqa: S101  as above
            return applied

    def _applied(self, session: SqlSession) -> Applied | None:
        rows = session.query(
            session.marks("select epoch, origin, committed, ended from _penstock.replications where name = ?"),
            (self._replication,),
        )
        if not rows:
            return None
        [(epoch, origin, committed, ended)] = rows
        position = Position(origin, committed, ended) if origin is not None else None
        return Applied(epoch, position, self._states(session))

    def _states(self, session: SqlSession) -> tuple[TableState, ...]:
        rows = session.query(
            session.marks("select record from _penstock.replicated where replication = ? order by source"),
            (self._replication,),
        )
        return tuple(TableState.from_record(json.loads(record)) for (record,) in rows)

    def flush(self, flush: Flush) -> None:
        with self.session() as session:
            self._fence(session, flush)
            failpoint("flush.fenced")
            counts, brought = Counts(), dict[TableName, TableName]()
            for table in flush.tables:
                if not brought:
                    self.defer(session)
                brought[table.load.table] = table.source
                try:
                    self._bring_in(session, table, counts)
                except PenstockError as error:
                    # What a link, a lock or a full disk has to do with is nobody's fault in particular.
                    if error.passing:
                        raise
                    raise TableFailed(table.source, error) from error
            if brought:
                self.settle(session, brought)
            self._write_states(session, flush)
            failpoint("flush.loaded")
            # If we die before the commit, the target has nothing of the flush; after it, all, and says so.
        failpoint("flush.committed")

    def remove(self) -> None:
        with self.session() as session:
            for statement in ledger_tables(session.catalog):  # of one that never began
                session.execute(session.marks(statement))
            for statement in removal("?"):
                session.execute(session.marks(statement), (self._replication,))

    def _write_states(self, session: SqlSession, flush: Flush) -> None:
        for source in flush.forgotten:
            session.execute(
                session.marks("delete from _penstock.replicated where replication = ? and source = ?"),
                (self._replication, str(source)),
            )
        columns = ("target", "phase", "committed", "reason", "record", "updated_at")
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
        for state in flush.states:
            session.execute(
                session.marks(
                    f"insert into _penstock.replicated values (?, ?, ?, ?, ?, ?, ?, {session.catalog.now})"
                    f" on conflict (replication, source) do update set {changes}"
                ),
                (
                    *(self._replication, str(state.source), str(state.target), state.phase),
                    state.position.commit if state.position is not None else None,
                    *(state.reason, json.dumps(state.to_record())),
                ),
            )

    def _fence(self, session: SqlSession, flush: Flush) -> None:
        after, before = flush.after, flush.before
        # A position that nobody has left yet is NULL there.
        known = "committed is null" if before is None else "committed = ?"
        touched = session.touched(
            session.marks(
                "update _penstock.replications set origin = ?, committed = ?, ended = ?,"
                f" updated_at = {session.catalog.now} where name = ? and epoch = ? and {known}"
            ),
            (
                *((None, None, None) if after is None else (after.origin, after.commit, after.end)),
                *(self._replication, self._epoch),
                *(() if before is None else (before.commit,)),
            ),
        )
        self._require_one(touched)

    def _require_one(self, touched: int) -> None:
        if touched != 1:
            raise Busy(
                f"another agent runs the replication {self._replication}",
                why="it has taken it over, and the target takes changes from it only",
                kept="nothing of this flush was committed",
                remedy="leave it to the other one, or stop that one and start again",
            )

    def _bring_in(self, session: SqlSession, table: TableFlush, counts: Counts) -> None:
        staged = [
            (name, rows)
            for name, rows in (
                (UPSERTS + table.tag, table.upserts),
                (DELETES + table.tag, table.deletes),
                (MISSING, table.missing),
            )
            if rows is not None and rows.num_rows
        ]
        for name, rows in staged:
            self.stage(session, name, rows, table.load)
        try:
            run_steps(session, table.load, counts, savepoints=False)
        except PenstockError as error:
            error.place = error.place or str(table.load.table)
            raise
        for name, _ in staged:
            self.unstage(session, name)
        if table.evolved:
            remember(session, self._replication, table.load)
        if table.hidden is not None:
            _move_memory(session, str(table.hidden), str(table.load.table))
