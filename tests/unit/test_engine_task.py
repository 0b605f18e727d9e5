"""What a task does with batches and errors, without Spark."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.backends.base import Receipt, RunContext, Sink
from penstock.backends.locks import cannot_write
from penstock.engine import job, status, task
from penstock.errors import Cancelled, DataError, LinkLost, PenstockError, from_record
from penstock.observe.process import start_of
from penstock.schema import Column

WIRE = [("b", Column("beta", pa.string())), ("a", Column("alpha", pa.int64()))]


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    run = RunContext("0" * 32, "p", tmp_path / "staging")
    task.folder_of(run).mkdir(parents=True)  # as the driver does before it starts a job
    return run


class Counting(Sink):
    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(0, part, sum(batch.num_rows for batch in batches))


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def failing(error: Exception) -> Iterator[pa.RecordBatch]:
    yield batch(a=pa.array([1]))
    raise error


def test_columns_are_matched_by_name_never_by_position() -> None:
    swapped = [
        batch(a=pa.array([1]), b=pa.array(["x"])),
        batch(b=pa.array(["y"]), extra=pa.array([0]), a=pa.array([2])),
    ]
    made = list(task.conform(iter(swapped), WIRE))
    assert [m.to_pydict() for m in made] == [{"beta": ["x"], "alpha": [1]}, {"beta": ["y"], "alpha": [2]}]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(PenstockError, match="column b is missing"):
        list(task.conform(iter([batch(a=pa.array([1]))]), WIRE))


def test_a_column_that_came_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array(["x"])], names=["a", "a", "b"])
    with pytest.raises(PenstockError, match="column a came more than once"):
        list(task.conform(iter([twice]), WIRE))


def test_a_neighbouring_type_is_refused() -> None:
    with pytest.raises(PenstockError, match="column a came as int32: the plan says int64"):
        list(task.conform(iter([batch(a=pa.array([1], pa.int32()), b=pa.array(["x"]))]), WIRE))


def test_null_in_a_column_that_has_none_is_a_data_error() -> None:
    wire = [("a", Column("a", pa.int64(), nullable=False))]
    with pytest.raises(DataError, match="column a holds NULL"):
        list(task.conform(iter([batch(a=pa.array([1, None]))]), wire))


def test_a_receipt_comes_back_as_json(run: RunContext) -> None:
    line = task.carry_out(run, 3, lambda: iter([batch(a=pa.array([1, 2]))]), Counting())
    assert json.loads(line)["receipt"] | {"pid": 0} == {
        "table": 0,
        "part": 3,
        "rows": 2,
        "bytes": 0,
        "ref": "",
        "pid": 0,
    }
    (counter,) = job.counters(task.folder_of(run))
    assert (counter["rows"], counter["bytes"], counter["done"]) == (2, 16, True)
    assert job.busy(task.folder_of(run)) == []


def test_a_worker_that_waits_keeps_no_memory_of_its_last_task(run: RunContext) -> None:
    numbers = pa.array(range(1_000_000))

    def wide() -> Iterator[pa.RecordBatch]:
        for turn in range(30):
            yield batch(**{f"c{n}": pc.add(numbers, turn + n) for n in range(8)})  # 64 MB

    task.carry_out(run, 0, lambda: iter([batch(c0=numbers)]), Counting())
    before = psutil.Process().memory_info().rss
    task.carry_out(run, 0, wide, Counting())
    assert psutil.Process().memory_info().rss - before < 32 * 2**20


def test_data_errors_come_back_with_class_keys_and_remedy(run: RunContext) -> None:
    error = DataError("price does not fit", why="numeric", remedy="widen it", keys=("id=7",))
    line = task.carry_out(run, 0, lambda: failing(error), Counting())
    back = from_record(json.loads(line)["error"])
    assert isinstance(back, DataError)
    assert (back.what, back.why, back.remedy, back.keys) == ("price does not fit", "numeric", "widen it", ("id=7",))
    (told,) = task.folder_of(run).glob("*.error")
    assert json.loads(told.read_text()) == json.loads(line)
    assert told.stat().st_mode & 0o077 == 0


def test_transient_errors_are_raised_in_one_line_without_keys(run: RunContext) -> None:
    error = LinkLost("the server went away", why="reset", keys=("id=7",))
    error.__cause__ = RuntimeError("password=hunter2")
    with pytest.raises(task.TransientFailure) as raised:
        task.carry_out(run, 0, lambda: failing(error), Counting())
    text = str(raised.value)
    assert "\n" not in text
    assert "id=7" not in text
    assert raised.value.__context__ is None
    record = task.record_in(f"org.apache.spark.SparkException: {text}\n\tat x.y(Z.scala)")
    assert record is not None
    back = from_record(record)
    assert (type(back), back.what, back.why) == (LinkLost, "the server went away", "reset")


def test_an_unexpected_exception_shows_its_class_and_place_never_its_text(run: RunContext) -> None:
    line = task.carry_out(run, 0, lambda: failing(ValueError("cell value 4711")), Counting())
    assert "4711" not in line
    back = from_record(json.loads(line)["error"])
    assert back.why.startswith("ValueError in test_engine_task.py:")


def test_a_full_disk_is_told_by_name(run: RunContext) -> None:
    line = task.carry_out(run, 0, lambda: failing(OSError(28, "No space left", "/secret/place")), Counting())
    back = from_record(json.loads(line)["error"])
    assert back.what == "a task failed: No space left on device"
    assert "/secret/place" not in line


class Filling(Sink):
    """Fills the disk that the counters are on, and says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def refuse(*_: object, **__: object) -> int:
            raise full

        self.monkeypatch.setattr(task, "COUNTER_SECONDS", 0)
        self.monkeypatch.setattr(Path, "write_text", refuse)
        self.monkeypatch.setattr(os, "open", refuse)
        list(batches)
        raise cannot_write(full, Path("staging"))


