"""Run a pipeline: stage through Spark or inside the database, commit once, record what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack

from penstock.backends.base import Load, LoadResult, Receipt, RunContext, Sink, WritesFrames
from penstock.errors import BeyondArrow, Cancelled, DataError, PenstockError, StateError
from penstock.observe import logs
from penstock.observe.failpoints import failpoint
from penstock.project.findings import each
from penstock.project.model import Pipeline, Project
from penstock.run.cluster import check_workers
from penstock.run.held import held
from penstock.run.prepare import Prepared, ends, prepare, source_tables
from penstock.run.records import ColumnPlan, Finding, Phase, PipelinePlan, ProgressEvent, RunOptions
from penstock.run.warm import prewarm
from penstock.state import Event, RunRecord, RunState, Store
from penstock.state.base import Figures

ATTEMPTS = 3  # of a run whose error is transient; each attempt stages anew
BACKOFF_SECONDS = 1.0  # before the second; twice as long before each later one

log = logs.Log("run")

Report = Callable[[ProgressEvent], None]
Stage = Callable[[Project, Prepared, Sink, Callable[[int, int], None]], list[Receipt]]


def stage_with_spark(
    project: Project, prepared: Prepared, sink: Sink, on_progress: Callable[[int, int], None]
) -> list[Receipt]:
    """Every partition read and staged by Spark tasks."""
    from penstock.engine import copy, session

    if prepared.transform is not None:
        return prepared.transform.write(sink, prepared.wires(), prepared.run, on_progress)
    spark = session.spark(project.spark, project.root)
    return copy.copy(spark, prepared.split.partitions, sink, prepared.wires(), prepared.run, on_progress)


def plan(project: Project, pipeline: Pipeline, options: RunOptions | None = None) -> list[PipelinePlan]:
    """One plan per table. Opens both ends, moves nothing, refuses nothing: refusals are in the plans."""
    plans = []
    for one in plan_each(project, pipeline, options):
        if isinstance(one, PenstockError):
            raise one
        plans.append(one)
    return plans


def plan_each(
    project: Project, pipeline: Pipeline, options: RunOptions | None = None
) -> Iterator[PipelinePlan | PenstockError]:
    """The same, with the error of a table that cannot be planned in the place of its plan."""
    for table in source_tables(project, pipeline):
        try:
            prepared = prepare(project, pipeline, table, context_of(project, pipeline), options or RunOptions())
            with closing(prepared):
                planned = prepared.plan()
        except PenstockError as error:
            _name_table(error, pipeline, table)
            yield error
        else:
            yield planned


def _name_table(error: PenstockError, pipeline: Pipeline, table: str | None) -> None:
    """Of many tables, the error must say which one it speaks of."""
    if pipeline.tables and table is not None:
        error.place = f"{error.place}, {table}" if error.place else table


def validate(project: Project, names: Iterable[str] | None = None) -> list[Finding]:
    """Every pipeline against both ends, and without names every connection too; all findings at once."""
    findings: list[Finding] = []
    plans: list[PipelinePlan] = []
    for name in names if names is not None else project.pipelines:
        pipeline = project.pipelines[name]
        try:
            for one in plan_each(project, pipeline):
                if isinstance(one, PenstockError):
                    findings += _refused(name, one)
                else:
                    findings += _findings(pipeline, one)
                    plans.append(one)
        except PenstockError as error:
            findings += _refused(name, error)
    findings += _taking_turns(project, plans)
    if names is None:
        used = {name for one in project.pipelines.values() for name in one.connections}
        for name in sorted(project.connections.keys() - used):
            findings += [found for error in project.connections.problems(name) for found in _refused("", error)]
    return findings


def _taking_turns(project: Project, plans: Sequence[PipelinePlan]) -> list[Finding]:
    """Pipelines that bring rows of different sources into one table: with equal keys, each undoes the other."""
    found: list[Finding] = []
    first: dict[str, PipelinePlan] = {}
    for planned in plans:
        pipeline = project.pipelines[planned.pipeline]
        earlier = first.setdefault(planned.target, planned)
        other = project.pipelines[earlier.pipeline]
        apart = (other.source, earlier.table, other.query) != (pipeline.source, planned.table, pipeline.query)
        if apart and {pipeline.mode, other.mode} != {"append"} and not pipeline.delete_scope:
            found.append(
                Finding(
                    pipeline.name,
                    "warning",
                    f"{planned.target} is loaded by pipeline {other.name} too, from {other.source}.{earlier.table}",
                    "a key that both have is overwritten by whichever runs last",
                    "another target, or keys that tell them apart",
                    pipeline.place,
                )
            )
    return found


def _refused(name: str, error: PenstockError) -> list[Finding]:
    return [Finding(name, "error", one.what, one.why, one.remedy, one.place) for one in each(error)]


def _findings(pipeline: Pipeline, planned: PipelinePlan) -> list[Finding]:
    name, place = pipeline.name, pipeline.place
    table = "" if planned.table == "query" else f"{planned.table}: "
    found = [Finding(name, "error", table + refusal, place=place) for refusal in planned.refusals]
    for column in planned.columns:
        if column.verdict == "refused":
            what = f"{table}column {column.source}: {column.source_type} does not go into {column.target_type}"
            found.append(Finding(name, "error", what, remedy=column.note, place=place))
        elif column.note and column.verdict == "exact":
            found.append(Finding(name, "warning", f"{table}column {column.source}", column.note, place=place))
    return found


def run(
    project: Project,
    pipeline: Pipeline,
    store: Store,
    options: RunOptions | None = None,
    progress: Report | None = None,
    stage: Stage = stage_with_spark,
) -> list[RunRecord]:
    """Run every table of the pipeline. All are tried and recorded; then the first error is raised."""
    runs = list(run_each(project, pipeline, store, options, progress, stage))
    for one in runs:
        if one.error is not None:
            raise one.error
    return [one.record for one in runs]


def run_each(
    project: Project,
    pipeline: Pipeline,
    store: Store,
    options: RunOptions | None = None,
    progress: Report | None = None,
    stage: Stage = stage_with_spark,
) -> Iterator[TableRun]:
    """Run every table of the pipeline, one after the other; one that fails does not keep the others from running.

    `stage` moves the data; another one than Spark's is for tests that need no JVM.
    """
    store.interrupt_dead_runs()
    job = _Job(project, pipeline, store, options or RunOptions(), progress or _silent, stage)
    for table in source_tables(project, pipeline):
        yield _run_table(job, table)


@dataclass(frozen=True, slots=True)
class TableRun:
    """What became of one table: the record of its last attempt, and the error that it ended with."""

    table: str | None
    record: RunRecord
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tables and attempts of one call share."""

    project: Project
    pipeline: Pipeline
    store: Store
    options: RunOptions
    report: Report
    stage: Stage


