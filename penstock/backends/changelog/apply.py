"""A log as the target of a replication: every flush is a segment, durable before the next one begins.

The position is where the last segment ends; the states of the tables stand in the footers, so that changes, position
and states come together or not at all. Whoever claims the log writes the next segment: the agent before it finds its
number taken, and stops.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.backends.change_target import Applied, Applier, Flush, Logged, TableState
from penstock.backends.changelog.chain import Chain, Fenced
from penstock.backends.changelog.snapshots import Snapshots
from penstock.backends.changes import TRANSACTIONS, Batch, Position, Segment
from penstock.backends.staging import make_folders, sync
from penstock.errors import LinkLost
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName

NOTHING = Batch(TRANSACTIONS.empty_table(), ())


class LogApplier(Applier):
    """One replication into one folder."""

    def __init__(self, folder: Path) -> None:
        self._chain = Chain(folder)
        self._number = 0
        self._epoch = 0
        self._states: dict[TableName, TableState] = {}

    @property
    def log(self) -> Path:
        return self._chain.folder

    def claim(self) -> Applied:
        while True:
            with suppress(Fenced):  # the one before has written on meanwhile: we go on behind that
                return self._claimed()

    def _claimed(self) -> Applied:
        left, numbers = self._chain.leftovers(), self._chain.numbers()
        if not numbers:
            # Two that begin at once: the first segment has one writer only.
            self._epoch = 1
            self._chain.sweep(left)
            return Applied(1, None)
        self._number = numbers[-1]
        position = Position.from_record(self._chain.footer(self._number)["until"])
        epoch, self._states = self._noted(numbers)
        self._epoch = epoch + 1
        self._append(Segment(position, position, NOTHING.transactions, notes=self._whole()))
        self._chain.sweep(left)
        return Applied(self._epoch, position, tuple(self._states.values()))

    def _noted(self, numbers: list[int]) -> tuple[int, dict[TableName, TableState]]:
        """The states as the footers tell them: those that changed, back to the last that has all of them."""
        notes = []
        for number in reversed(numbers):
            notes.append(self._chain.footer(number)["notes"])
            if notes[-1].get("whole"):
                break
        states: dict[TableName, TableState] = {}
        for one in reversed(notes):
            states |= {state.source: state for state in map(TableState.from_record, one.get("states", ()))}
            states = {name: state for name, state in states.items() if str(name) not in one.get("forgotten", ())}
        return notes[-1].get("epoch", 1), states

    def _whole(self) -> dict[str, Any]:
        states = [state.to_record() for state in self._states.values()]
        return {"whole": True, "epoch": self._epoch, "states": states}

    def flush(self, flush: Flush) -> None:
        after = flush.after
        assert after is not None  # noqa: S101  a log begins with its first position
        failpoint("flush.fenced")
        logged = flush.logged or Logged(NOTHING, self._chain.folder)
        self._bring_pieces(logged)
        failpoint("flush.loaded")
        batch = logged.batch
        self._append(
            Segment(flush.before or after, after, batch.transactions, batch.tables, batch.stored, self._notes(flush))
        )
        # If we die here, the segment is there: whoever claims the log next reads its position.
        failpoint("flush.committed")
        changed = {state.source: state for state in flush.states}
        self._states = {
            name: state for name, state in (self._states | changed).items() if name not in set(flush.forgotten)
        }

    def _notes(self, flush: Flush) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        if flush.before is None:
            notes |= {"whole": True, "epoch": self._epoch}
        if flush.states or flush.before is None:
            notes["states"] = [state.to_record() for state in flush.states]
        if flush.forgotten:
            notes["forgotten"] = [str(name) for name in flush.forgotten]
        return notes

    def _bring_pieces(self, logged: Logged) -> None:
        """The files of large transactions, before the segment that names them."""
        for one in logged.batch.stored:
            path = self._chain.folder / one.file
            try:
                make_folders(self._chain.folder)
                shutil.copyfile(logged.folder / one.file, path)
                sync(path)
            except OSError as error:
                raise self._away(error) from error

    def _append(self, segment: Segment) -> None:
        number = self._number + 1
        try:
            self._chain.append(segment, number)
        except OSError as error:
            if not self._linked(number):
                raise self._away(error) from error
            # It has its name already: to write it again with more in it would lose the difference.
            self._sync(error)
        self._number = number

    def _linked(self, number: int) -> bool:
        return self._chain.path(number).exists() and self._chain.footer(number)["writer"] == self._chain.writer

    def _sync(self, error: OSError) -> None:
        try:
            sync(self._chain.folder)
        except OSError:
            raise error from None  # not known to be durable, and not to be repeated: the agent ends

    def _away(self, error: OSError) -> LinkLost:
        return LinkLost(
            f"the log {self._chain.folder} cannot be written to",
            why=os.strerror(error.errno) if error.errno else type(error).__name__,
            kept="what is in the log, and in the buffer",
            remedy="it goes on by itself once there is room and the folder may be written to",
        )

    def has_table(self, table: TableName) -> bool:
        return table in Snapshots(self._chain.folder).newest()

    def remove(self) -> None:
        """The log stays as it is: it is what the replication was for."""

    def close(self) -> None:
        """It holds nothing."""
