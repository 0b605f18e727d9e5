"""Looks at a cluster's workers before a run writes anything: their versions, and what they can reach.

A small job asks every executor there is. What it cannot know, an executor that comes later finds
out by itself: each task reads the run's token before it stages, and an interpreter that lacks a
module fails by name. Leaves nothing behind, and touches no database.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.backends.base import RunContext, Shared
from penstock.backends.staging import TOKEN, StagingArea
from penstock.engine import status
from penstock.engine.job import POLL_SECONDS, lost
from penstock.errors import Cancelled, PenstockError, SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3  # a job's tasks may all land on one executor while another is still starting
TASKS_PER_EXECUTOR = 2
ANSWER = pa.schema([pa.field("answer", pa.string())])
# A cluster that has no room for us says nothing at all: the job would wait for ever.
RESOURCES_SECONDS = 60.0
CANCEL_SECONDS = 4.0
ALWAYS = ("pyspark", "pyarrow", "pandas", "penstock")
UNTOUCHED = "nothing was touched"
THEIR_PYTHON = '[spark.conf] "spark.pyspark.python" names their Python'


@dataclass(frozen=True, slots=True)
class Question:
    """What workers are asked. Picklable; holds no secret."""

    run_id: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]  # that a task of this run will import
    reads: tuple[str, ...]  # files
    writes: tuple[str, ...]  # folders of this run, with its token

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in rows:
            pass
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(self.answer())])], schema=ANSWER)

    def answer(self) -> dict[str, Any]:
        """In a worker."""
        left = {folder: self._write(Path(folder)) for folder in self.writes}
        return {
            "host": socket.gethostname(),
            "executor": os.getppid(),  # the daemon that an executor forks its workers from
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in self.packages},
            "missing": [failed for name in self.modules if (failed := _missing(name))],
            "unread": {name: why for name in self.reads if (why := _unread(name))},
            "unwritten": {folder: why for folder, (_, why) in left.items() if why},
            "left": {folder: name for folder, (name, why) in left.items() if not why},
        }

    def _write(self, folder: Path) -> tuple[str, str]:
        """Read the driver's token and leave a file beside it: its name, or why that was not possible."""
        name = f"{uuid.uuid4().hex}.probe"
        try:
            if (folder / TOKEN).read_text() != self.run_id:
                return "", "another folder of that name is there"
            (folder / name).touch(exist_ok=False)
        except OSError as error:
            return "", (error.strerror or type(error).__name__).lower()
        return name, ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _missing(module: str) -> str:
    """The name of what cannot be imported, "" if all can."""
    try:
        imported = import_module(module)
    except ImportError as error:
        return error.name or module
    return next((failed for name in getattr(imported, "WORKER_MODULES", ()) if (failed := _missing(name))), "")


def _unread(name: str) -> str:
    """Only looked at: each partition finds out by itself whether it is the driver's own file."""
    try:
        os.stat(name)
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return "" if os.access(name, os.R_OK) else "permission denied"


# ---------------------------------------------------------------- the driver


def probe(
    spark: SparkSession,
    run: RunContext,
    shared: Sequence[Shared],
    modules: Sequence[str] = (),
    packages: Mapping[str, str] | None = None,
) -> None:
    """Ask every executor; raises what one of them cannot do. `packages`: what installs each, by name."""
    known = {name: f"{name}=={_version(name)}" for name in ALWAYS} | dict(packages or {})
    # A name of its own: the run may have staging in the same place already.
    trial = replace(run, run_id=uuid.uuid4().hex)
    with ExitStack() as stack:
        areas = {}
        for folder, one in {one.path: one for one in shared if one.writes}.items():
            area = StagingArea.create(_there(folder), trial)
            stack.callback(area.close)
            areas[str(area.folder)] = one
        files = {str(one.path): one for one in shared if not one.writes}
        question = Question(trial.run_id, tuple(known), tuple(modules), tuple(files), tuple(areas))
        for answer in _answers(spark, question):
            _check_versions(answer, known)
            _check_paths(answer, files, areas)


def _there(folder: Path) -> Path:
    """The folder, or what of its path would be made first."""
    return next((one for one in (folder, *folder.parents) if one.parent.exists()), folder)


def _answers(spark: SparkSession, question: Question) -> list[dict[str, Any]]:
    """At least one answer of every executor, where Spark tells how many there are."""
    found: list[dict[str, Any]] = []
    tasks = max(status.cores(spark), 2)
    for _ in range(ROUNDS):
        found += _ask(spark, question, tasks)
        wanted = status.executors(spark)
        if wanted is None or len({(one["host"], one["executor"]) for one in found}) >= wanted:
            break
        tasks = max(tasks, wanted * TASKS_PER_EXECUTOR) * 2
    return found