def _run_table(job: _Job, table: str | None) -> TableRun:
    attempt = _Attempt(job, table)
    try:
        while True:
            try:
                return TableRun(table, attempt.go())
            except PenstockError as error:
                attempt = attempt.after(error)
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001  told by whoever asked; the next table is none the worse for it
        record = attempt.record if attempt.record.finished_at else attempt.record.ended("failed")
        return TableRun(table, record, error)


class _Attempt:
    """One attempt at one table: its own run id, so that no earlier attempt's tasks can mix in."""

    def __init__(self, job: _Job, table: str | None, number: int = 1, as_text: frozenset[str] = frozenset()) -> None:
        self.job = job
        self.project = job.project
        self.pipeline = job.pipeline
        self.store = job.store
        self.options = job.options
        self.report = job.report
        self.stage = job.stage
        self.table = table
        self.number = number
        self.as_text = as_text
        self.run = context_of(job.project, job.pipeline)
        self.started = time.monotonic()
        self.record = self._record()
        self.figures: Figures = {}
        self.total_rows: int | None = None
        self.load: Load | None = None
        self.retry: Event | None = None  # why there is an attempt after the first

    def after(self, error: PenstockError) -> _Attempt:
        """The next attempt, where another one may do; otherwise the error is raised."""
        if isinstance(error, BeyondArrow) and not self.as_text:
            # The values are legal, only their Arrow form cannot carry them: such columns are read
            # as text, where the target can take them so. Nothing was committed.
            return self._again(error, self.number, frozenset(error.columns))
        if not error.retryable or self.number == ATTEMPTS:
            raise error
        following = self._again(error, self.number + 1, self.as_text)
        time.sleep(BACKOFF_SECONDS * 2 ** (self.number - 1))
        return following

    def _again(self, error: PenstockError, number: int, as_text: frozenset[str]) -> _Attempt:
        made = _Attempt(self.job, self.table, number, as_text)
        why = {"attempt": number, "error": type(error).__name__, "what": error.what, "after": self.run.run_id}
        made.retry = Event(made.run.run_id, "retry", why)
        log.warning("trying again", pipeline=self.pipeline.name, table=self.table, **why)
        return made

    @property
    def committed(self) -> LoadResult | None:
        return None if self.load is None else self.load.result

    def go(self) -> RunRecord:
        self.tell("plan")
        self.store.start_run(self.record)
        try:
            if self.retry is not None:
                self.store.add_event(self.retry)
            with released(self._prepare()) as prepared:
                self.figures |= _figures(prepared)
                prepared.planned.require(self.pipeline.place)
                self.total_rows = prepared.total_rows
                result = self._load(prepared)
            # If we died here: the load is committed and the history says "running"; the next start
            # marks it interrupted, and the target's own `_penstock.loads` has the truth.
            failpoint("run.finish")
            self._end("done", **_counts(result))
            self.tell("done", result.rows, self.record.bytes or 0)
        except BaseException as error:  # Ctrl-C too: the history says how it ended
            if self.committed is None:
                stopped = isinstance(error, (KeyboardInterrupt, Cancelled, SystemExit))
                if isinstance(error, PenstockError):
                    _name_table(error, self.pipeline, self.table)
                self._end("cancelled" if stopped else "failed", _known(error))
                raise
            # The rows are there. To call it failed, or to try again, would load them twice.
            self._end("done", **_counts(self.committed))
            if not isinstance(error, Exception):
                raise Cancelled(
                    "the run was stopped after its commit",
                    kept=f"the load is committed: {self.committed.rows} rows",
                    remedy="do not run it again for the same rows; 'penstock runs list' shows what was done",
                ) from error
            log.warning("trouble after the commit", run=self.run.run_id, error=type(error).__name__)
        return self.record

    def _end(
        self, state: RunState, error: PenstockError | Mapping[str, Any] | None = None, **counts: Unpack[Figures]
    ) -> None:
        """Note how it ended. A history that cannot be written changes nothing of what the target holds."""
        figures = self.figures | counts
        self.record = self.record.ended(state, error, **figures)
        try:
            self.store.finish_run(self.run.run_id, state, error=error, finished_at=self.record.finished_at, **figures)
        except StateError as lost:
            log.warning("run history not written", run=self.run.run_id, state=state, what=lost.what, why=lost.why)

    def tell(self, phase: Phase, rows: int = 0, size: int = 0) -> None:
        seconds = time.monotonic() - self.started
        name, table = self.pipeline.name, self.table or "query"
        self.report(ProgressEvent(phase, name, table, rows, size, self.total_rows, seconds))

    def _record(self) -> RunRecord:
        return RunRecord(
            self.run.run_id,
            self.pipeline.name,
            mode=self.pipeline.mode,
            source=f"{self.pipeline.source}.{self.table}" if self.table else self.pipeline.source,
            target=f"{self.pipeline.target_connection}.{self.pipeline.target_table(self.table)}",
        )

    def _prepare(self) -> Prepared:
        if self.stage is stage_with_spark:
            prewarm(self.project, [self.pipeline])
        return prepare(self.project, self.pipeline, self.table, self.run, self.options, self.as_text)

    def _load(self, prepared: Prepared) -> LoadResult:
        if prepared.path != "native" and self.stage is stage_with_spark:
            found = ends(self.project, self.pipeline)
            # Before anything is written: a folder that a worker cannot see, or a driver that it lacks.
            check_workers(self.project, prepared, (found.source_backend, found.target_backend))
        with begun(prepared) as load:
            self.load = load
            try:
                receipts = self._stage(prepared, load) if prepared.path != "native" else []
                failpoint("copy.done")
                # What was read goes first: it may be the very file that the commit opens to write.
                for source in prepared.sources:
                    source.close()
                rows, size = sum(r.rows for r in receipts), sum(r.bytes for r in receipts)
                self.figures["bytes"] = size
                self.tell("commit", rows, size)
                return load.commit(receipts)
            except BeyondArrow as error:
                raise _final(error, prepared) from error

    def _stage(self, prepared: Prepared, load: Load) -> list[Receipt]:
        def on_progress(rows: int, size: int) -> None:
            self.tell("copy", rows, size)

        self.tell("copy")
        for source in prepared.sources:
            source.hand_out()
        target, transform = prepared.target, prepared.transform
        if isinstance(target, WritesFrames) and transform is not None:
            return transform.write_frame(target, load, prepared.wires(), prepared.run, on_progress)
        sink = held(load.sink(0), target, self.pipeline.declared)
        return self.stage(self.project, prepared, sink, on_progress)


