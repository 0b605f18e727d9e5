"""Run a pipeline: stage through Spark or inside the database, commit once, record what happened."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from penstock.backends.base import LoadResult, Receipt, RunContext, Sink
from penstock.errors import BeyondArrow, Cancelled, DataError, PenstockError
from penstock.observe.failpoints import failpoint
from penstock.project.model import Pipeline, Project
from penstock.run.prepare import Prepared, prepare, source_tables
from penstock.run.records import ColumnPlan, Finding, Phase, PipelinePlan, ProgressEvent, RunOptions
from penstock.state import RunRecord, Store
from penstock.state.base import Figures

ATTEMPTS = 3  # of a run whose error is transient; each attempt stages anew
BACKOFF_SECONDS = 1.0

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
    for table in source_tables(project, pipeline):
        prepared = prepare(project, pipeline, table, _context(project, pipeline), options or RunOptions())
        with closing(prepared):
            plans.append(prepared.plan())
    return plans


def validate(project: Project, names: Iterable[str] | None = None) -> list[Finding]:
    """Every pipeline against both ends; all findings at once."""
    findings: list[Finding] = []
    for name in names if names is not None else project.pipelines:
        pipeline = project.pipelines[name]
        try:
            plans = plan(project, pipeline)
        except PenstockError as error:
            findings.append(Finding(name, "error", error.what, error.why, error.remedy))
            continue
        for planned in plans:
            findings += _findings(name, planned)
    return findings


def _findings(name: str, planned: PipelinePlan) -> list[Finding]:
    table = "" if planned.table == "query" else f"{planned.table}: "
    found = [Finding(name, "error", table + refusal) for refusal in planned.refusals]
    for column in planned.columns:
        if column.verdict == "refused":
            what = f"{table}column {column.source}: {column.source_type} does not go into {column.target_type}"
            found.append(Finding(name, "error", what, remedy=column.note))
        elif column.note and column.verdict == "exact":
            found.append(Finding(name, "warning", f"{table}column {column.source}", column.note))
    return found


def run(
    project: Project,
    pipeline: Pipeline,
    store: Store,
    options: RunOptions | None = None,
    progress: Report | None = None,
    stage: Stage = stage_with_spark,
) -> list[RunRecord]:
    """Run every table of the pipeline, one after the other. Raises the first error, after recording it.

    `stage` moves the data; another one than Spark's is for tests that need no JVM.
    """
    options = options or RunOptions()
    store.interrupt_dead_runs()
    job = _Job(project, pipeline, store, options, progress or _silent, stage)
    return [_run_table(job, table) for table in source_tables(project, pipeline)]


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tables and attempts of one call share."""

    project: Project
    pipeline: Pipeline
    store: Store
    options: RunOptions
    report: Report
    stage: Stage


def _run_table(job: _Job, table: str | None) -> RunRecord:
    as_text: frozenset[str] = frozenset()
    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, PenstockError) and error.retryable),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(BACKOFF_SECONDS),
        reraise=True,
    )
    for attempt in retrying:
        with attempt:
            try:
                return _Attempt(job, table, as_text).go()
            except BeyondArrow as error:
                # The values are legal, only their Arrow form cannot carry them: such columns are read
                # as text, where the target can take them so. Nothing was committed.
                as_text = frozenset(error.columns)
                return _Attempt(job, table, as_text).go()
    raise AssertionError("unreachable: the last attempt raises")


