"""Flushes: what lies in the buffer behind the watermark, into every table that streams, all of it or nothing.

A table that was copied, or has failed, is brought up by itself, behind the others: where it meets the watermark it
joins them, in a transaction of its own that also makes it visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from penstock.backends.base import Dialect, TableLoad
from penstock.backends.change_source import ChangeSource, CopyMoment
from penstock.backends.change_target import TableFailed, TableFlush, TableState
from penstock.backends.changes import Position, TableVersion
from penstock.errors import BeyondArrow, PenstockError, RowsLacking
from penstock.load.flush import join_steps
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.project.replications import Replication
from penstock.replicate.ahead import Ahead, Made, one_ahead
from penstock.replicate.apply import Changes, TablePlan, form_flush, plan_tables, table_flushes
from penstock.replicate.buffer import Buffer
from penstock.replicate.evolve import Evolver, TableRewritten
from penstock.replicate.flushing import Flushing, due, fresh_copy
from penstock.replicate.folding import Prepare, SparkFolder, prepare_here
from penstock.replicate.ledger import Ledger
from penstock.replicate.reacting import Reacting
from penstock.replicate.reread import Moments
from penstock.replicate.tables import Kept
from penstock.schema import TableName

log = logs.Log("replicate")

AHEAD_ROWS = 50_000  # changes that are worth to be folded ahead
AHEAD_SECONDS = 0.02  # between two looks for them


class Flusher(Flushing):
    """Brings the buffer into a target that runs statements."""

    def __init__(
        self,
        replication: Replication,
        source: ChangeSource,
        ledger: Ledger,
        buffer: Buffer,
        kept: dict[TableName, Kept],
        dialect: Dialect,
        evolver: Evolver,
        folder: SparkFolder,
        reacting: Reacting,
    ) -> None:
        super().__init__(replication, source, ledger, buffer, kept)
        self._dialect = dialect
        self._evolver = evolver
        self._folder = folder
        self._reacting = reacting
        self._moments = Moments(source)
        self._ahead = Ahead()

    def close(self) -> None:
        self._ahead.close()
        self._moments.close()

    def step(self) -> bool:
        self._renew()
        moved = self._stream()
        for state in self._ledger.tables():
            if state.phase == "catching up":
                moved |= self._guarded(state)
            elif state.phase == "failed" and due(state):
                moved |= self._try_again(state)
        return moved

    def _renew(self) -> None:
        """Of a log: who writes it has copied a table again, because changes alone did not do. So must we."""
        copies = self._source.copies()
        if not copies:
            return
        settled = [state for state in self._ledger.tables() if state.phase in ("streaming", "failed") and state.exact]
        renewed = [state for state in settled if copies.get(state.source, 0) > state.exact]
        if renewed:
            self._ledger.save(*map(fresh_copy, renewed))

    # ------------------------------------------------------------ the tables that stream

    def _stream(self) -> bool:
        streaming = {state.source: self._kept[state.source] for state in self._tables("streaming")}
        if not streaming and not self._awaited():
            return False
        position = self._ledger.position
        try:
            made = self._ahead.taken(position, streaming) or self._made(position, streaming)
            if made is None:
                return False
            until, states = made.changes.until, self._well(self._evolved(made.plans, streaming))
            with self._ahead.making(lambda over: self._folded(until, streaming, over)), self._flushes(made) as flushes:
                self._ledger.commit(flushes, after=until, states=states)
        except TableFailed as failed:
            # The others go on without it, from the same position: nothing of this flush was committed.
            self._isolate(failed)
            return True
        except TableRewritten as rewritten:
            self._copy_again(rewritten)
            return True
        self._note(made.plans)
        return True

    def _made(self, after: Position, kept: Mapping[TableName, Kept]) -> Made | None:
        """What the buffer has behind a position; None if it has nothing."""
        segments = self._segments(after)
        if not segments:
            return None
        changes = Changes.of(segments, after)
        return Made(after, kept, segments, changes, plan_tables(changes, kept, self._evolver))

    def _folded(self, after: Position, kept: Mapping[TableName, Kept], over: Event) -> Made | None:
        """As `_made`, and folded; None of a flush that Spark folds, or whose forms or keys a server is asked about.

        In a thread of its own: the sessions are the others'. And None if not much comes until the flush before is
        over: few rows are better folded when their turn comes, with what has come by then.
        """
        while self._buffer.rows_behind(after) < AHEAD_ROWS:
            if over.wait(AHEAD_SECONDS):
                return None
        segments = self._segments(after)
        changes = Changes.of(segments, after)
        if any(one.version != kept[one.version.table].source.version for one in changes.of_tables(kept)):
            return None
        plans = plan_tables(changes, kept, self._evolver)
        if changes.batch.stored or self._is_large(plans) or not all(self._folder.can(plan) for plan in plans):
            return None
        here = self._here(changes)
        rounds = [(plan, number) for plan in plans for number in range(len(plan.rounds))]
        prepared = {(plan.source, number): here(plan, number) for plan, number in rounds}
        return Made(after, kept, segments, changes, plans, prepared)

    def _here(self, changes: Changes) -> Prepare:
        return prepare_here(changes.batch.transactions, self._buffer.chain.piece, self._source)

    def _is_large(self, plans: Sequence[TablePlan]) -> bool:
        return sum(plan.rows for plan in plans) > self._replication.apply_in_driver_rows

    @contextmanager
    def _flushes(self, made: Made) -> Iterator[Iterator[TableFlush]]:
        """Folded here, where they are few; else by a Spark job, before the target's transaction begins.

        Here: each when the target is about to ask for it. One flush of a transaction that is larger than memory, too.
        """
        plans, folded = made.plans, made.prepared
        if folded is not None:
            yield table_flushes(plans, lambda plan, number: folded[plan.source, number], self._dialect)
            return
        here = self._here(made.changes)
        large = [plan for plan in plans if self._folder.can(plan)]
        if not self._is_large(large):
            with one_ahead(plans, here) as prepare:
                yield table_flushes(plans, prepare, self._dialect)
            return
        numbers = [segment.number for segment in made.segments]
        folder, until = self._buffer.chain.folder, made.changes.until
        by_tasks, remove = self._folder.prepare(large, folder, numbers, made.after, until)
        names = {plan.source for plan in large}
        try:
            yield table_flushes(
                plans,
                lambda plan, number: (by_tasks if plan.source in names else here)(plan, number),
                self._dialect,
            )
        finally:
            remove()

    def _evolved(self, plans: Sequence[TablePlan], before: Mapping[TableName, Kept]) -> list[TableState]:
        """The states of the tables that have another form after the flush."""
        states = []
        for one in plans:
            name, version = one.source, one.evolved.kept.source.version
            state = self._ledger.table(name)
            if state is not None and version != before[name].source.version:
                states.append(replace(state, version=version))
        return states

    def _well(self, evolved: Sequence[TableState]) -> list[TableState]:
        """With those of tables that had failed: what they have failed at lies before the end of this flush."""
        known = {state.source: state for state in evolved}
        again = [state for state in self._tables("streaming") if state.attempts]
        well = [replace(known.pop(state.source, state), attempts=0) for state in again]
        return [*known.values(), *well]

    def _note(self, plans: Sequence[TablePlan]) -> None:
        for one in plans:
            kept = one.evolved.kept
            table = self._kept[one.source].replica.table
            self._kept[one.source] = replace(kept, replica=replace(kept.replica, table=table))
            self.applied[one.source] = self.applied.get(one.source, 0) + one.rows

    def _awaited(self) -> bool:
        """Whether a copied table waits for the watermark to come to the moment that its rows are of."""
        return any(state.exact > self._ledger.position.end for state in self._tables("catching up"))

    def _tables(self, phase: str) -> list[TableState]:
        return [state for state in self._ledger.tables() if state.phase == phase and state.source in self._kept]

    def follow(self, state: TableState, version: TableVersion) -> None:
        try:
            evolved = self._evolver.evolve(self._kept[state.source], version)
        except TableRewritten as rewritten:
            self._copy_again(rewritten)
            return
        except PenstockError as error:
            if error.passing:
                raise  # of a link, not of the table
            self._isolate(TableFailed(state.source, error))
            return
        flushes = [form_flush(evolved, self._dialect)] if evolved.changed else []
        try:
            self._ledger.commit(flushes, states=[replace(state, version=version)])
        except TableFailed as failed:
            self._isolate(failed)
            return
        self._kept[state.source] = evolved.kept

    # ------------------------------------------------------------ a table behind them

    def _guarded(self, state: TableState) -> bool:
        try:
            return self._catch_up(state)
        except TableFailed as failed:
            self._isolate(failed)
            return True
        except TableRewritten as rewritten:
            self._copy_again(rewritten)
            return True

    def _catch_up(self, state: TableState) -> bool:
        assert state.position is not None  # noqa: S101  of a table that was copied
        position = self._ledger.position
        if position.end < state.exact:
            return False  # its rows are of a later moment than the others': they come first
        kept = self._kept[state.source]
        if state.position.commit >= position.commit:
            self._join(state, kept)
            return True
        segments = self._segments(state.position)
        if not segments:
            return False
        moment = None
        if self._moments.asked(state.source):
            moment = self._moments.taken(state.source, state.position)
            if moment is None:
                return False
            # What the moment has in its rows, and no more.
            position = min(position, moment.position, key=lambda one: one.commit)
        changes = Changes.of(segments, state.position).until_commit(position)
        into = {state.source: kept.into(state.hidden) if state.hidden else kept}
        # A copy of no one moment has rows that are later than its changes: see `Shape.seen`. One that was read at a
        # moment has what committed before it.
        behind = state.position.commit + 1
        plans = plan_tables(changes, into, self._evolver, behind if state.exact > behind else None)
        made = Made(state.position, into, segments, changes, plans)
        [following] = self._evolved(plans, into) or [state]
        following = replace(following, position=changes.until, attempts=0 if plans else state.attempts)
        if moment is not None:
            self._commit_whole(following, changes, plans, moment)
            return True
        try:
            with self._flushes(made) as flushes:
                self._ledger.commit(flushes, states=(following,))
        except TableFailed as failed:
            if not isinstance(failed.error, RowsLacking) or not state.hidden or self._source.log is not None:
                raise
            self._moments.ask(state.source)
            return False
        self._note(plans)
        if changes.until.commit >= position.commit:
            # Now, not in the next step: by then the others have gone on, and under load it would never meet them.
            self._join(following, self._kept[state.source])
        return True

    def _commit_whole(
        self, following: TableState, changes: Changes, plans: Sequence[TablePlan], moment: CopyMoment
    ) -> None:
        """A flush into a table that nobody sees, with rows of a later moment: see `reread`."""
        log.info("rows are read again", table=str(following.source))
        here = prepare_here(changes.batch.transactions, self._buffer.chain.piece, self._source, moment)
        exact = replace(following, exact=max(following.exact, moment.exact))
        try:
            self._ledger.commit(table_flushes(plans, here, self._dialect), states=(exact,))
        except TableFailed as failed:
            # It has another form by now, perhaps: then nothing of it can be told by its keys.
            raise TableRewritten(failed.table, failed.error.what) from failed
        finally:
            moment.close()
        self._note(plans)
        self._source.mark()  # or nothing lies behind the moment, at an idle source

    def _join(self, state: TableState, kept: Kept) -> None:
        """It is as far as the others: visible from here on, by the transaction that says so."""
        # What it has failed at may lie right behind the others' position: until it has taken that, it is not well.
        untried = not state.hidden and self._buffer.rows_behind(self._ledger.position) > 0
        attempts = state.attempts if untried else 0
        joined = replace(
            state, phase="streaming", position=None, hidden="", copy="", reason="", remedy="", attempts=attempts
        )
        flushes: list[TableFlush] = []
        refused = self._refusal(state) if state.hidden else None
        if refused is not None:
            raise TableFailed(state.source, refused)  # it has come to be so during the copy
        if state.hidden:
            hidden = TableName(kept.replica.table.schema, state.hidden)
            conformed = self._evolver.conform(kept)
            steps = join_steps(kept.replica, self._dialect, hidden, conformed)
            load = TableLoad(kept.replica.table, kept.replica.columns, tuple(steps))
            flushes = [TableFlush(state.source, load, hidden=hidden)]
        self._ledger.commit(flushes, states=(joined,))
        failpoint("replicate.joined")

    # ------------------------------------------------------------ trouble

    def _refusal(self, state: TableState) -> PenstockError | None:
        kept = self._kept.get(state.source)
        return self._reacting.refusal(kept) if kept is not None else None

    def _isolate(self, failed: TableFailed) -> None:
        """One table's trouble is its own."""
        error = failed.error
        state = self._ledger.table(failed.table)
        assert state is not None  # noqa: S101  it was in the flush
        if isinstance(error, BeyondArrow) and not set(error.columns) <= set(state.texts):
            # The values are legal, only their Arrow form cannot carry them: from now on they travel as text.
            self._as_texts(replace(state, texts=tuple(sorted({*state.texts, *error.columns}))))
            return
        self.fail(state, error)

    def _as_texts(self, state: TableState) -> None:
        before = self._kept[state.source]
        kept = self._evolver.with_texts(before, frozenset(state.texts))
        held = [staged.native.sql for staged in kept.replica.columns]
        if held == [staged.native.sql for staged in before.replica.columns]:
            self._kept[state.source] = kept
            self._ledger.save(state)
            return
        # The target's own type holds no such value: the column becomes text, and every row comes anew.
        log.warning("a table is copied again", table=str(state.source), why="a column becomes text")
        self._ledger.save(fresh_copy(state))

    def _copy_again(self, rewritten: TableRewritten) -> None:
        """From the beginning, while the others go on."""
        state = self._ledger.table(rewritten.table)
        assert state is not None  # noqa: S101  it was in the flush
        log.warning("a table is copied again", table=str(rewritten.table), why=rewritten.why)
        self._ledger.save(fresh_copy(state))
