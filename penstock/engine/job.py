"""The driver's side of Spark work that ends in receipts: progress, first error, cancel.

The job runs in a thread of its own so that Ctrl-C reaches the driver at once. Whatever ends the
wait early, the run's jobs are cancelled and its workers are free or gone before it returns:
whoever sweeps the staging afterwards must not race with a writer. The counters are gone then too;
those of a driver that was killed are swept by the next session.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from penstock.backends.base import Progress, Receipt, RunContext
from penstock.engine import status
from penstock.engine.task import folder_of, record_in, replace_text
from penstock.errors import Cancelled, LinkLost, PenstockError, SourceError, SparkError, from_record
from penstock.observe.process import start_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.1
DRIVER = "driver.json"  # whose run the counters are
REMOTE_SECONDS = 3.0  # executors kill the workers of a cancelled task after half a second
JVM_SECONDS = 30.0  # a task in the JVM cannot be killed: it ends when it next looks at its interrupt
CANCEL_SECONDS = 4.0  # then workers that are still busy are killed; five seconds is the promise

# What Spark says when a stage or a task is given up because of an executor that is gone: the run as a whole may
# be tried again, for nothing of it is in the target.
EXECUTOR_LOST = (
    "has failed the maximum allowable number of times",
    "FetchFailed",
    "ExecutorLostFailure",
    "Could not find executor",
)

# A file that Spark's own reader has given up: its condition, and the file's URI.
UNREADABLE = re.compile(
    r"\[FAILED_READ_FILE(?:\.(\w+))?\] Encountered error while reading file (?:file:(?://)?)?(.+?)\.\s+(?:SQLSTATE|\n)"
)

Work = Callable[[], list[Receipt]]  # starts Spark jobs in the thread that calls it
Explain = Callable[[BaseException], PenstockError | None]  # an error of the user's own transform, if it is one


def collected(frame: DataFrame) -> Work:
    """The work of a frame whose tasks give their receipts: the only rows that ever come to the driver."""

    def work() -> list[Receipt]:
        return [_receipt(json.loads(row[0])) for row in frame.collect()]

    return work


def _receipt(record: dict[str, Any]) -> Receipt:
    if "error" in record:
        raise from_record(record["error"])
    return Receipt(**record["receipt"])


@dataclass
class Job:
    """The Spark work of one run, from start to its receipts."""

    spark: SparkSession
    work: Work
    run: RunContext
    on_progress: Progress | None = None
    explain: Explain | None = None
    in_jvm: bool = False  # its tasks write in the JVM, where Spark itself knows who is busy and how far
    _done: list[Receipt] = field(default_factory=list)
    _error: BaseException | None = None
    _told: tuple[int, int] = (0, 0)
    # Waited for instead of the thread: an interrupted `join` leaves Python believing that it has ended.
    _ended: threading.Event = field(default_factory=threading.Event)

    def receipts(self) -> list[Receipt]:
        """Run it. Raises the first error record of any task, or what Spark says in one line."""
        folder = folder_of(self.run)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            pid = os.getpid()
            replace_text(
                folder / DRIVER, json.dumps({"pid": pid, "started": start_of(pid), "host": socket.gethostname()})
            )
            return self._receipts(folder)
        finally:
            remove(folder)

    def _receipts(self, folder: Path) -> list[Receipt]:
        worker = threading.Thread(target=self._carry_out, name=f"penstock-{self.run.run_id}", daemon=True)
        try:
            with _terminate_as_interrupt():
                worker.start()
                while not self._ended.wait(POLL_SECONDS):
                    self._watch(folder)
        except BaseException as error:  # Ctrl-C too: no task outlives the wait
            self._cancel()
            if isinstance(error, KeyboardInterrupt):
                raise Cancelled("the run was cancelled", kept="nothing was committed") from None
            raise
        if self._error is not None:
            self._cancel()  # one task has failed for good; Spark may not have ended the others yet
            self._watch(folder)  # a task may have told why just before Spark gave up
            self._fail(self._error)
        receipts = self._done
        self._tell(sum(r.rows for r in receipts), sum(r.bytes for r in receipts))
        return sorted(receipts, key=lambda receipt: receipt.part)

    def _carry_out(self) -> None:
        try:
            with status.tagged(self.spark, status.tag_of(self.run.run_id)):
                self._done = self.work()
        except BaseException as error:  # noqa: BLE001  raised again by the waiting thread
            self._error = error
        finally:
            self._ended.set()

    def _watch(self, folder: Path) -> None:
        """Tell the progress; raise as soon as one task has left an error."""
        for path in sorted(folder.glob("*.error")):
            # A worker of another user leaves what only that one may read: it comes with the task's own end too.
            with suppress(PermissionError):
                raise from_record(json.loads(path.read_text())["error"])
        best: dict[str, tuple[int, int]] = {}
        for counter in counters(folder):
            now = (counter["rows"], counter["bytes"])
            best[counter["part"]] = max(best.get(counter["part"], (0, 0)), now)
        if self.in_jvm:
            best["jvm"] = status.written(self.spark, status.tag_of(self.run.run_id))
        self._tell(sum(rows for rows, _ in best.values()), sum(size for _, size in best.values()))

    def _tell(self, rows: int, size: int) -> None:
        # A retried task starts again from zero; what was told never shrinks.
        told = (max(rows, self._told[0]), max(size, self._told[1]))
        if told != self._told and self.on_progress is not None:
            self.on_progress(*told)
        self._told = told

    def _fail(self, error: BaseException) -> NoReturn:
        if isinstance(error, PenstockError):
            raise error
        record = record_in(str(error))
        if record is not None:
            # Spark has tried the task as often as it may.
            raise from_record(record) from None
        explained = self.explain(error) if self.explain is not None else None
        if explained is not None:
            raise explained from None
        raise lost(error) from None

    def _cancel(self) -> None:
        """End this run's jobs and wait until none of its workers writes any more."""
        deadline = time.monotonic() + CANCEL_SECONDS
        while not self._ended.is_set() and time.monotonic() < deadline:
            # Again and again: a tag cancels the jobs that exist, and one may be just about to start.
            status.cancel(self.spark, status.tag_of(self.run.run_id))
            self._ended.wait(POLL_SECONDS)
        folder = folder_of(self.run)
        while busy(folder) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 2)
        known = status.knows_tasks(self.spark)
        # After that: what somebody still writes is no part of the load, for it has no receipt.
        deadline = time.monotonic() + (JVM_SECONDS if self.in_jvm and known else REMOTE_SECONDS)
        while (busy(folder) or self._busy_elsewhere(folder)) and time.monotonic() < deadline:
            for pid in busy(folder):
                with suppress(ProcessLookupError, PermissionError):  # another user's: its executor ends it
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS / 2)

    def _busy_elsewhere(self, folder: Path) -> bool:
        """Whether executors on other hosts still end their workers.

        On Connect only the counters tell, which a killed worker leaves as they were; of writers in the
        JVM nobody does. They are given their time.
        """
        if status.knows_tasks(self.spark):
            elsewhere = self.in_jvm or status.on_cluster(self.spark)
            return elsewhere and status.is_busy(self.spark, status.tag_of(self.run.run_id))
        here = socket.gethostname()
        return self.in_jvm or any(not state["done"] and state["host"] != here for state in counters(folder))