class _Attempt:
    """One attempt at one table: its own run id, so that no earlier attempt's tasks can mix in."""

    def __init__(self, job: _Job, table: str | None, as_text: frozenset[str]) -> None:
        self.project = job.project
        self.pipeline = job.pipeline
        self.store = job.store
        self.options = job.options
        self.report = job.report
        self.stage = job.stage
        self.table = table
        self.as_text = as_text
        self.run = _context(job.project, job.pipeline)
        self.started = time.monotonic()
        self.committed: LoadResult | None = None

    def go(self) -> RunRecord:
        record = self._record()
        self.tell("plan")
        if self.options.dry_run:
            with closing(self._prepare()) as prepared:
                prepared.planned.require(self.pipeline.place)
                record = replace(record, state="done", finished_at=datetime.now(UTC), **_figures(prepared))
            self.tell("done")
            return record
        self.store.start_run(record)
        figures: Figures = {}
        try:
            with closing(self._prepare()) as prepared:
                figures = _figures(prepared)
                prepared.planned.require(self.pipeline.place)
                result, size = self._load(prepared)
        except BaseException as error:
            if self.committed is not None:
                # Stopped after the COMMIT: the rows are there, and whoever runs it again must know.
                self.store.finish_run(self.run.run_id, "done", **(figures | _counts(self.committed)))
                raise Cancelled(
                    "the run was stopped after its commit",
                    kept=f"the load is committed: {self.committed.rows} rows",
                    remedy="do not run it again for the same rows",
                    place=self.pipeline.name,
                ) from error
            stopped = isinstance(error, (KeyboardInterrupt, Cancelled, SystemExit))
            known = error if isinstance(error, PenstockError) else {"error": type(error).__name__, "what": ""}
            self.store.finish_run(self.run.run_id, "cancelled" if stopped else "failed", error=known, **figures)
            raise
        # If we died here: the load is committed and the history says "running"; the next start
        # marks it interrupted, and the target's own `_penstock.loads` has the truth.
        failpoint("run.finish")
        figures |= _counts(result)
        figures["bytes"] = size
        self.tell("done", result.rows, size)
        return self.store.finish_run(self.run.run_id, "done", **figures)

    def tell(self, phase: Phase, rows: int = 0, size: int = 0) -> None:
        seconds = time.monotonic() - self.started
        self.report(ProgressEvent(phase, self.pipeline.name, self.table or "query", rows, size, None, seconds))

    def _record(self) -> RunRecord:
        return RunRecord(
            self.run.run_id,
            self.pipeline.name,
            mode=self.pipeline.mode,
            source=f"{self.pipeline.source}.{self.table}" if self.table else self.pipeline.source,
            target=f"{self.pipeline.target_connection}.{self.pipeline.target_table(self.table)}",
        )

    def _prepare(self) -> Prepared:
        if self.stage is stage_with_spark and self._needs_spark():
            from penstock.engine import session

            # The JVM starts while both ends are opened and planned.
            session.prewarm(self.project.spark, self.project.root)
        return prepare(self.project, self.pipeline, self.table, self.run, self.options, self.as_text)

    def _needs_spark(self) -> bool:
        if self.pipeline.transform is not None or self.pipeline.transform_function is not None:
            return True
        source = self.project.connection(self.pipeline.source)
        target = self.project.connection(self.pipeline.target_connection)
        return source.type != target.type or self.pipeline.path in ("fused", "spark")

    def _load(self, prepared: Prepared) -> tuple[LoadResult, int]:
        load = prepared.target.begin(prepared.planned.load)
        try:
            receipts = self._stage(prepared, load.sink(0)) if prepared.path != "native" else []
            failpoint("copy.done")
            # The source goes first: it may be the very file that the commit opens to write.
            prepared.source.close()
            rows, size = sum(r.rows for r in receipts), sum(r.bytes for r in receipts)
            self.tell("commit", rows, size)
            result = load.commit(receipts)
        except BeyondArrow as error:
            load.abort()
            raise _final(error, prepared) from error
        except BaseException:
            self.committed = load.result
            if load.result is None:
                load.abort()
            raise
        finally:
            load.close()
        return result, size

    def _stage(self, prepared: Prepared, sink: Sink) -> list[Receipt]:
        def on_progress(rows: int, size: int) -> None:
            self.tell("copy", rows, size)

        self.tell("copy")
        return self.stage(self.project, prepared, sink, on_progress)


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


def _context(project: Project, pipeline: Pipeline) -> RunContext:
    run_id = uuid7().hex
    return RunContext(run_id, pipeline.name, staging_folder(project) / run_id)


def staging_folder(project: Project) -> Path:
    return project.root / ".penstock" / "staging"


def uuid7() -> uuid.UUID:
    """A random id whose first 48 bits are the time in milliseconds, so that ids sort by time."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return uuid.UUID(int=value)


def _silent(event: ProgressEvent) -> None:
    del event


__all__ = ["ColumnPlan", "Finding", "PipelinePlan", "ProgressEvent", "RunOptions", "plan", "run", "validate"]
