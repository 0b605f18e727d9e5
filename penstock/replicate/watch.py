"""What the log does not tell: tables that were dropped, renamed or altered, or whose rows came and went by themselves.

Found by looking, at each start, every minute, and whenever a table has another file than before. A table whose rows
nobody can vouch for is copied again; what others see of it stays until that copy joins.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace

from penstock.backends.base import Dialect, Execute, TableLoad
from penstock.backends.change_source import ChangeSource
from penstock.backends.change_target import TableFailed, TableFlush, TableState
from penstock.backends.changes import TableVersion
from penstock.errors import PenstockError, SourceError
from penstock.observe import logs
from penstock.project.replications import Replication
from penstock.replicate.flushing import Flushing, fresh_copy
from penstock.replicate.ledger import Ledger
from penstock.replicate.tables import Kept
from penstock.schema import TableName

log = logs.Log("replicate")

# A copy that is under way is let to its end, and judged then: two threads would write its state.
JUDGED = ("streaming", "catching up", "failed")


@dataclass(frozen=True, slots=True)
class _Altered:
    """A table that has another form than its last change has told of."""

    before: TableVersion
    now: TableVersion
    mark: int  # behind it in the log, all changes of the form before are applied


class Watch:
    """Used by the agent's own thread alone."""

    def __init__(
        self,
        replication: Replication,
        ledger: Ledger,
        flusher: Flushing,
        kept: MutableMapping[TableName, Kept],
        dialect: Dialect | None,
    ) -> None:
        self._replication = replication
        self._ledger = ledger
        self._flusher = flusher
        self._kept = kept
        self._dialect = dialect
        self._files: dict[TableName, str] = {}
        self._dropped: dict[TableName, int] = {}  # with the mark that all of its changes lie before
        self._altered: dict[TableName, _Altered] = {}

    @property
    def due(self) -> bool:
        """Whether the log has told of a table with another file: the rest of it is asked for at once."""
        files = {state.source: state.version.file for state in self._ledger.tables() if state.version is not None}
        found = any(self._files.get(name, file) != file for name, file in files.items())
        self._files = files
        return found

    def look(self, source: ChangeSource) -> None:
        """Compare every table with what it was when it was copied."""
        outlines = source.outlines()
        for state in self._ledger.tables():
            if state.phase not in JUDGED or not state.outline or state.source in self._dropped:
                continue
            now = outlines.get(state.source)
            if now is None:
                self._missing(source, state)
            elif now != state.outline and state.phase != "failed":
                self._differs(source, state)
        self._look_at_forms(source)

    def _look_at_forms(self, source: ChangeSource) -> None:
        states = [state for state in self._ledger.tables() if state.phase == "streaming" and state.outline]
        known = {state.source: state.version for state in states if state.version is not None}
        found = source.altered(known)
        # Of a form that it had already at the last look, the mark is the earlier one.
        kept = {
            name: one
            for name, one in self._altered.items()
            if found.get(name) == one.now and known.get(name) == one.before
        }
        new = {name: now for name, now in found.items() if name not in kept}
        # Behind the look at the forms: what was changed before it lies before the mark.
        mark = source.mark() if new else 0
        self._altered = kept | {name: _Altered(known[name], now, mark) for name, now in new.items()}

    @property
    def altered(self) -> frozenset[TableName]:
        """The tables that wait for the form that they have at the source."""
        return frozenset(self._altered)

    def _missing(self, source: ChangeSource, state: TableState) -> None:
        renamed = source.successor(state.outline)
        if renamed is not None and state.phase == "failed":
            return
        if renamed is None:
            # Changes that were made before it was dropped may be on their way.
            self._dropped[state.source] = source.mark()
            log.warning("a table was dropped at the source", table=str(state.source), on_drop=self._replication.on_drop)
            return
        if renamed == state.source:
            self._left_out(source, state)
            return
        self._flusher.fail(
            state,
            SourceError(
                "the table has another name at the source",
                why=f"it is called {renamed} now",
                kept="its rows stay as they are",
                remedy=f"name it so in `tables`, then `penstock replications reload {self._replication.name}`",
            ),
        )

    def _left_out(self, source: ChangeSource, state: TableState) -> None:
        """It is there, and cannot be replicated any more: its key is gone, perhaps."""
        source.publish()  # without it, or the application's UPDATEs of it fail
        found = next((one for one in source.left_out if one.what.startswith(f"{state.source} ")), None)
        error = SourceError(
            "the table can be replicated no more",
            why=found.what if found is not None else "",
            kept="its rows stay as they are",
            remedy=found.remedy if found is not None else "",
        )
        # What changes from now on is not sent: when it can be replicated again, its rows come anew.
        self._flusher.fail(fresh_copy(state), error)

    def _differs(self, source: ChangeSource, state: TableState) -> None:
        try:
            source.publish()  # a table that was made anew, or taken out, is in no publication
        except PenstockError as error:
            if state.source in source.outlines():
                self._flusher.fail(fresh_copy(state), error)
            return  # dropped just now: the next look finds it so
        now = source.outlines().get(state.source)
        if now is None:
            return  # as above
        log.warning("a table is copied again", table=str(state.source), why="rows came or went without a change")
        self._ledger.save(replace(fresh_copy(state), outline=now))

    def settle(self) -> None:
        """Let go of dropped tables, and follow those that were altered, once all their changes are applied."""
        for name, altered in self._altered.items():
            state = self._ledger.table(name)
            if state is None or state.phase != "streaming" or state.version != altered.before:
                self._leave(name)  # a change has told of it, or it is copied again: the next look finds the rest
            elif self._ledger.position.end >= altered.mark:
                self._leave(name)
                self._flusher.follow(state, altered.now)
        for name, mark in list(self._dropped.items()):
            state = self._ledger.table(name)
            if state is None or self._ledger.position.end >= mark:
                del self._dropped[name]
            if state is not None and name not in self._dropped:
                self.forget(state)

    def _leave(self, name: TableName) -> None:
        # Another one: who is shown it, in another thread, goes through the one before.
        self._altered = {other: altered for other, altered in self._altered.items() if other != name}

    def forget(self, state: TableState) -> None:
        """Of a table that the source does not have any more."""
        flushes = []
        if self._replication.on_drop == "drop" and self._dialect is not None:
            drop = Execute(f"drop table if exists {self._dialect.relation(state.target)}")
            flushes = [TableFlush(state.source, TableLoad(state.target, (), (drop,)))]
        try:
            # If we die before this commits, the next start finds the table gone and comes here again.
            self._ledger.commit(flushes, forgotten=[state.source])
        except TableFailed as failed:
            self._flusher.fail(state, failed.error)  # a view needs it, perhaps
            return
        self._kept.pop(state.source, None)
