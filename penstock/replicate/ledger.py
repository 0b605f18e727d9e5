"""What the target knows of a replication: its watermark and the state of every table.

All that is written to the target goes through `commit`, one transaction at a time, behind the fence. What it brings
is known here only once it is there: an agent that dies is followed by one that reads the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from penstock.backends.change_target import Applier, Flush, Logged, TableFailed, TableFlush, TableState
from penstock.backends.changes import Position
from penstock.errors import PlanStale
from penstock.schema import TableName


class Ledger:
    """For several threads: of copies, and of flushes."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self._turn = threading.Lock()
        self._unsure = False  # whether the target has the last transaction
        self.learnt = False  # the target had more than was known here: what was planned without it is stale
        applied = applier.claim()
        self.epoch = applied.epoch
        self._position = applied.position
        self._tables = {state.source: state for state in applied.tables}

    @property
    def begun(self) -> bool:
        return self._position is not None

    @property
    def position(self) -> Position:
        """How far the tables that stream are."""
        assert self._position is not None  # noqa: S101  since the first start
        return self._position

    def tables(self) -> list[TableState]:
        """In the order of their names. A flush that is under way is not waited for: people ask while it is."""
        known = self._tables
        return [known[name] for name in sorted(known, key=str)]

    def table(self, name: TableName) -> TableState | None:
        return self._tables.get(name)

    @property
    def all_failed(self) -> bool:
        states = self.tables()
        return bool(states) and all(state.phase == "failed" for state in states)

    @property
    def any_well(self) -> bool:
        """Whether there is a table that has taken something since it last failed, or never has; or none at all."""
        states = self.tables()
        return not states or any(not state.attempts for state in states)

    @property
    def oldest(self) -> Position:
        """How far the table is that has got least: what lies before it, nobody needs."""
        places = [state.position for state in self.tables() if state.position is not None]
        return min([self.position, *places], key=lambda position: (position.commit, position.end))

    def commit(
        self,
        tables: Iterable[TableFlush] = (),
        *,
        after: Position | None = None,
        states: Sequence[TableState] = (),
        forgotten: Sequence[TableName] = (),
        logged: Logged | None = None,
    ) -> None:
        """One transaction; without `after`, the watermark stays where it is."""
        with self._turn:
            self._ask_target()
            until = after if after is not None else self._position
            try:
                self._applier.flush(Flush(self._position, until, tables, tuple(states), tuple(forgotten), logged))
            except TableFailed:
                raise  # before its COMMIT: the target has nothing of it
            except BaseException:
                self._unsure = True
                raise
            self._position = until
            changed = {state.source: state for state in states}
            self._tables = {
                name: state for name, state in (self._tables | changed).items() if name not in set(forgotten)
            }

    def make_sure(self) -> None:
        """That the target is there and what it has is known here; raises `PlanStale` if it was not."""
        with self._turn:
            self._ask_target()

    def _ask_target(self) -> None:
        """After a COMMIT whose answer may be lost, the target alone knows: what was planned without it is stale."""
        if not self._unsure:
            return
        applied = self._applier.known()
        self._unsure = False
        if applied is None:
            return
        tables = {state.source: state for state in applied.tables}
        if applied.position == self._position and tables == self._tables:
            return
        self._position, self._tables, self.learnt = applied.position, tables, True
        raise PlanStale(
            "the last transaction is in the target",
            why="only the answer to its COMMIT was lost",
            kept="all of it",
            remedy="it goes on behind it by itself",
        )

    def save(self, *states: TableState) -> None:
        self.commit(states=states)
