"""A replication whose target is a log: changes as they are, behind copies of the tables that they belong to.

All tables' changes go into the log from its first position on, in the order of their commits, those of tables too
that are still copied. So a copy needs no catching up: it counts from the moment that it is of, and whoever reads the
log does the rest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import RunContext
from penstock.backends.change_source import CopyMoment, ReplicatedTable
from penstock.backends.change_target import Logged, TableState
from penstock.backends.changelog.snapshots import PieceSink, Snapshots
from penstock.backends.changelog.snapshots import SnapshotLoad as CopyLoad
from penstock.backends.changes import Batch, StoredChanges, TableChanges, TableVersion
from penstock.engine.task import Piece
from penstock.load.flush import Replica
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.replicate.apply import Changes
from penstock.replicate.copy import Copier, TableCopy
from penstock.replicate.flushing import Flushing, due, fresh_copy
from penstock.replicate.tables import Kept
from penstock.replicate.versions import newest, replaced
from penstock.schema import Schema, TableName

log = logs.Log("replicate")


def kept_in_log(source: ReplicatedTable) -> Kept:
    """A table in a log: under its own name, every column as its source's text."""
    wire = Schema.of([column.as_text() for column in source.schema])
    # Between two moments a row may move out of a range that is not read yet into one that is. Of a change that brings
    # only a part of it, whoever reads the log could not get the rest: such a table is copied at one moment.
    return Kept(source, Replica(source.name, (), source.key, metadata=_sent_whole(source)), wire)


def _sent_whole(source: ReplicatedTable) -> bool:
    """Whether every change brings the whole row: with its old row, or because no value of it lies out of line."""
    return source.version.identity == "full" or all(_is_short(column.type) for column in source.schema)


def _is_short(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_) or isinstance(type_, pa.UuidType)) and not pa.types.is_decimal(type_)


class LogFlusher(Flushing):
    """Brings the buffer into a log."""

    def step(self) -> bool:
        moved = self._append()
        for state in self._ledger.tables():
            if state.phase == "failed" and due(state):
                moved |= self._try_again(state)
        return moved

    def follow(self, state: TableState, version: TableVersion) -> None:
        # A reader takes the form from the next change; rows that are others it can only have from a new copy.
        self._ledger.save(self._followed(state, version))

    def _append(self) -> bool:
        position = self._ledger.position
        segments = self._segments(position)
        if not segments:
            return False
        changes = Changes.of(segments, position)
        batch = self._ours(changes.batch)
        states = self._told(batch)
        self._ledger.commit(logged=Logged(batch, self._buffer.chain.folder), after=changes.until, states=states)
        for one in _all(batch):
            rows = one.rows if isinstance(one, StoredChanges) else one.rows.num_rows
            self.applied[one.version.table] = self.applied.get(one.version.table, 0) + rows
        return True

    def _ours(self, batch: Batch) -> Batch:
        """Without tables that belong to the replication no more."""
        tables = tuple(one for one in batch.tables if one.version.table in self._kept)
        stored = tuple(one for one in batch.stored if one.version.table in self._kept)
        return Batch(batch.transactions, tables, stored)

    def _told(self, batch: Batch) -> list[TableState]:
        """The states of tables that have another form from here on, or other rows than the log has told."""
        found: dict[TableName, list[TableChanges | StoredChanges]] = {}
        for one in _all(batch):
            found.setdefault(one.version.table, []).append(one)
        states = []
        for name, changes in found.items():
            state = self._ledger.table(name)
            if state is None or state.phase != "streaming" or state.version is None:
                continue
            version = newest(changes)
            if version == state.version or _last_commit(batch, changes) < state.exact:
                continue  # of before its copy: that has told more
            states.append(fresh_copy(state) if replaced(state.version, changes) else self._followed(state, version))
        return states

    def _followed(self, state: TableState, version: TableVersion) -> TableState:
        assert state.version is not None  # noqa: S101  asked above
        if state.version.continues(version):
            return replace(state, version=version)
        log.warning("a table is copied again", table=str(state.source), why="its rows were rewritten")
        return fresh_copy(state)


def _all(batch: Batch) -> list[TableChanges | StoredChanges]:
    return [*batch.tables, *batch.stored]


def _last_commit(batch: Batch, changes: list[TableChanges | StoredChanges]) -> int:
    last = max(one.tx if isinstance(one, StoredChanges) else int(one.rows["tx"].to_numpy().max()) for one in changes)
    return int(batch.transactions["commit"].to_numpy()[last])


class LogCopier(Copier):
    """Copies tables into a log: every range a piece, every table a segment that names its pieces."""

    snapshots: Snapshots

    def into(self, folder: Path, live: list[TableState]) -> LogCopier:
        """What dead agents have left is removed, unless it is gone on with."""
        self.snapshots = Snapshots(folder)
        self.snapshots.sweep([state.copy for state in live if state.copy])
        return self

    def _load(self, kept: Kept, state: TableState, run: RunContext) -> tuple[None, CopyLoad]:
        del kept, run  # a log takes any column
        self._note_begun(state)
        load = CopyLoad(self.snapshots, state.copy)
        failpoint("load.staging")
        return None, load

    def piece(self, copy: TableCopy, moment: CopyMoment, part: int) -> Piece:
        columns = list(copy.kept.wire)
        moment = moment.of(copy.kept.source.name)
        partition = moment.partition(copy.kept.source.name, columns, copy.state.ranges[part], copy.run)
        names = tuple(column.name for column in copy.kept.source.version.columns)
        sink = PieceSink(self.snapshots.folder, copy.state.copy, names, moment.commit, moment.at)
        return Piece(partition, sink, part, [(column.name, column) for column in columns])

    def finish(self, copy: TableCopy) -> TableState:
        """All ranges are there: the segment that names them is the table's copy from now on."""
        state = copy.state
        failpoint("copy.staged")
        assert state.position is not None  # noqa: S101  of a copy that has begun
        # If we die before the segment is there, every receipt is found again; if after it, the copy is known as whole.
        if not copy.load.done:
            self.snapshots.add(state.copy, copy.kept.source.version, state.position, state.exact)
        failpoint("copy.loaded")
        return replace(state, phase="streaming", position=None, ranges=(), copy="", reason="", remedy="", attempts=0)

    def end_sessions(self, state: TableState) -> None:
        del state  # a log has none

    def discard(self, kept: Kept, state: TableState) -> None:
        del kept
        if state.copy:
            self.snapshots.forget(state.copy)
