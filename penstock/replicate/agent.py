"""One replication, kept going: capture in its own process, copies in a thread, flushes on time.

What an agent knows it has from the target, the buffer and the source, so that one that was killed is followed by
one that knows the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from penstock.backends.base import Receipt, RunContext, Target
from penstock.backends.change_source import CopyMoment, ReplicatedTable
from penstock.backends.change_target import TableState
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position, TableVersion
from penstock.errors import Kind, PenstockError, PlanRefused, PlanStale, SourceError, StateError
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.project.model import Project
from penstock.project.replications import Replication, seconds, size
from penstock.replicate.away import Away, told_last
from penstock.replicate.beginning import dropped_at, end_findings, first_state
from penstock.replicate.buffer import Buffer, is_marked, mark, stop_if_of_another
from penstock.replicate.captured import CapturedSide
from penstock.replicate.capturing import Orders
from penstock.replicate.circuit import Circuits
from penstock.replicate.copies import Copies
from penstock.replicate.copy import Copier, Stage, stage_with_spark
from penstock.replicate.desk import LOOK_SECONDS, Desk
from penstock.replicate.evolve import Evolver
from penstock.replicate.flusher import Flusher
from penstock.replicate.flushing import Flushing, fresh_copy
from penstock.replicate.folding import FoldPiece, SparkFolder
from penstock.replicate.health import Obstructed, dropped_copies, examine, lost_buffer, obstacle, recopies
from penstock.replicate.keeping import KeptCopies
from penstock.replicate.ledger import Ledger
from penstock.replicate.logged import LogCopier, LogFlusher, kept_in_log
from penstock.replicate.status import Status
from penstock.replicate.tables import Ends, Kept, buffer_folder, ends_of, log_names, requests
from penstock.replicate.watch import Watch
from penstock.schema import TableName
from penstock.state.base import Command, Store

log = logs.Log("replicate")

EXAMINE_SECONDS = 60.0  # between two looks at what the source says only when it is asked
RETAINED_SHARE = 0.5  # of `max_bytes`, for what is kept although the target has it
TRIM_SECONDS = 5.0  # between two looks at what the buffer need not keep
HURRY_ROWS = 10_000  # changes that wait for no interval: a flush of them costs little more than one of none
TASKS = 4  # ranges that are copied at once, where nobody says


class Agent:
    """Runs one replication until it is told to stop, or has caught up."""

    def __init__(
        self,
        project: Project,
        replication: Replication,
        told: Callable[[Status], None] | None = None,
        *,
        store: Store | None = None,
        reload: Callable[[], Replication] | None = None,
        stage: Stage = stage_with_spark,
    ) -> None:
        """`store` is where it says how it is and finds what is asked of it; `reload` reads its options anew."""
        self._project = project
        self._replication = replication
        self._told = told or (lambda _: None)
        self._stage = stage
        self._desk = Desk(replication.name, store)
        self._reload = reload or (lambda: replication)
        self._paused = False
        self._ends: Ends = ends_of(project, replication)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._captured = CapturedSide(self._wake.set, self._tell_of_waiting)
        self._telling = threading.Lock()
        self._running = False
        self._error = ""
        self._remedy = ""
        self._copied = False  # all that `what = "copy"` asks for
        self._outlines: Mapping[TableName, str] = {}
        self._copies: Copies | None = None
        self._circuits = Circuits.from_record(self._desk.remembered().get("circuits", {}))

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        while self._source_is_due():
            with ExitStack() as stack:
                try:
                    self._run(stack, until_caught_up=until_caught_up)
                    return
                except Obstructed as error:
                    if not recopies(self._replication, error):
                        self._end_as(error.state, error)
                        raise
                    log.warning("every table is copied again", replication=self._replication.name, why=error.why)
                except PenstockError as error:
                    if error.kind is not Kind.TRANSIENT or until_caught_up or not self._has_begun():
                        self._end_as("failed", error)
                        raise
                    self._circuits.source.failed(error)
                    log.warning("it begins again", replication=self._replication.name, what=error.what, why=error.why)
        self._say_waiting(ended=True)

    def _has_begun(self) -> bool:
        """Whether it has run before: what is away then is waited for. At the first start it may be a wrong address."""
        return bool(self._desk.remembered().get("position")) or (hasattr(self, "_ledger") and self._ledger.begun)

    def _source_is_due(self) -> bool:
        """Waits until the source may be tried; False if the agent is stopped."""
        while not self._circuits.source.due and not self._stopping.is_set():
            self._say_waiting()
            self._stopping.wait(LOOK_SECONDS)
        return not self._stopping.is_set()

    def _say_waiting(self, *, ended: bool = False) -> None:
        told = {"error": self._circuits.reason, "circuits": self._circuits.to_record()}
        if ended:
            self._desk.say_only("stopped", told)
        else:
            self._desk.wait(self._circuits.waiting, told, self._while_waiting)

    def _while_waiting(self, command: Command) -> str:
        if command.word == "stop":
            self.stop()
            return "stopping"
        return f"refused: it is {self._circuits.waiting}; ask again when it runs"

    def _run(self, stack: ExitStack, *, until_caught_up: bool) -> None:
        stack.callback(self._captured.stop)
        if not self._reach(stack, wait=not until_caught_up):
            self._say_waiting(ended=True)
            return
        moment = self._resume() if self._ledger.begun else self._begin()
        ends = until_caught_up or self._replication.what == "copy"
        until = self._source.mark() if ends else None
        self._start_capture()
        self._copies = self._start_copies(moment)
        stack.callback(self._copies.stop)
        self._start_keeping(stack)
        with self._told_as_running():
            caught_up = self._loop(until, self._copies)
        if caught_up and self._replication.what == "copy":
            self._let_go_of_source()
        self._desk.say(self.status("copied" if self._copied else "stopped"))

    def _let_go_of_source(self) -> None:
        """A copy is whole: the log is not wanted any more. If we die here, the next start ends it."""
        failed = [state for state in self._ledger.tables() if state.phase == "failed"]
        if failed:
            raise StateError(
                f"{len(failed)} of {len(self._ledger.tables())} tables were not copied",
                why="; ".join(f"{state.source}: {state.reason}" for state in failed),
                kept="the others are whole",
                remedy="start it again: it goes on with what is missing",
            )
        self._captured.stop()
        self._source.remove()
        self._copied = True
        self._tell(self.status("copied"))

    def _end_as(self, state: str, error: PenstockError) -> None:
        """The last word: what it is in, why, and what to do."""
        self._error, self._remedy = str(error), error.remedy
        if not hasattr(self, "_ledger") or not self._ledger.begun:
            return
        self._tell(self.status(state))
        self._desk.say(self.status(state))

    # ------------------------------------------------------------ the beginning

    def _reach(self, stack: ExitStack, *, wait: bool) -> bool:
        """Both ends; False if the agent was stopped while it waited for one."""
        replication = self._replication
        self._requests = requests(self._project, replication, self._ends)
        self._source = self._ends.change_source(replication, self._requests)
        stack.callback(self._source.close)
        tables = {table.name: table for table in self._source.tables()}
        self._log = self._ends.log_of_target(replication)
        if not wait or not self._has_begun():
            self._open_target(stack, tables)
            return True
        away = Away(self._captured, self._circuits, self._orders_alone, self._say_waiting, self._stopping)
        return away.reach(stack, lambda opened: self._open_target(opened, tables))

    def _orders_alone(self) -> Orders | None:
        """Of a capture while the target is away: behind what the buffer has, if the log still goes on from there."""
        if self._source.log is not None or not is_marked(self._folder()):
            return None  # of a buffer that is away or was emptied, no new one is begun
        stop_if_of_another(self._folder(), self._replication.name)
        chain = Chain(self._folder())
        chain.turn = chain.last_turn()
        last, told = chain.end(), self._desk.remembered().get("position")
        # A buffer that has nothing yet begins where the target does.
        start = last[1] if last is not None else Position.from_record(told) if told else None
        if start is None or self._source.obstacle(start) is not None:
            return None  # what that means is decided with the target
        return self._orders(chain, start, told_last(chain))

    def _open_target(self, stack: ExitStack, tables: Mapping[TableName, ReplicatedTable]) -> None:
        replication = self._replication
        self._target: Target | None = None
        if self._log is None:
            staging = self._project.root / ".penstock" / "staging"
            self._target = self._ends.writer(RunContext.new(replication.name, staging))
            stack.callback(self._target.close)
        self._check(tables)
        if self._source.log is None:
            stop_if_of_another(self._folder(), replication.name)  # before the agent that runs there is fenced out
        applier = self._ends.applier(replication)
        stack.callback(applier.close)
        self._lasting = applier.lasting
        self._same_kind = self._source.texts_of == applier.texts_of
        self._ledger = Ledger(applier)
        self._kept = {name: self._planned(table) for name, table in tables.items()}
        self._buffer = self._buffered()
        self._flusher = self._flushes()
        stack.callback(self._flusher.close)
        dialect = self._target.dialect if self._target is not None else None
        self._watch = Watch(replication, self._ledger, self._flusher, self._kept, dialect)
        self._circuits.target.succeeded()

    def _buffered(self) -> Buffer:
        if self._source.log is not None:
            return Buffer(Chain(self._source.log))  # somebody else writes it
        if not self._ledger.begun:
            mark(self._folder(), self._replication.name)
        chain = Chain(self._folder())
        chain.turn = chain.following(self._ledger.epoch)
        return Buffer(chain)

    def _flushes(self) -> Flushing:
        replication, source, ledger, buffer = self._replication, self._source, self._ledger, self._buffer
        if self._target is None:
            return LogFlusher(replication, source, ledger, buffer, self._kept)
        dialect = self._target.dialect
        if dialect is None:
            raise PlanRefused("this target takes no changes", kept="nothing was touched", place=replication.place)
        evolver = Evolver(replication.name, source, self._target, dialect, same_kind=self._same_kind)
        folder = SparkFolder(self._project.root / ".penstock", replication.name, source.texts_of, self._run_pieces)
        return Flusher(replication, source, ledger, buffer, self._kept, dialect, evolver, folder)

    def _run_pieces(self, pieces: Sequence[FoldPiece], run: RunContext) -> list[Receipt]:
        return self._stage(self._project, pieces, run)

    def _check(self, tables: Collection[TableName]) -> None:
        for one in self._source.left_out:
            log.warning(one.what, replication=self._replication.name, remedy=one.remedy)
        found = self._source.findings()
        if self._target is not None:
            found += end_findings(self._replication, self._ends, self._source, tables, self._target)
        if not tables:
            found += self._source.left_out
        if found:
            raise PlanRefused(
                f"replication {self._replication.name} cannot start",
                why="; ".join(one.what for one in found),
                kept="nothing was touched",
                remedy="; ".join(one.remedy for one in found),
                place=self._replication.place,
            )

    def _planned(self, table: ReplicatedTable) -> Kept:
        """How it is held: in the form that the target has it in, which the log goes on from."""
        state = self._ledger.table(table.name)
        known = state.version if state is not None and state.phase not in ("waiting", "copying") else None
        described = table if known is None else self._source.described(known)
        return self._plan(described, state)

    def _plan(self, table: ReplicatedTable, state: TableState | None) -> Kept:
        if self._target is None:
            return kept_in_log(table)
        texts = state.texts if state is not None else ()
        return Kept.plan(self._replication, table, self._target, texts, same_kind=self._same_kind)

    def _replan(self, name: TableName) -> Kept:
        """Of a table whose copy begins: as the source has it now."""
        table = next((table for table in self._source.tables() if table.name == name), None)
        if table is None:
            raise SourceError(
                "the table is gone",
                why="it was dropped, renamed, or lost its key before it was copied",
                kept="what the target has of it",
                remedy=f"`penstock replications reload {self._replication.name}`",
                place=str(name),
            )
        self._kept[name] = self._plan(table, self._ledger.table(name))
        return self._kept[name]

    def _folder(self) -> Path:
        return buffer_folder(self._project, self._replication)

    def _begin(self) -> CopyMoment:
        """The first start: the log is kept from a moment on, and that is where the target begins."""
        if self._buffer.end is not None and self._source.log is None and not self._lasting:
            self._buffer.clear()  # of a target that has ended with its process: all begins anew
        elif self._buffer.end is not None and self._source.log is None:
            raise StateError(
                f"the buffer {self._buffer.chain.folder} is not empty, and the target knows nothing of it",
                why="the target is another one, or was emptied",
                kept="nothing was touched",
                remedy=f"move the folder away, or `penstock replications resync {self._replication.name}`",
            )
        return self._from_here()

    def _from_here(self) -> CopyMoment:
        self._source.publish()
        self._outlines = self._source.outlines()
        moment = self._source.begin()
        # If we die here, the slot is there and the target knows nothing: the next start makes both anew.
        failpoint("replicate.slot")
        self._ledger.commit(after=moment.position, states=[self._fresh(name) for name in self._kept])
        failpoint("replicate.begun")
        return moment

    def _fresh(self, name: TableName) -> TableState:
        return first_state(self._replication, self._kept[name], self._target, self._outlines.get(name, ""))

    def _resume(self) -> CopyMoment | None:
        """A later start: the log must go on where the buffer ends."""
        found = lost_buffer(self._folder()) if self._source.log is None else None
        found = found or obstacle(self._source, self._buffer.chain, self._ledger)
        if found is not None:
            untouched = all(state.phase == "waiting" for state in self._ledger.tables())
            if not recopies(self._replication, found) and not (untouched and found.healed):
                raise Obstructed.by(self._replication, found)
            return self._begin_again()
        known = {state.source: state for state in self._ledger.tables()}
        if any(name not in known for name in self._kept):
            # Before it is known: what is copied and not published would never change again.
            self._source.publish()
        self._outlines = self._source.outlines()
        new = [self._fresh(name) for name in self._kept if name not in known]
        gone = [name for name in known if name not in self._kept]
        for name in dropped_at(self._replication, self._ends, gone):
            self._watch.forget(known[name])
        if new or gone:
            self._ledger.commit(states=new, forgotten=gone)
        self._watch.look(self._source)
        return None

    def _begin_again(self) -> CopyMoment:
        """Every table anew, from a new slot on; what others see of each stays until its copy joins."""
        states = self._ledger.tables()
        copier = self._copier()
        for state in states:
            if state.phase == "copying" and state.source in self._kept:
                copier.discard(self._kept[state.source], state)
        gone = [state.source for state in states if state.source not in self._kept]
        dialect = self._target.dialect if self._target is not None else None
        self._ledger.commit(
            dropped_copies(states, dialect), states=[fresh_copy(state) for state in states], forgotten=gone
        )
        moment = self._from_here()
        # If we die here, the slot is ahead of the buffer, and no table has rows that the log goes on from: the next
        # start comes here again.
        if self._source.log is None:
            mark(self._folder(), self._replication.name)
            self._buffer.chain.claim(moment.position, onto=moment.position)
        return moment

    # ------------------------------------------------------------ its parts

    def _start_capture(self) -> None:
        if self._source.log is not None:
            return  # what a capture would write is there, and somebody else's
        known = [state.version for state in self._ledger.tables() if state.version is not None]
        start = self._ledger.oldest
        self._captured.start(self._orders(self._buffer.chain, start, known), self._buffer.end or start)

    def _orders(self, chain: Chain, start: Position, known: Sequence[TableVersion]) -> Orders:
        replication = self._replication
        pace = min(replication.buffer.segment_ms, max(replication.flush_interval_ms // 4, 1)) / 1000
        limit = size(replication.buffer.max_bytes)
        names, tables = log_names(replication), tuple(self._requests)
        form = self._replication.buffer.format
        given = (names, tables, chain.folder, chain.turn, start, pace, limit, tuple(known), form)
        return Orders(self._ends.source, *given)

    def _copier(self) -> Copier:
        given = (self._project, self._replication, self._ends, self._ledger.save, self._stage)
        if self._log is not None:
            return LogCopier(*given).into(self._log, self._ledger.tables())
        return Copier(*given)

    def _start_copies(self, moment: CopyMoment | None) -> Copies:
        copier = self._copier()
        copies = Copies(
            self._replication,
            self._source,
            self._ledger,
            self._flusher,
            copier,
            self._kept,
            self._replan,
            self._replication.parallel or self._project.spark.parallel or TASKS,
            moment,
            self._wake.set,
        )
        copies.start()
        return copies

    def _start_keeping(self, stack: ExitStack) -> None:
        """Copies beside the buffer, where they are asked for; a log that is the target has them itself."""
        self._keeping: KeptCopies | None = None
        if self._replication.buffer.keep_copy and self._log is None and self._source.log is None:
            tasks = self._replication.parallel or self._project.spark.parallel or TASKS
            given = (self._project, self._replication, self._ends, self._source, self._ledger, self._buffer)
            self._keeping = KeptCopies(*given, self._stage, tasks)
            stack.callback(self._keeping.stop)

    @property
    def _trim_every(self) -> float:
        """A capture that waits may wait for room."""
        return LOOK_SECONDS if self._captured.waiting else TRIM_SECONDS

    def _trim(self) -> None:
        oldest = self._ledger.oldest
        if self._keeping is not None:
            self._keeping.raise_error()
            oldest = self._keeping.oldest(oldest)
        buffer = self._replication.buffer
        try:
            self._buffer.trim(oldest, seconds(buffer.retain), int(size(buffer.max_bytes) * RETAINED_SHARE))
        except OSError as error:
            # A disk that lets nothing be removed keeps what nobody needs: it is tried again.
            log.warning("the buffer cannot be trimmed", replication=self._replication.name, why=error.strerror)

    # ------------------------------------------------------------ the loop

    def _loop(self, until: int | None, copies: Copies) -> bool:
        """Until it is stopped, or, then True, has caught up."""
        interval = self._replication.flush_interval_ms / 1000
        trimmed, examined = 0.0, time.monotonic()
        while not self._stopping.is_set():
            began = time.monotonic()
            self._wake.clear()
            if copies.error is not None:
                raise copies.error
            self._watch_capture()
            if time.monotonic() - examined > EXAMINE_SECONDS or self._watch.due:
                self._examine()
                examined = time.monotonic()
            self._obey()
            moved = self._circuits.target.due and not self._paused and self._step()
            if self._source.log is None and time.monotonic() - trimmed > self._trim_every:
                self._trim()
                trimmed = time.monotonic()
            self._tell(self.status(self._state))
            if until is not None and not moved and self._has_passed(until):
                return True
            if not moved:
                self._await_news(min(interval, 1.0))
            self._rest(began + interval)
        return False

    def _await_news(self, longest: float) -> None:
        """However long it waits, it hears what is asked of it."""
        end = time.monotonic() + longest
        while (left := end - time.monotonic()) > 0 and not self._wake.wait(min(left, LOOK_SECONDS)):
            self._obey()

    def _rest(self, until: float) -> None:
        """Between two flushes, unless so much has come that another one pays at once."""
        while not self._stopping.is_set():
            self._wake.clear()
            left = until - time.monotonic()
            if left <= 0 or (not self._paused and self._buffer.rows_behind(self._ledger.position) >= HURRY_ROWS):
                return
            self._wake.wait(min(left, LOOK_SECONDS))
            self._obey()

    def _step(self) -> bool:
        """A flush; after a failure of the link, another one later."""
        circuit = self._circuits.target
        try:
            if circuit.attempts:
                self._ledger.make_sure()  # a flush that finds nothing to bring would not ask the target
            self._watch.settle()
            moved = self._flusher.step()
        except PlanStale as stale:
            # What it has learnt from the target is known now: it goes on from there.
            log.info("a flush is planned anew", replication=self._replication.name, what=stale.what, why=stale.why)
            return True
        except PenstockError as error:
            if not error.passing:
                raise
            wait = circuit.failed(error)
            log.warning("a flush failed", replication=self._replication.name, what=error.what, again_in=round(wait, 1))
            return False
        circuit.succeeded()
        return moved

    def _watch_capture(self) -> None:
        circuit, ended = self._circuits.source, self._captured.ended
        if self._source.log is not None:
            circuit.succeeded()  # it has no capture that could say so
        elif ended is not None:
            self._captured.stop()
            self._examine()
            if ended.kind is not Kind.TRANSIENT:
                raise ended
            wait = circuit.failed(ended)
            name = self._replication.name
            log.warning("the capture has ended", replication=name, what=ended.what, again_in=round(wait, 1))
        elif self._captured.streams:
            circuit.succeeded()
        elif not self._captured.runs and circuit.due:
            with suppress(PenstockError):
                self._start_capture()

    def _examine(self) -> None:
        """Whether there is a log to go on with; a server that does not answer is asked again later."""
        try:
            examine(self._replication, self._ends, self._requests, self._buffer.chain, self._ledger, self._watch)
        except Obstructed:
            raise
        except PenstockError as error:
            if error.kind is not Kind.TRANSIENT:
                raise
            self._error = str(error)
        else:
            self._error = ""

    def _has_passed(self, until: int) -> bool:
        whole = all(state.phase in ("streaming", "failed") for state in self._ledger.tables())
        return whole and self._ledger.position.end >= until

    # ------------------------------------------------------------ what is asked of it

    def _obey(self) -> None:
        self._desk.look(lambda: self.status(self._state), self._done)

    @property
    def _state(self) -> str:
        return "paused" if self._paused else self._circuits.waiting or "running"

    def _done(self, command: Command) -> str:
        if command.word in ("pause", "resume"):
            self._paused = command.word == "pause"
            assert self._copies is not None  # noqa: S101  it runs
            self._copies.pause(paused=self._paused)
            return f"{command.word}d"
        if command.word == "resync":
            return self._resync(command.table)
        if command.word == "reload":
            return self._reloaded()
        if command.word == "stop":
            self.stop()
            return "stopping"
        return f"refused: {command.word} is nothing that an agent does"

    def _resync(self, table: str) -> str:
        chosen = [state for state in self._ledger.tables() if not table or str(state.source) == table]
        if not chosen:
            known = ", ".join(str(state.source) for state in self._ledger.tables())
            return f"refused: the replication has no table {table}, but {known}"
        self._source.publish()
        self._ledger.save(*(fresh_copy(state) for state in chosen))
        return f"{len(chosen)} table{'s' if len(chosen) > 1 else ''} will be copied again"

    def _reloaded(self) -> str:
        """Tables that the options name now, and no others; those that stay go on undisturbed."""
        replication = self._reload()
        wanted = requests(self._project, replication, self._ends)
        self._source.change(wanted)
        self._requests, self._replication = wanted, replication
        self._outlines = self._source.outlines()
        tables = {table.name: table for table in self._source.tables()}
        new = [name for name in tables if name not in self._kept]
        gone = [name for name in self._kept if name not in tables]
        for name in new:
            self._kept[name] = self._planned(tables[name])
        self._ledger.commit(states=[self._fresh(name) for name in new], forgotten=gone)
        for name in gone:
            del self._kept[name]
        return f"{len(new)} table{'s' if len(new) != 1 else ''} added, {len(gone)} removed"

    # ------------------------------------------------------------ for people

    def _tell(self, status: Status) -> None:
        with self._telling:
            self._told(status)

    def _tell_of_waiting(self) -> None:
        """In the thread that hears the capture: ours may be in a flush, for as long as the target keeps it there."""
        # What is wrong with the buffer, our own thread finds as well, and ends with it.
        with suppress(PenstockError), self._telling:
            if self._running:
                status = self.status(self._state)
                self._told(status)
                self._desk.say(status)

    @contextmanager
    def _told_as_running(self) -> Iterator[None]:
        """Behind it comes the last word, which no other may follow."""
        self._running = True
        try:
            yield
        finally:
            with self._telling:
                self._running = False

    def status(self, state: str = "running") -> Status:
        end = self._captured.end if self._source.log is None else self._buffer.end
        return Status(
            self._replication.name,
            state,
            self._ledger.position,
            end,
            max(self._captured.source_end, end.end if end is not None else 0),
            tuple(self._ledger.tables()),
            dict(self._copies.progress) if self._copies is not None else {},
            dict(self._copies.rows) if self._copies is not None else {},
            dict(self._flusher.applied),
            self._circuits.reason or self._error,
            self._captured.waiting,
            self._remedy,
            self._circuits.to_record(),
            self._lag_seconds(),
        )

    def _lag_seconds(self) -> float:
        """By two clocks, ours and the source's: never less than nothing."""
        since = self._buffer.waiting_since(self._ledger.position)
        return max(0.0, (datetime.now(UTC) - since).total_seconds()) if since is not None else 0.0