def test_a_full_disk_is_told_although_the_counters_are_on_it_too(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        line = task.carry_out(run, 0, lambda: iter([batch(a=pa.array([1]))]), Filling(patched))
    assert from_record(json.loads(line)["error"]).what == "the disk is full"
    assert job.busy(task.folder_of(run)) == []


class Looking(Sink):
    """Sees how far its task says that it is, as the driver does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[int] = []

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        for _ in batches:
            [counter] = self.folder.glob("*.json")
            self.seen.append(json.loads(counter.read_text())["rows"])
        return Receipt(0, part, 6)


def test_a_task_tells_how_far_it_is_while_it_works(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "COUNTER_SECONDS", 0)
    looking = Looking(task.folder_of(run))
    task.carry_out(run, 0, lambda: iter([batch(a=pa.array([1, 2]))] * 3), looking)
    assert looking.seen == [0, 2, 4]


def test_an_aborted_runs_folder_is_not_made_again(run: RunContext) -> None:
    def abort() -> Iterator[pa.RecordBatch]:
        shutil.rmtree(run.staging)
        return iter([batch(a=pa.array([1]))])

    line = task.carry_out(run, 0, abort, Counting())
    assert "receipt" in json.loads(line)
    task.tell(run, DataError("too late"))
    assert not run.staging.exists()


def test_a_worker_that_does_not_see_the_runs_folder_does_its_part_all_the_same(run: RunContext) -> None:
    """On another machine there is no such folder, and none is left there."""
    shutil.rmtree(run.staging)
    line = task.carry_out(run, 0, lambda: iter([batch(a=pa.array([1]))]), Counting())
    assert json.loads(line)["receipt"]["rows"] == 1
    assert not run.staging.exists()


def test_a_dead_worker_is_not_busy(run: RunContext) -> None:
    folder = task.folder_of(run)
    state = {"pid": 99999999, "started": 5, "host": job.socket.gethostname(), "rows": 1, "bytes": 1, "done": False}
    (folder / "0.1.json").write_text(json.dumps(state))
    assert job.busy(folder) == []


def test_sparks_own_failure_is_one_line() -> None:
    error = RuntimeError("Job aborted due to stage failure\n\tat org.apache.spark")
    assert "\n" not in str(job.lost(error))
    assert isinstance(job.lost(RuntimeError("… Python worker exited unexpectedly (crashed) …")), LinkLost)


def test_a_record_that_spark_cut_off_is_none() -> None:
    """What Spark itself says is told then; a failure to read it must not take its place."""
    whole = str(task.failure(LinkLost("the link was lost")))
    assert task.record_in(f"Job aborted: {whole}, at …") is not None
    assert task.record_in(f"Job aborted: {whole[:-5]}") is None


def test_an_error_that_a_worker_of_another_user_left_is_passed_over() -> None:
    """It is for that user's eyes only, and comes with the task's own end too: with its class, keys and remedy."""
    error = DataError("two rows of one key", keys=("id=1",), remedy="keep one")
    with tempfile.TemporaryDirectory() as folder:
        run = RunContext("0" * 32, "p", Path(folder) / "staging")
        task.folder_of(run).mkdir(parents=True)
        task.tell(run, error)
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0)
        told = job.collected(Frame(json.dumps({"error": error.to_record()})))  # type: ignore[arg-type]  # all that is asked of one
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(NOBODY)
            with pytest.raises(DataError) as caught:
                job.Job(Nowhere(), told, run).receipts()  # type: ignore[arg-type]  # the same
        finally:
            if root:
                os.seteuid(0)
    assert (caught.value.keys, caught.value.remedy) == (("id=1",), "keep one")


NOBODY = 65534


class Frame:
    """One row of a task that has failed."""

    def __init__(self, line: str) -> None:
        self.line = line

    def collect(self) -> list[tuple[str]]:
        return [(self.line,)]


class Nowhere:
    """A Connect session as far as a job asks one for tags: something listens, and answers nothing."""

    def __init__(self, port: int = 0) -> None:
        self.client = SimpleNamespace(_builder=SimpleNamespace(endpoint=f"127.0.0.1:{port}"), is_closed=False)
        self.asked: list[str] = []

    def addTag(self, tag: str) -> None: ...  # noqa: N802  Spark's name

    def removeTag(self, tag: str) -> None: ...  # noqa: N802  Spark's name

    def interruptTag(self, tag: str) -> None:  # noqa: N802  Spark's name
        self.asked.append(tag)
        raise RuntimeError("UNAVAILABLE")


def slow(seconds: float = 60) -> list[Receipt]:
    threading.Event().wait(seconds)
    return []


def test_a_server_that_cannot_be_asked_to_cancel_hides_nothing(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of Ctrl-C it would be an ordinary failure, after which the next table starts."""
    monkeypatch.setattr(job, "CANCEL_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere: Any = Nowhere(server.getsockname()[1])  # all that is asked of a session
        made = job.Job(nowhere, slow, run)
        monkeypatch.setattr(made, "_watch", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Cancelled):
            made.receipts()
        assert set(nowhere.asked) == {status.tag_of(run.run_id)}
        task.folder_of(run).mkdir(parents=True)
        task.tell(run, DataError("two rows of one key", keys=("id=1",)))
        with pytest.raises(DataError, match="two rows of one key"):
            job.Job(nowhere, slow, run).receipts()


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_worker_that_nobody_can_end_is_not_waited_for_without_end(
    run: RunContext, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """On Connect the counters are all that tells of other hosts: abort must not sweep while they write."""
    monkeypatch.setattr(job, "CANCEL_SECONDS", 0.1)
    monkeypatch.setattr(job, "REMOTE_SECONDS", 0.5)
    monkeypatch.setattr(os, "kill", refuse)
    state = {"pid": os.getpid(), "started": start_of(os.getpid()), "rows": 1, "bytes": 1, "done": False}
    state["host"] = socket.gethostname() if host == "here" else "another"
    (task.folder_of(run) / "0.0.json").write_text(json.dumps(state))
    began = time.monotonic()
    with pytest.raises(LinkLost):
        job.Job(Nowhere(), refuse_link, run).receipts()  # type: ignore[arg-type]  # the same
    assert 0.5 <= time.monotonic() - began < 5


def refuse(*_: object) -> None:
    raise PermissionError


def refuse_link() -> list[Receipt]:
    raise LinkLost("the link was lost")
