"""Both ends of a replication, open, and what is known of its tables: where it begins, and how it goes on.

What is known is read from the target, the buffer and the source, so that an agent that was killed is followed by one
that knows the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.backends.base import Dialect, Receipt, RunContext, Target
from penstock.backends.change_source import ChangeSource, CopyMoment, ReplicatedTable, TableRequest
from penstock.backends.change_target import TableState
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position, TableVersion
from penstock.errors import PlanRefused, SourceError, StateError
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.project.model import Project
from penstock.project.replications import Replication, size
from penstock.replicate.beginning import dropped_at, end_findings, first_state
from penstock.replicate.buffer import Buffer, mark, stop_if_of_another
from penstock.replicate.capturing import Orders
from penstock.replicate.copy import Copier, Stage
from penstock.replicate.evolve import Evolver
from penstock.replicate.flusher import Flusher
from penstock.replicate.flushing import Flushing, fresh_copy
from penstock.replicate.folding import FoldPiece, SparkFolder
from penstock.replicate.health import Obstructed, dropped_copies, lost_buffer, obstacle, recopies
from penstock.replicate.ledger import Ledger
from penstock.replicate.logged import LogCopier, LogFlusher, kept_in_log
from penstock.replicate.reacting import Reacting
from penstock.replicate.tables import Ends, Kept, log_names, requests
from penstock.replicate.watch import Watch
from penstock.schema import TableName

log = logs.Log("replicate")

PHASES = ("waiting", "copying", "catching up", "streaming")  # of tables that are written to, or will be


class SourceSide:
    """The source alone: what a capture needs while the target is away."""

    def __init__(self, project: Project, replication: Replication, ends: Ends, stack: ExitStack) -> None:
        self.project = project
        self.replication = replication
        self.ends = ends
        self.requests = requests(project, replication, ends)
        self.source: ChangeSource = ends.change_source(replication, self.requests)
        stack.callback(self.source.close)

    @property
    def folder(self) -> Path:
        """Of the buffer."""
        return self.replication.buffer_folder(self.project.root)

    def orders(self, chain: Chain, start: Position, known: Sequence[TableVersion]) -> Orders:
        """Of a capture into this log."""
        replication = self.replication
        pace = min(replication.buffer.segment_ms, max(replication.flush_interval_ms // 4, 1)) / 1000
        limit = size(replication.buffer.max_bytes)
        names, tables = log_names(replication), tuple(self.requests)
        given = (names, tables, chain.folder, chain.turn, start, pace, limit, tuple(known), replication.buffer.format)
        return Orders(self.ends.source, *given)


class Opened:
    """Both ends. Made for one run of an agent; whatever it opens is on the run's stack."""

    def __init__(self, side: SourceSide, stage: Stage, stack: ExitStack) -> None:
        self._side = side
        self._stage = stage
        self.source = side.source
        self.log = side.ends.log_of_target(side.replication)  # of a target that is one
        self._outlines: Mapping[TableName, str] = {}
        replication = side.replication
        tables = {table.name: table for table in self.source.tables()}
        self.target: Target | None = None
        if self.log is None:
            staging = self._side.project.root / ".penstock" / "staging"
            self.target = self._side.ends.writer(RunContext.new(replication.name, staging))
            stack.callback(self.target.close)
        self._check(tables)
        if self.source.log is None:
            stop_if_of_another(self._side.folder, replication.name)  # before the agent that runs there is fenced out
        applier = self._side.ends.applier(replication)
        stack.callback(applier.close)
        self._lasting = applier.lasting
        self._same_kind = self.source.texts_of == applier.texts_of
        self.ledger = Ledger(applier)
        self.reacting = Reacting(replication, self.target, applier)
        self.kept = {name: self._planned(table) for name, table in tables.items()}
        self.buffer = self._buffered()
        self.flusher = self._flushes()
        stack.callback(self.flusher.close)
        self.watch = Watch(replication, self.ledger, self.flusher, self.kept, self.dialect)

    @property
    def requests(self) -> Sequence[TableRequest]:
        return self._side.requests

    @property
    def dialect(self) -> Dialect | None:
        """Of a target that runs statements."""
        return self.target.dialect if self.target is not None else None

    def _buffered(self) -> Buffer:
        if self.source.log is not None:
            return Buffer(Chain(self.source.log), foreign=True)
        if not self.ledger.begun:
            mark(self._side.folder, self._side.replication.name)
        chain = Chain(self._side.folder)
        chain.turn = chain.following(self.ledger.epoch)
        return Buffer(chain)

    def _flushes(self) -> Flushing:
        replication, source, ledger, buffer = self._side.replication, self.source, self.ledger, self.buffer
        if self.target is None:
            return LogFlusher(replication, source, ledger, buffer, self.kept)
        dialect = self.target.dialect
        if dialect is None:
            raise PlanRefused("this target takes no changes", kept="nothing was touched", place=replication.place)
        evolver = Evolver(replication.name, source, self.target, dialect, same_kind=self._same_kind)
        folder = SparkFolder(self._side.project.root / ".penstock", replication.name, source.texts_of, self._run_pieces)
        return Flusher(replication, source, ledger, buffer, self.kept, dialect, evolver, folder, self.reacting)

    def _run_pieces(self, pieces: Sequence[FoldPiece], run: RunContext) -> list[Receipt]:
        return self._stage(self._side.project, pieces, run)

    def _check(self, tables: Collection[TableName]) -> None:
        for one in self.source.left_out:
            log.warning(one.what, replication=self._side.replication.name, remedy=one.remedy)
        found = self.source.findings()
        if self.target is not None:
            found += end_findings(self._side.replication, self._side.ends, self.source, tables, self.target)
        if not tables:
            found += self.source.left_out
        if found:
            raise PlanRefused(
                f"replication {self._side.replication.name} cannot start",
                why="; ".join(one.what for one in found),
                kept="nothing was touched",
                remedy="; ".join(one.remedy for one in found),
                place=self._side.replication.place,
            )

    # ------------------------------------------------------------ its tables

    def _planned(self, table: ReplicatedTable) -> Kept:
        """How it is held: in the form that the target has it in, which the log goes on from."""
        state = self.ledger.table(table.name)
        known = state.version if state is not None and state.phase not in ("waiting", "copying") else None
        described = table if known is None else self.source.described(known)
        return self._plan(described, state)

    def _plan(self, table: ReplicatedTable, state: TableState | None) -> Kept:
        if self.target is None:
            return kept_in_log(table)
        texts = state.texts if state is not None else ()
        return Kept.plan(self._side.replication, table, self.target, texts, same_kind=self._same_kind)

    def replan(self, name: TableName) -> Kept:
        """Of a table whose copy begins: as the source has it now."""
        table = next((table for table in self.source.tables() if table.name == name), None)
        if table is None:
            raise SourceError(
                "the table is gone",
                why="it was dropped, renamed, or lost its key before it was copied",
                kept="what the target has of it",
                remedy=f"`penstock replications reload {self._side.replication.name}`",
                place=str(name),
            )
        self.kept[name] = self._plan(table, self.ledger.table(name))
        return self.kept[name]

    def learn(self) -> None:
        """The target has more than was known here, and of some tables another form: as a new start would find them."""
        self.ledger.learnt = False
        for name, kept in list(self.kept.items()):
            self.kept[name] = self._planned(kept.source)

    def reload(self, replication: Replication) -> tuple[int, int]:
        """The tables that the options name now, and no others: how many came and went. Those that stay go on."""
        wanted = requests(self._side.project, replication, self._side.ends)
        self.source.change(wanted)
        self._side.requests, self._side.replication = wanted, replication
        self._outlines = self.source.outlines()
        tables = {table.name: table for table in self.source.tables()}
        new = [name for name in tables if name not in self.kept]
        gone = [name for name in self.kept if name not in tables]
        for name in new:
            self.kept[name] = self._planned(tables[name])
        # At once: behind this commit, the thread of the copies goes on with what waits for it.
        self.ledger.commit(states=[self._fresh_and_judged(name) for name in new], forgotten=gone)
        for name in gone:
            del self.kept[name]
            self.reacting.forget(name)
        return len(new), len(gone)

    # ------------------------------------------------------------ the beginning

    def begin(self) -> CopyMoment:
        """The first start: the log is kept from a moment on, and that is where the target begins."""
        if self.buffer.end is not None and self.source.log is None and not self._lasting:
            self.buffer.clear()  # of a target that has ended with its process: all begins anew
        elif self.buffer.end is not None and self.source.log is None:
            raise StateError(
                f"the buffer {self.buffer.chain.folder} is not empty, and the target knows nothing of it",
                why="the target is another one, or was emptied",
                kept="nothing was touched",
                remedy=f"move the folder away, or `penstock replications resync {self._side.replication.name}`",
            )
        self.reacting.require(self.kept)
        return self._from_here()

    def _from_here(self) -> CopyMoment:
        self.source.publish()
        self._outlines = self.source.outlines()
        moment = self.source.begin()
        # If we die here, the slot is there and the target knows nothing: the next start makes both anew.
        failpoint("replicate.slot")
        self.ledger.commit(after=moment.position, states=[self._fresh(name) for name in self.kept])
        failpoint("replicate.begun")
        self.judge(*PHASES)
        return moment

    def _fresh(self, name: TableName) -> TableState:
        return first_state(self._side.replication, self.kept[name], self.target, self._outlines.get(name, ""))

    def _fresh_and_judged(self, name: TableName) -> TableState:
        state, error = self._fresh(name), self.reacting.refusal(self.kept[name])
        return state if error is None else self.flusher.failed(state, error)

    def resume(self) -> CopyMoment | None:
        """A later start: the log must go on where the buffer ends."""
        found = lost_buffer(self._side.folder) if self.source.log is None else None
        found = found or obstacle(self.source, self.buffer, self.ledger)
        if found is not None:
            untouched = all(state.phase == "waiting" for state in self.ledger.tables())
            if not recopies(self._side.replication, found) and not (untouched and found.healed):
                raise Obstructed.by(self._side.replication, found)
            return self._begin_again()
        known = {state.source: state for state in self.ledger.tables()}
        if any(name not in known for name in self.kept):
            # Before it is known: what is copied and not published would never change again.
            self.source.publish()
        self._outlines = self.source.outlines()
        new = [self._fresh(name) for name in self.kept if name not in known]
        gone = [name for name in known if name not in self.kept]
        for name in dropped_at(self._side.replication, self._side.ends, gone):
            self.watch.forget(known[name])
        if new or gone:
            self.ledger.commit(states=new, forgotten=gone)
        self.watch.look(self.source)
        self.judge(*PHASES)
        return None

    def judge(self, *phases: str) -> None:
        """Look at the target's tables: those of these phases that must not be written to as they are have failed."""
        states = {state.source: state for state in self.ledger.tables() if state.source in self.kept}
        judged = [name for name, state in states.items() if state.phase in phases]
        for name, error in self.reacting.refusals({name: self.kept[name] for name in judged}).items():
            self.flusher.fail(states[name], error)

    def _begin_again(self) -> CopyMoment:
        """Every table anew, from a new slot on; what others see of each stays until its copy joins."""
        states = self.ledger.tables()
        copier = self.copier()
        for state in states:
            if state.phase == "copying" and state.source in self.kept:
                copier.discard(self.kept[state.source], state)
        gone = [state.source for state in states if state.source not in self.kept]
        self.ledger.commit(
            dropped_copies(states, self.dialect), states=[fresh_copy(state) for state in states], forgotten=gone
        )
        moment = self._from_here()
        # If we die here, the slot is ahead of the buffer, and no table has rows that the log goes on from: the next
        # start comes here again.
        if self.source.log is None:
            mark(self._side.folder, self._side.replication.name)
            self.buffer.chain.claim(moment.position, onto=moment.position)
        return moment

    def copier(self) -> Copier:
        given = (self._side.project, self._side.replication, self._side.ends, self.ledger.save, self._stage)
        if self.log is not None:
            return LogCopier(*given).into(self.log, self.ledger.tables())
        return Copier(*given)

    def capture_orders(self) -> Orders:
        known = [state.version for state in self.ledger.tables() if state.version is not None]
        return self._side.orders(self.buffer.chain, self.ledger.oldest, known)
