"""Segments into a flush: whole transactions of all tables, folded, in the target's forms, with their statements."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.base import Dialect, TableLoad
from penstock.backends.change_target import TableFailed, TableFlush
from penstock.backends.changes import Batch, Position, Segment, StoredChanges, TableChanges, behind, joined
from penstock.errors import PenstockError
from penstock.load.flush import UNSENT, Replica, Shape, flush_steps
from penstock.replicate.evolve import Evolved, Evolver, TableRewritten
from penstock.replicate.tables import Kept
from penstock.replicate.versions import newest, replaced
from penstock.schema import TableName


@dataclass(frozen=True, slots=True)
class Changes:
    """What some segments hold behind a position."""

    until: Position
    batch: Batch

    @staticmethod
    def of(segments: Sequence[Segment], after: Position) -> Changes:
        whole = joined([Batch(one.transactions, one.tables, one.stored) for one in segments])
        return Changes(segments[-1].until, behind(whole, after.commit))

    def of_tables(self, names: Container[TableName]) -> list[TableChanges | StoredChanges]:
        """What there is of these tables, by their versions."""
        every: list[TableChanges | StoredChanges] = [*self.batch.tables, *self.batch.stored]
        return [one for one in every if one.version.table in names]

    def until_commit(self, last: Position) -> Changes:
        """Only the transactions up to a position."""
        commits = self.batch.transactions["commit"]
        count = pc.sum(pc.less_equal(commits, last.commit)).as_py() or 0
        if count == self.batch.transactions.num_rows:
            return self
        stored = tuple(one for one in self.batch.stored if one.tx < count)
        tables = []
        for table in self.batch.tables:
            rows = table.rows.filter(pc.less(table.rows["tx"], count))
            if rows.num_rows:
                tables.append(TableChanges(table.version, rows))
        return Changes(last, Batch(self.batch.transactions.slice(0, count), tuple(tables), stored))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A round of a table, as it is staged."""

    truncated: bool
    upserts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table's part of a flush, in rounds: a large transaction is brought in piece by piece."""

    evolved: Evolved
    rounds: tuple[tuple[TableChanges | StoredChanges, ...], ...]
    seen: int | None = None  # the commit that all rows of the table are of, where some were read later

    @property
    def source(self) -> TableName:
        return self.evolved.kept.source.name

    @property
    def rows(self) -> int:
        found = [one for round_ in self.rounds for one in round_]
        return sum(one.rows if isinstance(one, StoredChanges) else one.rows.num_rows for one in found)


def plan_tables(
    changes: Changes, kept: Mapping[TableName, Kept], evolver: Evolver, seen: int | None = None
) -> list[TablePlan]:
    """What there is of each of these tables, and the form that it has after it."""
    tables = dict.fromkeys(one.version.table for one in changes.of_tables(kept))
    made = []
    for table in tables:
        try:
            found = changes.of_tables((table,))
            if replaced(kept[table].source.version, found):
                raise TableRewritten(table, "a column of the same name and type has come for one that has gone")
            made.append(TablePlan(evolver.evolve(kept[table], newest(found)), rounds_of(changes, table), seen))
        except PenstockError as error:
            if error.passing:
                raise  # of a link, not of the table
            raise TableFailed(table, error) from error
    return made


def rounds_of(changes: Changes, table: TableName) -> tuple[tuple[TableChanges | StoredChanges, ...], ...]:
    return tuple(_rounds(changes.of_tables((table,))))


def _rounds(found: Sequence[TableChanges | StoredChanges]) -> Iterator[tuple[TableChanges | StoredChanges, ...]]:
    """In the order of the transactions: what is held, around each piece that is not."""
    held = [one for one in found if isinstance(one, TableChanges)]
    stored = [one for one in found if isinstance(one, StoredChanges)]
    low = 0
    for piece in stored:
        before = _between(held, low, piece.tx)
        if before:
            yield before
        yield (piece,)
        low = piece.tx
    rest = _between(held, low, None)
    if rest:
        yield rest


def _between(held: Sequence[TableChanges], low: int, high: int | None) -> tuple[TableChanges, ...]:
    """The rows of transactions from `low` on and before `high`."""
    if low == 0 and high is None:
        return tuple(held)
    made = []
    for one in held:
        tx = one.rows["tx"].to_numpy()
        within = tx >= low if high is None else (tx >= low) & (tx < high)
        if within.any():
            made.append(TableChanges(one.version, one.rows.filter(pa.array(within))))
    return tuple(made)


def table_flushes(
    plans: Sequence[TablePlan], prepare: Callable[[TablePlan, int], Prepared], dialect: Dialect
) -> Iterator[TableFlush]:
    """One at a time, as the target asks for them."""
    for plan in plans:
        last = len(plan.rounds) - 1
        for number in range(len(plan.rounds)):
            evolved = replace(
                plan.evolved,
                first=plan.evolved.first if number == 0 else (),
                last=plan.evolved.last if number == last else (),
                missing=plan.evolved.missing if number == 0 else None,
            )
            try:
                yield _table(evolved, prepare(plan, number), dialect, plan.seen)
            except PenstockError as error:
                if error.passing:
                    raise  # as above
                raise TableFailed(plan.source, error) from error


def _table(evolved: Evolved, prepared: Prepared, dialect: Dialect, seen: int | None = None) -> TableFlush:
    kept, upserts, deletes = evolved.kept, prepared.upserts, prepared.deletes
    columns = range(len(kept.source.version.columns))
    unsent = tuple(number for number in columns if f"{UNSENT}{number}" in upserts.column_names)
    tag = _tag(kept.replica, upserts.schema, deletes.schema)
    shape = Shape(prepared.truncated, upserts.num_rows > 0, deletes.num_rows > 0, unsent, tag, seen)
    steps = (*evolved.first, *flush_steps(kept.replica, dialect, shape), *evolved.last)
    load = TableLoad(kept.replica.table, kept.replica.columns, steps)
    return TableFlush(kept.source.name, load, upserts, deletes, evolved.missing, evolved.changed, tag=tag)


def form_flush(evolved: Evolved, dialect: Dialect) -> TableFlush:
    """Of a table that gets another form, and no row."""
    return _table(evolved, Prepared(False, pa.table({}), pa.table({})), dialect)


def _tag(replica: Replica, *staged: pa.Schema) -> str:
    """Names what is staged: a session that keeps its staging finds the same columns and types under the same name."""
    shown = [(str(replica.table), ""), *((one.column.name, one.native.sql) for one in replica.columns)]
    shown += [(field.name, str(field.type)) for schema in staged for field in schema]
    return f"_{zlib.crc32(repr(shown).encode()):08x}"