@contextmanager
def begun(prepared: Prepared) -> Iterator[Load]:
    """The load of a plan; on any error, Ctrl-C too, staging goes, unless the load is there."""
    with released(prepared.target.begin(prepared.planned.load)) as load:
        try:
            yield load
        except BaseException:
            if load.result is None:
                _quietly(load.abort)
            raise


class _Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)


@contextmanager
def released(held: C) -> Iterator[C]:
    """Closed at the end; after an error, that one is told whatever else goes wrong."""
    try:
        yield held
    except BaseException:
        _quietly(held.close)
        raise
    held.close()


def _quietly(end: Callable[[], None]) -> None:
    """Clean up behind an error. One that took its place would hide it: Ctrl-C would be tried again like a lost link."""
    try:
        end()
    except Exception as error:  # noqa: BLE001  the first one is raised; what is left the next run sweeps
        log.warning("not cleaned up after an error", error=type(error).__name__)


def _known(error: BaseException) -> PenstockError | Mapping[str, Any]:
    """What the history keeps of an error: the text of one that nobody foresaw may hold a cell's value."""
    name = type(error).__name__
    return error if isinstance(error, PenstockError) else {"error": name, "what": f"unexpected {name}"}


def _final(error: BeyondArrow, prepared: Prepared) -> DataError:
    """What to tell: all columns that may go as text into this target, or that the value does not fit."""
    fallback = {staged.source for staged in prepared.planned.columns if staged.native.fallback}
    if error.columns and set(error.columns) <= fallback and prepared.path == "fused":
        # All of them at once: the next column with such a value would need yet another attempt.
        return BeyondArrow(error.what, why=error.why, columns=tuple(sorted(fallback)), keys=error.keys)
    return DataError(
        error.what,
        why=error.why,
        kept="nothing was committed",
        remedy=error.remedy,
        place=error.place,
        keys=error.keys,
    )


def _figures(prepared: Prepared) -> Figures:
    return {
        "path": prepared.path,
        "partitions": len(prepared.split.partitions),
        "plan": json.dumps(prepared.plan().to_record()),
    }


def _counts(result: LoadResult) -> Figures:
    return {
        "rows": result.rows,
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
    }


def context_of(project: Project, pipeline: Pipeline) -> RunContext:
    return RunContext.new(pipeline.name, staging_folder(project))


def staging_folder(project: Project) -> Path:
    return project.root / ".penstock" / "staging"


def _silent(event: ProgressEvent) -> None:
    del event


__all__ = [
    "ColumnPlan",
    "Finding",
    "PipelinePlan",
    "ProgressEvent",
    "RunOptions",
    "TableRun",
    "plan",
    "plan_each",
    "run",
    "run_each",
    "validate",
]
