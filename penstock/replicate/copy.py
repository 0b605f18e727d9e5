"""Copy: tables of the source, range by range, into tables that nobody sees until they are whole.

Every range is a Spark task that makes its own receipt durable, in the target or beside it; a copy that was killed
goes on with the ranges that have none. What is read later is read at a later moment: each row carries the moment it
is of as its version, and of two rows with one key the later wins. Then the log from the first of these moments on
makes all of them exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.backends.base import Load, Partition, Receipt, RunContext, Target
from penstock.backends.change_source import CopyMoment
from penstock.backends.change_target import TableState
from penstock.errors import PlanRefused
from penstock.load.flush import COMMITTED_AT, DELETED, VERSION
from penstock.load.plan import LoadRequest, PlannedLoad, plan_load
from penstock.observe.failpoints import failpoint
from penstock.project.model import ColumnOption, Pipeline, Project, TargetName
from penstock.project.replications import Replication
from penstock.replicate.beginning import begins_empty
from penstock.replicate.flushing import fresh_copy
from penstock.replicate.tables import Ends, Kept, hidden_name
from penstock.schema import Column, Schema, TableName

if TYPE_CHECKING:
    from penstock.engine.task import Piece, Work

# Tables that are copied at once: the largest, and the smallest of the others. The largest stalls nobody.
TABLES_AT_ONCE = 8
# Ranges of one Spark job, per task that runs at once: between two jobs the moment may be changed.
AT_ONCE = 4  # ranges that are read at the same time, where nobody says: the source has others to serve
RANGES_PER_TASK = 4

AT = pa.timestamp("us", "UTC")


Stage = Callable[[Project, "Sequence[Work]", RunContext], list[Receipt]]


def stage_with_spark(project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
    """Every piece read and staged by a Spark task."""
    from penstock.engine import session
    from penstock.engine.copy import copy_pieces

    return copy_pieces(session.spark(project.spark, project.root), pieces, run)


def prewarm(project: Project, stage: Stage) -> None:
    """Let Spark start in the background, where it will stage: it takes as long as all that comes before a copy."""
    if stage is stage_with_spark:
        from penstock.engine import session

        session.prewarm(project.spark, project.root)


@dataclass(frozen=True, slots=True)
class StampedPartition(Partition):
    """A partition whose rows say at which moment they were read."""

    inner: Partition
    commit: int
    at: datetime
    soft: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        for batch in self.inner.read():
            count = batch.num_rows
            batch = batch.append_column(
                pa.field(VERSION, pa.int64(), nullable=False), pa.repeat(pa.scalar(self.commit, pa.int64()), count)
            )
            batch = batch.append_column(
                pa.field(COMMITTED_AT, AT, nullable=False), pa.repeat(pa.scalar(self.at, AT), count)
            )
            if self.soft:
                gone = pa.repeat(pa.scalar(False), count)
                batch = batch.append_column(pa.field(DELETED, pa.bool_(), nullable=False), gone)
            yield batch


def stamps(*, soft: bool) -> list[Column]:
    columns = [Column(VERSION, pa.int64(), nullable=False), Column(COMMITTED_AT, AT, nullable=False)]
    return [*columns, Column(DELETED, pa.bool_(), nullable=False)] if soft else columns


@dataclass(slots=True)
class TableCopy:
    """One table on its way into its hidden table."""

    kept: Kept
    state: TableState
    planned: PlannedLoad | None  # None where a target has no plan: a log
    load: Load
    run: RunContext
    staged: set[int]  # parts that are durable

    @property
    def left(self) -> list[int]:
        return [part for part in range(len(self.state.ranges)) if part not in self.staged]


class Copier:
    """Copies tables of one replication. Not for two threads at once."""

    def __init__(
        self,
        project: Project,
        replication: Replication,
        ends: Ends,
        save: Callable[[TableState], None],
        stage: Stage,
    ) -> None:
        self._project = project
        self._replication = replication
        self._ends = ends
        self._save = save
        self._stage = stage
        self._staging = project.root / ".penstock" / "staging"
        self.at_once = replication.parallel or project.spark.parallel or AT_ONCE  # each in sessions of its own

    # ------------------------------------------------------------ one table

    def open(self, kept: Kept, state: TableState, moment: CopyMoment) -> TableCopy:
        """A copy that begins, or goes on with what is staged of it, at this moment."""
        before = state
        moment = moment.of(kept.source.name)
        if not state.copy:
            state = self._begun(kept, state, moment)
        elif moment.exact > state.exact:
            state = replace(state, exact=moment.exact)
        run = RunContext(state.copy, self._replication.name, self._staging / state.copy)
        planned, load = self._load(kept, state, run)
        staged = set(range(len(state.ranges))) if load.done else {receipt.part for receipt in load.staged()}
        if torn(kept, before, moment, staged):
            load.abort()
            load.close()
            return self.open(kept, fresh_copy(before), moment)
        return TableCopy(kept, state, planned, load, run, staged)

    def _load(self, kept: Kept, state: TableState, run: RunContext) -> tuple[PlannedLoad | None, Load]:
        """Where the ranges are staged; what was staged under the same name before is found there."""
        target = self._ends.writer(run)
        try:
            planned = self._plan(kept, state, run, target)
            self._require(planned, kept)
            self._note_begun(state)
            return planned, target.begin(replace(planned.load, keeps=True))
        finally:
            target.close()

    def _require(self, planned: PlannedLoad, kept: Kept) -> None:
        try:
            planned.require(self._replication.place)
        except PlanRefused as error:
            # A replication has no casts, and no plan that could be looked at.
            table = kept.source.name
            error.remedy = (
                f'leave columns out (`exclude`) or `rename` them in the options of {table}; or it: "!{table}"'
            )
            raise

    def _note_begun(self, state: TableState) -> None:
        """Before anything is staged: what a state names is found again, whoever dies."""
        self._save(state)
        failpoint("copy.begun")

    def _begun(self, kept: Kept, state: TableState, moment: CopyMoment) -> TableState:
        run = RunContext.new(self._replication.name, self._staging)
        position, exact = moment.extent(kept.source.name)
        return replace(
            state,
            phase="copying",
            copy=run.run_id,
            hidden=hidden_name(self._replication, kept.source.name, run.run_id),
            ranges=() if self._begins_empty(kept, run) else tuple(moment.ranges(kept.source.name)),
            position=position,
            exact=exact,
            version=kept.source.version,
            reason="",
            remedy="",
        )

    def _begins_empty(self, kept: Kept, run: RunContext) -> bool:
        if self._replication.what != "changes":
            return False
        target = self._ends.writer(run)
        try:
            return begins_empty(self._replication, kept, target)
        finally:
            target.close()

    def _plan(self, kept: Kept, state: TableState, run: RunContext, target: Target) -> PlannedLoad:
        soft = self._replication.deletes == "soft"
        assert state.position is not None  # noqa: S101  of a copy that has begun
        several = state.exact > state.position.end
        pipeline = Pipeline(
            name=self._replication.name,
            place=self._replication.place,
            source=self._replication.source,
            table=str(kept.source.name),
            target=TargetName(
                connection=self._replication.target, schema=kept.replica.table.schema, table=state.hidden
            ),
            mode="merge" if kept.source.key else "append",
            keys=kept.source.key,
            columns={was: ColumnOption(rename=now) for was, now in kept.names.items()},
            # A row may lie in a range of one moment and, moved by an update, in one of a later moment too.
            order_by=f"{VERSION} desc" if several and kept.source.key else None,
        )
        schema = Schema.of([*kept.source.schema, *(stamps(soft=soft) if self._replication.metadata_columns else ())])
        table = TableName(kept.replica.table.schema, state.hidden)
        request = LoadRequest(pipeline, schema, kept.source.key, table, None, run, as_text=frozenset(state.texts))
        return plan_load(request, target, self._ends.capabilities)

    def piece(self, copy: TableCopy, moment: CopyMoment, part: int) -> Piece:
        from penstock.engine.task import Piece

        assert copy.planned is not None  # noqa: S101  made by `open`
        names = [(staged.source, staged.column) for staged in copy.planned.columns]
        own = {column.name for column in stamps(soft=True)}
        columns = [staged.column.renamed(staged.source) for staged in copy.planned.columns if staged.source not in own]
        moment = moment.of(copy.kept.source.name)
        partition = moment.partition(copy.kept.source.name, columns, copy.state.ranges[part], copy.run)
        if self._replication.metadata_columns:
            soft = self._replication.deletes == "soft"
            commit, at = moment.stamp(copy.state.ranges[part])
            partition = StampedPartition(partition, commit, at, soft)
        return Piece(partition, copy.load.sink(0), part, names)

    def finish(self, copy: TableCopy) -> TableState:
        """All ranges are staged: the rows into the hidden table, which the log goes on with."""
        failpoint("copy.staged")
        # If we die before this commits, the next start finds every receipt and comes here again; if after it, the
        # target's own list of loads says that it is done.
        if copy.load.done:
            copy.load.abort()  # what the one that died has left: the rows are in the hidden table
        else:
            copy.load.commit(copy.load.staged())
        copy.load.close()
        failpoint("copy.loaded")
        return replace(copy.state, phase="catching up", ranges=())

    def discard(self, kept: Kept, state: TableState) -> None:
        """Remove what a copy has staged: it is not gone on with."""
        if not state.copy:
            return
        run = RunContext(state.copy, self._replication.name, self._staging / state.copy)
        target = self._ends.writer(run)
        try:
            planned = self._plan(kept, state, run, target)
            load = target.begin(replace(planned.load, keeps=True))
            load.abort()
            load.close()
        finally:
            target.close()

    def end_sessions(self, state: TableState) -> None:
        """Of tasks that have lost their links: each may hold a transaction open that nobody will ever end."""
        if not state.copy:
            return
        target = self._ends.writer(RunContext(state.copy, self._replication.name, self._staging / state.copy))
        try:
            target.end_sessions()
        finally:
            target.close()

    # ------------------------------------------------------------ all of them

    def stage(self, moment: CopyMoment, wave: Sequence[tuple[TableCopy, int]]) -> dict[TableName, int]:
        """One Spark job: every range of the wave is durable when it returns. The rows that were read, by table."""
        pieces = [self.piece(copy, moment, part) for copy, part in wave]
        run = replace(RunContext.new(self._replication.name, self._staging), at_once=self.at_once)
        self._stage(self._project, pieces, run)
        rows: dict[TableName, int] = {}
        for copy in {id(copy): copy for copy, _ in wave}.values():
            before = copy.staged
            found = {receipt.part: receipt.rows for receipt in copy.load.staged()}
            copy.staged = set(found)
            rows[copy.kept.source.name] = sum(found[part] for part in copy.staged - before)
        return rows


def torn(kept: Kept, state: TableState, moment: CopyMoment, staged: set[int]) -> bool:
    """Whether a copy that goes on would have rows of two moments that nothing tells apart.

    Without a key no later row takes the place of an earlier one: what changed between the two would count twice.
    Without versions nothing says which of two is the later one.
    """
    later = bool(state.copy) and moment.commit > state.exact
    return later and not mixes(kept) and len(staged) < len(state.ranges)


def mixes(kept: Kept) -> bool:
    """Whether its ranges may be read at several moments."""
    return bool(kept.source.key) and kept.replica.metadata


def next_wave(copies: Sequence[TableCopy], at_once: int) -> list[tuple[TableCopy, int]]:
    """The next ranges, in turn from every table: the largest cannot stall the rest."""
    lists = [[(copy, part) for part in copy.left] for copy in copies]
    return list(islice(_in_turn(lists), at_once * RANGES_PER_TASK))


def _in_turn(lists: Sequence[Sequence[tuple[TableCopy, int]]]) -> Iterator[tuple[TableCopy, int]]:
    for place in range(max(map(len, lists), default=0)):
        for given in lists:
            if place < len(given):
                yield given[place]
