"""`keep_copy = true`: a buffer that can fill another target, because it has a copy of every table.

The rows are read once more, as texts, when the target has its own: a buffer holds what the source has printed, a
target holds values. A table that the target copies again is copied again here too: what its changes have not told,
no reader of the buffer knows either.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.backends.change_source import ChangeSource
from penstock.backends.change_target import TableState
from penstock.backends.changelog.snapshots import Snapshots
from penstock.backends.changes import Position
from penstock.backends.staging import sync
from penstock.project.model import Project
from penstock.project.replications import Replication
from penstock.replicate.buffer import Buffer
from penstock.replicate.circuit import Circuit
from penstock.replicate.copies import Copies
from penstock.replicate.copy import Stage
from penstock.replicate.flushing import due, fresh_copy
from penstock.replicate.ledger import Ledger
from penstock.replicate.logged import LogCopier, LogFlusher, kept_in_log
from penstock.replicate.tables import Ends, Kept
from penstock.schema import TableName

STATES = "copying.json"  # beside the pieces: the copies that are not whole


class KeptLedger(Ledger):
    """Which copies a buffer lacks: by the states of the target, and by the copies that are there."""

    def __init__(self, ledger: Ledger, snapshots: Snapshots) -> None:
        # Not the target's: what is written here goes into a file beside the copies.
        self._target = ledger
        self._snapshots = snapshots
        self._path = snapshots.folder / STATES
        self._begun = {state.source: state for state in self._read()}

    def _read(self) -> list[TableState]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return []
        return [TableState.from_record(record) for record in json.loads(text)]

    def tables(self) -> list[TableState]:
        copies = self._snapshots.newest()
        found = []
        for state in self._target.tables():
            if state.phase not in ("catching up", "streaming"):
                continue
            copy = copies.get(state.source)
            if copy is None or copy.exact < state.exact:
                found.append(self._again(state))
        return found

    def _again(self, state: TableState) -> TableState:
        begun = self._begun.get(state.source)
        if begun is None or (begun.copy and begun.exact < state.exact):
            return TableState(state.source, state.source)
        return fresh_copy(begun) if begun.phase == "failed" and due(begun) else begun

    def table(self, name: TableName) -> TableState | None:
        return next((state for state in self.tables() if state.source == name), None)

    @property
    def position(self) -> Position:
        return self._target.position

    def save(self, *states: TableState) -> None:
        changed = self._begun | {state.source: state for state in states}
        begun = {name: state for name, state in changed.items() if state.phase != "streaming"}
        self._write([state.to_record() for state in begun.values()])
        self._begun = begun

    def _write(self, records: list[dict[str, object]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w") as file:
            json.dump(records, file)
            file.flush()
            os.fsync(file.fileno())
        # If we die here, the one before it stays: ranges that it does not name are read again.
        beside.replace(self._path)
        sync(self._path.parent)

    @property
    def live(self) -> list[TableState]:
        return list(self._begun.values())


class KeptCopies:
    """Copies of all tables beside the segments of a buffer, made in a thread of their own."""

    def __init__(
        self,
        project: Project,
        replication: Replication,
        ends: Ends,
        source: ChangeSource,
        ledger: Ledger,
        buffer: Buffer,
        stage: Stage,
        circuit: Circuit,
    ) -> None:
        folder: Path = buffer.chain.folder
        self._ledger = ledger
        self._source = source
        self._snapshots = Snapshots(folder)
        kept_ledger = KeptLedger(ledger, self._snapshots)
        copier = LogCopier(project, replication, ends, kept_ledger.save, stage).into(folder, kept_ledger.live)
        self._kept: dict[TableName, Kept] = {table.name: kept_in_log(table) for table in source.tables()}
        flusher = LogFlusher(replication, source, kept_ledger, buffer, self._kept)
        given = (replication, source, kept_ledger, flusher, copier, self._kept, self._replan)
        # Nobody waits for them.
        self._copies = Copies(*given, None, circuit, lambda error: error.passing, lambda: None)
        self._copies.start()

    def _replan(self, name: TableName) -> Kept:
        table = next(table for table in self._source.tables() if table.name == name)
        self._kept[name] = kept_in_log(table)
        return self._kept[name]

    def oldest(self, position: Position) -> Position:
        """What lies before it, no reader of the buffer needs either: all that its copies go on from stays."""
        copies = self._snapshots.newest()
        places = [copies[state.source].position for state in self._ledger.tables() if state.source in copies]
        return min([position, *places], key=lambda one: (one.commit, one.end))

    def raise_error(self) -> None:
        if self._copies.error is not None:
            raise self._copies.error

    def stop(self) -> None:
        self._copies.stop()