def lost(error: BaseException) -> PenstockError:
    """Spark's own failure in one line; its stack trace stays in its log."""
    text = str(error)
    if found := UNREADABLE.search(text):
        return SourceError(
            f"Spark could not read {unquote(found[2])}",
            why="it was removed" if found[1] == "FILE_NOT_EXIST" else "it is damaged, or was written to meanwhile",
            kept="nothing was committed",
            remedy="run again if it was replaced; else write it again",
        )
    if "Python worker exited unexpectedly" in text:
        return LinkLost(
            "a Spark worker was lost again and again",
            why="its process ended; the kernel may have killed it for want of memory",
            kept="nothing was committed",
            remedy="run again with a lower `parallel` in [spark]",
        )
    if any(words in text for words in EXECUTOR_LOST):
        return LinkLost(
            "an executor of Spark was lost",
            why="its process or machine ended, and with it what it had shuffled; half a stage is never run again",
            kept="nothing was committed",
            remedy="run again; raise executor_memory in [spark] if it happens again",
        )
    if type(error).__name__.startswith("Py4J") or isinstance(error, ConnectionError):
        return LinkLost(
            "Spark's JVM is gone",
            why=type(error).__name__,
            kept="nothing was committed",
            remedy="run again; raise driver_memory in [spark] if it happens again",
        )
    if type(error).__name__ in ("RetriesExceeded", "SparkConnectGrpcException") and "UNAVAILABLE" in text + repr(error):
        return LinkLost(
            "the Spark Connect server is gone",
            why=type(error).__name__,
            kept="nothing was committed",
            remedy="run again when it is back",
        )
    condition = getattr(error, "getCondition", lambda: None)()
    return SparkError(
        "the Spark job failed",
        why=condition or type(error).__name__,
        kept="nothing was committed",
        remedy="run again; `penstock doctor` checks Java and Spark",
    )


def counters(folder: Path) -> list[dict[str, Any]]:
    """The counter of every attempt, with the part it is of."""
    found = []
    for path in folder.glob("[0-9]*.json"):
        with suppress(FileNotFoundError, PermissionError):  # its task has just ended on a full disk; as above
            state = json.loads(path.read_text())
            found.append(state | {"part": path.name.partition(".")[0]})
    return found


def busy(folder: Path) -> list[int]:
    """Workers on this host that still carry out a task of the run."""
    here = socket.gethostname()
    return [
        state["pid"]
        for state in counters(folder)
        if not state["done"] and state["host"] == here and start_of(state["pid"]) == state["started"]
    ]


def remove(folder: Path) -> None:
    """Remove a run's counters, and its folder around them unless something else is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def sweep(parent: Path) -> None:
    """Remove the counters of runs of this host whose driver is gone, and their workers with it."""
    here = socket.gethostname()
    for told in parent.glob(f"*/tasks/{DRIVER}"):
        with suppress(FileNotFoundError):  # its run may end at this moment
            driver = json.loads(told.read_text())
            gone = driver["host"] == here and start_of(driver["pid"]) != driver["started"]
            if gone and not busy(told.parent):
                remove(told.parent)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM cancels like Ctrl-C, unless the program has a way of its own."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
