"""The copies of a replication, in a thread of their own beside the flushes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.backends.change_source import ChangeSource, CopyMoment
from penstock.backends.change_target import TableState
from penstock.errors import BeyondArrow, PenstockError, SourceMoved
from penstock.observe import logs
from penstock.project.replications import Replication, seconds
from penstock.replicate.circuit import Circuit
from penstock.replicate.copy import TABLES_AT_ONCE, Copier, TableCopy, mixes, next_wave
from penstock.replicate.flushing import Flushing, fresh_copy
from penstock.replicate.ledger import Ledger
from penstock.replicate.tables import Kept
from penstock.replicate.versions import differences
from penstock.schema import TableName

log = logs.Log("replicate")

LOOK_SECONDS = 0.2  # between two looks for a table that is to be copied


@contextmanager
def _trouble_of(state: TableState) -> Iterator[None]:
    """What is refused meanwhile is one table's trouble, where it does not say whose."""
    try:
        yield
    except PenstockError as error:
        error.place = error.place or str(state.target)
        raise


class Copies:
    """Copies whatever waits for it, until it is stopped."""

    def __init__(
        self,
        replication: Replication,
        source: ChangeSource,
        ledger: Ledger,
        flusher: Flushing,
        copier: Copier,
        kept: Mapping[TableName, Kept],
        replan: Callable[[TableName], Kept],
        moment: CopyMoment | None,
        circuit: Circuit,
        waits_for: Callable[[PenstockError], bool],
        wake: Callable[[], None],
    ) -> None:
        """`circuit` says when they are tried again, and `waits_for` what is of no table and may pass."""
        self._replication = replication
        self._source = source
        self._ledger = ledger
        self._flusher = flusher
        self._copier = copier
        self._kept = kept
        self._replan = replan
        self._moment = moment
        self._taken = time.monotonic()
        self._circuit = circuit
        self._waits_for = waits_for
        self._wake = wake
        self._open: dict[TableName, TableCopy] = {}
        self._stopping = threading.Event()
        self._paused = threading.Event()
        self.progress: dict[TableName, tuple[int, int]] = {}  # ranges that are staged, of how many
        self.rows: dict[TableName, int] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self, *, paused: bool) -> None:
        (self._paused.set if paused else self._paused.clear)()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._paused.is_set() or not self._circuit.due or not self._step():
                    self._let_go()
                    self._stopping.wait(LOOK_SECONDS)
        except BaseException as error:  # noqa: BLE001  raised again by the agent's own thread
            self.error = error
        finally:
            self._let_go()
            self._wake()

    def _step(self) -> bool:
        """One job of Spark's; False if there is nothing to copy."""
        try:
            self._rotate()
            self._open_more()
            self._finish()
            wave = next_wave(list(self._open.values()), self._copier.at_once)
            if wave:
                self._stage(wave)
        except PenstockError as error:
            self._failed(error)
            return True
        self._circuit.succeeded()
        return bool(self._open)

    def _stage(self, wave: Sequence[tuple[TableCopy, int]]) -> None:
        rows = self._copier.stage(self._current(), wave)
        for name, copy in {copy.kept.source.name: copy for copy, _ in wave}.items():
            self.progress[name] = (len(copy.staged), len(copy.state.ranges))
            self.rows[name] = self.rows.get(name, 0) + rows.get(name, 0)
            if copy.state.attempts:
                # The target takes its rows again.
                copy.state = replace(copy.state, attempts=0)
                self._ledger.save(copy.state)

    def _open_more(self) -> None:
        """The largest, and the smallest of the others."""
        waiting = [
            state
            for state in self._ledger.tables()
            if state.phase in ("waiting", "copying") and state.source not in self._open and state.source in self._kept
        ]
        by_size = sorted(waiting, key=lambda state: self._kept[state.source].source.bytes)
        while by_size and len(self._open) < TABLES_AT_ONCE:
            state = by_size.pop() if not self._open else by_size.pop(0)
            moment = self._current()
            kept = self._replan(state.source)
            if not moment.covers(state.source):
                if self._may_let_go:
                    self._let_go()  # the next moment has it
                    return
                continue
            with _trouble_of(state):
                if state.copy and state.version is not None and differences(state.version, kept.source.version):
                    # What is staged has another form than what would be staged now.
                    self._copier.discard(kept, state)
                    state = fresh_copy(state)
                self._open[state.source] = self._copier.open(kept, state, moment)

    def _finish(self) -> None:
        for name, copy in list(self._open.items()):
            if not copy.left:
                with _trouble_of(copy.state):
                    finished = self._copier.finish(copy)
                self._ledger.save(finished)
                del self._open[name]
                # It joins when the log is past its moment: of a source that is idle, not before somebody writes.
                self._source.mark()
                self._wake()

    # ------------------------------------------------------------ moments

    def _current(self) -> CopyMoment:
        if self._moment is None:
            for state in self._ledger.tables():
                # A moment waits for every transaction that writes: also for one of ours whose link is lost.
                if state.phase == "copying":
                    self._copier.end_sessions(state)
            self._moment, self._taken = self._source.moment(), time.monotonic()
        return self._moment

    def _rotate(self) -> None:
        """An old snapshot keeps the source from cleaning up behind everybody: what is left is read at a new one."""
        if self._moment is None or time.monotonic() - self._taken < seconds(self._replication.snapshot_max_age):
            return
        if not self._may_let_go:
            return  # it would begin anew each time, and never end
        # What is staged stays, and is found when its table is opened again: if that has its form still.
        self._let_go()

    @property
    def _may_let_go(self) -> bool:
        """Whether what is staged can be gone on with at another moment."""
        return not any(copy.staged and not mixes(copy.kept) for copy in self._open.values())

    def _let_go(self) -> None:
        for copy in self._open.values():
            copy.load.close()
        self._open.clear()
        if self._moment is not None:
            self._moment.close()
            self._moment = None

    # ------------------------------------------------------------ trouble

    def _failed(self, error: PenstockError) -> None:
        """Another try, under a new moment; of a table whose own fault it is, a state."""
        table = self._guilty(error)
        self._let_go()
        try:
            self._settle(error, table)
        except PenstockError as other:
            if not self._waits_for(other):
                raise
            self._wait(other)  # what has become of the table is found out again

    def _settle(self, error: PenstockError, table: TableState | None) -> None:
        if isinstance(error, SourceMoved) and table is not None:
            # Its rows lie elsewhere now: from the beginning.
            log.warning("a copy begins again", table=str(table.source), why=error.why)
            self._copier.discard(self._kept[table.source], table)
            self._ledger.save(fresh_copy(table))
            return
        if isinstance(error, BeyondArrow) and table is not None and not set(error.columns) <= set(table.texts):
            self._copier.discard(self._kept[table.source], table)
            texts = tuple(sorted({*table.texts, *error.columns}))
            self._ledger.save(replace(fresh_copy(table), texts=texts))
            return
        if error.passing or table is None:
            if not self._waits_for(error):
                raise error
            self._wait(error)
            return
        self._flusher.fail(table, error)

    def _wait(self, error: PenstockError) -> None:
        wait = self._circuit.failed(error)
        log.warning(
            "a copy failed",
            replication=self._replication.name,
            what=error.what,
            why=error.why,
            again_in=round(wait, 1),
        )

    def _guilty(self, error: PenstockError) -> TableState | None:
        """The table that an error speaks of: by its own name, or by that of its hidden table."""
        for state in self._ledger.tables():
            hidden = str(TableName(state.target.schema, state.hidden)) if state.hidden else ""
            if error.place and error.place in (str(state.source), str(state.target), hidden):
                return state
        return None