def _ask(spark: SparkSession, question: Question, tasks: int) -> list[dict[str, Any]]:
    tag = status.tag_of(question.run_id)
    ended = threading.Event()
    lines: list[str] = []
    failed: list[BaseException] = []

    def collect() -> None:
        try:
            with status.tagged(spark, tag):
                frame = spark.range(0, tasks, 1, tasks).mapInArrow(question, "answer string")
                lines.extend(row[0] for row in frame.collect())
        except BaseException as error:  # noqa: BLE001  raised again by the waiting thread
            failed.append(error)
        finally:
            ended.set()

    threading.Thread(target=collect, name=f"penstock-probe-{question.run_id}", daemon=True).start()
    deadline = time.monotonic() + RESOURCES_SECONDS
    try:
        while not ended.wait(POLL_SECONDS):
            if time.monotonic() > deadline:
                _check_room(spark)
    except BaseException as error:  # Ctrl-C too: no task outlives the wait
        until = time.monotonic() + CANCEL_SECONDS
        while not ended.is_set() and time.monotonic() < until:
            status.cancel(spark, tag)
            ended.wait(POLL_SECONDS)
        if isinstance(error, KeyboardInterrupt):
            raise Cancelled("the run was cancelled", kept=UNTOUCHED) from None
        raise
    if failed:
        raise _explained(spark, failed[0]) from None
    return [json.loads(line) for line in lines]


def _check_room(spark: SparkSession) -> None:
    if status.executors(spark) != 0:
        return  # they are busy with something else
    raise SparkError(
        f"{status.master(spark)} gives no executor",
        why=f"none has come in {RESOURCES_SECONDS:.0f} s: no worker is there, or none has the memory and cores free",
        kept=UNTOUCHED,
        remedy="look at the master's page; ask for less with executor_memory in [spark], or spark.executor.cores"
        " and spark.cores.max in [spark.conf]",
    )


def _explained(spark: SparkSession, error: BaseException) -> PenstockError:
    """Why workers could not even answer."""
    text = str(error)
    where = status.master(spark)
    versions = re.search(r"different version: \(?'?([\d., ]+)'?\)? than that in driver:? \(?'?([\d., ]+)", text)
    if "PYTHON_VERSION_MISMATCH" in text or versions:
        theirs = versions.group(1).strip(" .,") if versions else "another version"
        return _mismatch(where, "Python", theirs, platform.python_version())
    program = re.search(r'Cannot run program "([^"]+)"', text)
    if program:
        return SparkError(
            f"the workers of {where} have no {program.group(1)}",
            why="it is the Python that tasks run on",
            kept=UNTOUCHED,
            remedy='name theirs: [spark.conf] "spark.pyspark.python" = "/path/to/python"',
        )
    module = re.search(r"No module named '([^']+)'", text) or re.search(r"\[PACKAGE_NOT_INSTALLED\] (\S+)", text)
    if module:
        return _lacking(where, module.group(1))
    return lost(error)


def _check_versions(answer: Mapping[str, Any], known: Mapping[str, str]) -> None:
    host = answer["host"]
    if answer["missing"]:
        raise _lacking(f"host {host}", ", ".join(answer["missing"]))
    for name, how in known.items():
        ours, theirs = _version(name), answer["versions"][name]
        if theirs == "":
            raise _lacking(f"host {host}", name, how)
        if _minor(theirs) != _minor(ours):
            raise _mismatch(f"host {host}", name, theirs, ours, how)
    if _minor(answer["python"]) != _minor(platform.python_version()):
        raise _mismatch(f"host {host}", "Python", answer["python"], platform.python_version())


def _minor(version: str) -> list[str]:
    """What must be the same: a later digit changes no format."""
    return version.split(".")[:2]


def _lacking(where: str, name: str, how: str = "") -> SparkError:
    return SparkError(
        f"the workers of {where} lack {name}",
        why="their Python cannot import it",
        kept=UNTOUCHED,
        remedy=f"install it there: pip install '{how or name}'; {THEIR_PYTHON}",
    )


def _mismatch(where: str, name: str, theirs: str, ours: str, how: str = "") -> SparkError:
    return SparkError(
        f"the workers of {where} have {name} {theirs}, this machine has {ours}",
        why="a value might not come back as it went",
        kept=UNTOUCHED,
        remedy=f"install it there: pip install '{how}'; {THEIR_PYTHON}"
        if how
        else f"both must be the same; {THEIR_PYTHON}",
    )


def _check_paths(answer: Mapping[str, Any], files: Mapping[str, Shared], areas: Mapping[str, Shared]) -> None:
    where = f"on host {answer['host']} (process {answer['executor']})"
    for name, why in answer["unread"].items():
        raise SparkError(
            f"not every worker can read {name}", why=f"{where}: {why}", kept=UNTOUCHED, remedy=files[name].remedy
        )
    for folder, why in answer["unwritten"].items():
        raise _unshared(areas[folder], f"{where}: {why}")
    for folder, name in answer["left"].items():
        if not (Path(folder) / name).exists():
            raise _unshared(areas[folder], f"what a worker leaves there {where} does not come to the driver")


def _unshared(shared: Shared, why: str) -> SparkError:
    return SparkError(
        f"the staging folder {shared.path} is not shared by all workers",
        why=why,
        kept=UNTOUCHED,
        remedy=shared.remedy,
    )
