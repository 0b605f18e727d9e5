"""One replication, kept going: capture in its own process, copies in a thread, flushes on time.

What an agent knows it has from the target, the buffer and the source, so that one that was killed is followed by
one that knows the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

from penstock.backends.change_source import CopyMoment, HeldLog
from penstock.backends.change_target import TableState
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Position
from penstock.errors import DataError, Kind, PenstockError, PlanStale, StateError, TargetError
from penstock.observe import logs
from penstock.project.model import Project
from penstock.project.replications import Replication, seconds, size
from penstock.replicate.away import Away, told_last
from penstock.replicate.buffer import is_marked, stop_if_of_another
from penstock.replicate.captured import CapturedSide
from penstock.replicate.capturing import Orders
from penstock.replicate.circuit import Circuits
from penstock.replicate.copies import Copies
from penstock.replicate.copy import Stage, prewarm, stage_with_spark
from penstock.replicate.desk import LOOK_SECONDS, Desk
from penstock.replicate.flushing import fresh_copy
from penstock.replicate.health import Obstructed, examine, recopies
from penstock.replicate.keeping import KeptCopies
from penstock.replicate.opened import Opened, SourceSide
from penstock.replicate.status import Status
from penstock.replicate.tables import Ends, ends_of
from penstock.state.base import Command, Store

log = logs.Log("replicate")

EXAMINE_SECONDS = 60.0  # between two looks at what the source says only when it is asked
RETAINED_SHARE = 0.5  # of `max_bytes`, for what is kept although the target has it
TRIM_SECONDS = 5.0  # between two looks at what the buffer need not keep
HURRY_ROWS = 10_000  # changes that wait for no interval: a flush of them costs little more than one of none


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
        self._waits = True  # for an end that takes nothing; one that is to end by itself does not
        self._ends: Ends = ends_of(project, replication)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._captured = CapturedSide(self._wake.set, self._tell_of_waiting)
        self._telling = threading.Lock()
        self._running = False
        self._error = ""
        self._remedy = ""
        self._held: HeldLog | None = None
        self._copied = False  # all that `what = "copy"` asks for
        self._tries_now = self._tried = False  # tables that have failed, before an end that is not waited for
        self._open: Opened | None = None
        self._copies: Copies | None = None
        self._circuits = Circuits.from_record(self._desk.remembered().get("circuits", {}))

    @property
    def _at(self) -> Opened:
        """Both ends, of an agent that has reached them."""
        assert self._open is not None  # noqa: S101  asked by nobody before
        return self._open

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        if self._replication.what != "changes" and not self._has_begun():
            prewarm(self._project, self._stage)
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
        return bool(self._desk.remembered().get("position")) or (self._open is not None and self._open.ledger.begun)

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
        self._waits = not until_caught_up and self._replication.what != "copy"
        self._open = self._reach(stack, wait=not until_caught_up)
        if self._open is None:
            self._say_waiting(ended=True)
            return
        moment = self._at.resume() if self._at.ledger.begun else self._at.begin()
        self._note_held(self._at.source.held())
        self._beginning.close()  # whoever waits to take it over may do so now
        until = None if self._waits else self._at.source.mark()
        self._start_capture()
        self._copies = self._start_copies(moment)
        stack.callback(self._copies.stop)
        self._start_keeping(stack)
        with self._told_as_running():
            caught_up = self._loop(until, self._copies)
        if caught_up:
            self._raise_failed()
        if caught_up and self._replication.what == "copy":
            self._let_go_of_source()
        self._desk.say(self.status("copied" if self._copied else "stopped"))

    @property
    def _failed(self) -> list[TableState]:
        return [state for state in self._at.ledger.tables() if state.phase == "failed"]

    def _raise_failed(self) -> None:
        """Of an agent that ends by itself: nobody would look after a table that it leaves behind."""
        failed = self._failed
        if not failed:
            return
        copied, come = ("was", "has") if len(failed) == 1 else ("were", "have")
        does = f"{copied} not copied" if self._replication.what == "copy" else f"{come} not caught up"
        remedies = [f"{state.source}: {state.remedy}" for state in failed if state.remedy]
        raise StateError(
            f"{len(failed)} of {len(self._at.ledger.tables())} tables {does}",
            why="; ".join(f"{state.source}: {state.reason}" for state in failed),
            kept="the others have all that was committed when it was started",
            remedy="; ".join([*remedies, "then start it again: it goes on with what is missing"]),
        )

    def _let_go_of_source(self) -> None:
        """A copy is whole: the log is not wanted any more. If we die here, the next start ends it."""
        self._captured.stop()
        self._at.source.remove()
        self._copied = True
        self._tell(self.status("copied"))

    def _end_as(self, state: str, error: PenstockError) -> None:
        """The last word: what it is in, why, and what to do."""
        self._error, self._remedy = str(error), error.remedy
        if self._open is None or not self._open.ledger.begun:
            return
        self._tell(self.status(state))
        self._desk.say(self.status(state))

    # ------------------------------------------------------------ the beginning

    def _reach(self, stack: ExitStack, *, wait: bool) -> Opened | None:
        """Both ends; None if the agent was stopped while it waited for one."""
        side = SourceSide(self._project, self._replication, self._ends, stack)
        if not wait or not self._has_begun():
            return self._opened(side, stack)
        away = Away(self._captured, self._circuits, lambda: self._orders_alone(side), self._say_waiting, self._stopping)
        return away.reach(stack, lambda opened: self._opened(side, opened))

    def _opened(self, side: SourceSide, stack: ExitStack) -> Opened:
        self._beginning = stack.enter_context(ExitStack())
        self._beginning.enter_context(side.source.alone())
        made = Opened(side, self._stage, stack)
        if made.ledger.any_well or not self._waits:
            self._circuits.target.succeeded()
        return made

    def _orders_alone(self, side: SourceSide) -> Orders | None:
        """Of a capture while the target is away: behind what the buffer has, if the log still goes on from there."""
        if side.source.log is not None or not is_marked(side.folder):
            return None  # of a buffer that is away or was emptied, no new one is begun
        stop_if_of_another(side.folder, self._replication.name)
        chain = Chain(side.folder)
        chain.turn = chain.last_turn()
        last, told = chain.end(), self._desk.remembered().get("position")
        # A buffer that has nothing yet begins where the target does.
        start = last[1] if last is not None else Position.from_record(told) if told else None
        if start is None or side.source.obstacle(start) is not None:
            return None  # what that means is decided with the target
        return side.orders(chain, start, told_last(chain))

    # ------------------------------------------------------------ its parts

    def _start_capture(self) -> None:
        if self._at.source.log is not None:
            return  # what a capture would write is there, and somebody else's
        orders = self._at.capture_orders()
        self._captured.start(orders, self._at.buffer.end or orders.start)

    def _start_copies(self, moment: CopyMoment | None) -> Copies:
        copier = self._at.copier()
        copies = Copies(
            self._replication,
            self._at.source,
            self._at.ledger,
            self._at.flusher,
            copier,
            self._at.kept,
            self._at.replan,
            moment,
            self._circuits.copies,
            self._may_pass,
            self._wake.set,
        )
        copies.start()
        return copies

    def _start_keeping(self, stack: ExitStack) -> None:
        """Copies beside the buffer, where they are asked for; a log that is the target has them itself."""
        self._keeping: KeptCopies | None = None
        if self._replication.buffer.keep_copy and self._at.log is None and self._at.source.log is None:
            given = (self._project, self._replication, self._ends, self._at.source, self._at.ledger, self._at.buffer)
            self._keeping = KeptCopies(*given, self._stage, self._circuits.kept_copies)
            stack.callback(self._keeping.stop)
        else:
            self._circuits.kept_copies.succeeded()  # they were asked for once

    @property
    def _trim_every(self) -> float:
        """A capture that waits may wait for room."""
        return LOOK_SECONDS if self._captured.waiting else TRIM_SECONDS

    def _trim(self) -> None:
        oldest = self._at.ledger.oldest
        if self._keeping is not None:
            self._keeping.raise_error()
            oldest = self._keeping.oldest(oldest)
        buffer = self._replication.buffer
        try:
            self._at.buffer.trim(oldest, seconds(buffer.retain), int(size(buffer.max_bytes) * RETAINED_SHARE))
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
            if time.monotonic() - examined > EXAMINE_SECONDS or self._at.watch.due:
                self._examine()
                examined = time.monotonic()
            self._obey()
            moved = self._circuits.target.due and not self._paused and self._step()
            if self._at.source.log is None and time.monotonic() - trimmed > self._trim_every:
                self._trim()
                trimmed = time.monotonic()
            self._tell(self.status(self._state))
            if until is not None and not moved and self._has_passed(until):
                if self._tried or not self._failed:
                    return True
                # What has mended a table may be of now, and its own time far away.
                self._tries_now = self._tried = True
                continue
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
            if left <= 0 or (not self._paused and self._at.buffer.rows_behind(self._at.ledger.position) >= HURRY_ROWS):
                return
            self._wake.wait(min(left, LOOK_SECONDS))
            self._obey()

    def _step(self) -> bool:
        """A flush; after a failure of the link, or of every table, another one later."""
        circuit = self._circuits.target
        try:
            if circuit.attempts:
                self._at.ledger.make_sure()  # a flush that finds nothing to bring would not ask the target
            if self._at.ledger.learnt:  # by this thread, or by that of the copies
                self._at.learn()
            self._at.watch.settle()
            tries = self._is_trial or self._tries_now
            moved = self._at.flusher.try_all() if tries else self._at.flusher.step()
            self._tries_now = False
        except PlanStale as stale:
            # What it has learnt from the target is known now: it goes on from there.
            log.info("a flush is planned anew", replication=self._replication.name, what=stale.what, why=stale.why)
            return True
        except PenstockError as error:
            if not self._may_pass(error):
                raise
            wait = circuit.failed(error)
            log.warning("a flush failed", replication=self._replication.name, what=error.what, again_in=round(wait, 1))
            return False
        if self._at.ledger.all_failed and self._blames_target():
            return False
        if self._at.ledger.any_well:
            circuit.succeeded()
        return moved

    def _may_pass(self, error: PenstockError) -> bool:
        """Of an error that is no table's: a target may take from its user what it had given, and give it back."""
        refused = isinstance(error, TargetError) and self._replication.on_table_error == "isolate"
        return error.passing or (refused and self._waits)

    @property
    def _is_trial(self) -> bool:
        """Whether the target is to be tried with tables that have all failed, and not since this try began."""
        asked = self._circuits.target.attempts > 0 or not self._waits
        return asked and self._at.ledger.all_failed and self._at.flusher.failure is None

    def _blames_target(self) -> bool:
        """When all tables fail, it is the target: it is left alone for a while, and changes are captured."""
        error, self._at.flusher.failure = self._at.flusher.failure, None
        if error is None:
            return False  # they have failed before, and each has its own time
        if not self._waits:
            raise error
        circuit = self._circuits.target
        if circuit.attempts == 0 and not isinstance(error, (TargetError, DataError)):
            return False  # it is the source, or the plan
        wait = circuit.failed(
            TargetError(
                "every table has failed",
                why=str(error),
                kept="what the target has; changes are captured meanwhile",
                remedy="it is tried again by itself; when the target takes rows again, all of them come",
            )
        )
        log.warning("every table has failed", replication=self._replication.name, again_in=round(wait, 1))
        return True

    def _watch_capture(self) -> None:
        if self._at.source.log is not None:
            self._circuits.source.succeeded()  # it has no capture that could say so
        else:
            self._captured.tend(self._circuits.source, self._start_capture, self._examine)

    def _examine(self) -> None:
        """Whether there is a log to go on with; a server that does not answer is asked again later."""
        try:
            ends, at = self._ends, self._at
            self._note_held(examine(self._replication, ends, at.requests, at.buffer, at.ledger, at.watch))
        except Obstructed:
            raise
        except PenstockError as error:
            if error.kind is not Kind.TRANSIENT:
                raise
            self._error = str(error)
        else:
            self._error = ""
        self._judge()

    def _judge(self) -> None:
        """What the target's tables do by themselves; a target that is away is a matter of the flushes."""
        if self._paused or self._circuits.target.attempts:
            return
        try:
            self._at.judge("streaming", "catching up")  # what is copied is judged before it joins
        except PenstockError as error:
            if not self._may_pass(error):
                raise

    def _note_held(self, held: HeldLog | None) -> None:
        """Told once, and again when it is another trouble: what is left of it is in the status."""
        before, self._held = self._held, held
        if held is None or held.warning is None:
            return
        if before is None or before.warning is None or before.state != held.state:
            fields = {"held_bytes": held.bytes, "left_bytes": held.left, "remedy": held.warning.remedy}
            log.warning(held.warning.what, replication=self._replication.name, **fields)

    def _has_passed(self, until: int) -> bool:
        whole = all(state.phase in ("streaming", "failed") for state in self._at.ledger.tables())
        return whole and not self._at.watch.altered and self._at.ledger.position.end >= until

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
        chosen = [state for state in self._at.ledger.tables() if not table or str(state.source) == table]
        if not chosen:
            known = ", ".join(str(state.source) for state in self._at.ledger.tables())
            return f"refused: the replication has no table {table}, but {known}"
        self._at.source.publish()
        self._at.ledger.save(*(fresh_copy(state) for state in chosen))
        self._circuits.try_now()
        return f"{len(chosen)} table{'s' if len(chosen) > 1 else ''} will be copied again"

    def _reloaded(self) -> str:
        replication = self._reload()
        new, gone = self._at.reload(replication)
        self._replication = replication
        return f"{new} table{'s' if new != 1 else ''} added, {gone} removed"

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
        end = self._captured.end if self._at.source.log is None else self._at.buffer.end
        return Status(
            self._replication.name,
            state,
            self._at.ledger.position,
            end,
            max(self._captured.source_end, end.end if end is not None else 0),
            tuple(self._at.ledger.tables()),
            dict(self._copies.progress) if self._copies is not None else {},
            dict(self._copies.rows) if self._copies is not None else {},
            dict(self._at.flusher.applied),
            self._circuits.reason or self._error,
            self._captured.waiting,
            self._remedy,
            self._circuits.to_record(),
            self._lag_seconds(),
            altered=self._at.watch.altered,
            warnings=tuple(one for one in self._at.reacting.warnings if one.table in self._at.kept),
            held=self._held,
        )

    def _lag_seconds(self) -> float:
        """By two clocks, ours and the source's: never less than nothing."""
        since = self._at.buffer.waiting_since(self._at.ledger.position)
        return max(0.0, (datetime.now(UTC) - since).total_seconds()) if since is not None else 0.0
