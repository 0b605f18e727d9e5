"""Everything of a run that happens before a row moves: open both ends, choose the path, plan.

Used by `plan`, `validate` and `run` alike, so that what is printed is what is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.backends.base import (
    Backend,
    ConnectionConfig,
    Cursor,
    Dialect,
    ReadRequest,
    ReadsFrames,
    RunContext,
    Sessions,
    Source,
    Split,
    StagedColumn,
    Target,
    Window,
    WritesFrames,
)
from penstock.backends.registry import backend
from penstock.errors import ConfigError, PlanRefused, TransformError, Unsupported
from penstock.load.plan import LoadRequest, PlannedLoad, plan_load, require_abilities
from penstock.project.abilities import unable_here
from penstock.project.model import Pipeline, Project
from penstock.project.patterns import clash, match_tables
from penstock.run import cluster
from penstock.run.handed import FrameSource
from penstock.run.held import unheld
from penstock.run.inputs import OpenInput, moments, open_inputs, rows_of, split_of
from penstock.run.records import ColumnPlan, InputPlan, PipelinePlan, RunOptions
from penstock.schema import Column, Schema, TableName

if TYPE_CHECKING:
    from penstock.engine.functions import Udf
    from penstock.engine.transform import TransformPlan

PARTITIONS_PER_CORE = 2  # enough that one slow partition does not leave the other cores idle


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a pipeline, by configuration."""

    source: ConnectionConfig
    target: ConnectionConfig
    source_backend: Backend
    target_backend: Backend


@dataclass(slots=True)
class Prepared:
    """A planned table of a pipeline with both ends open. Closing it lets go of the source's moment."""

    pipeline: Pipeline
    table: str | None
    run: RunContext
    source: Source
    target: Target
    path: str
    path_reason: str
    planned: PlannedLoad
    split: Split
    window: Window | None
    transform: TransformPlan | None
    inputs: tuple[tuple[OpenInput, InputPlan], ...]
    notes: tuple[str, ...]
    total_rows: int | None  # about so many will be staged, where that is known
    stack: ExitStack

    def close(self) -> None:
        self.stack.close()

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that is read."""
        return (self.source, *(one.source for one, _ in self.inputs))

    def wires(self) -> list[tuple[str, Column]]:
        """Source name and wire form of every loaded column."""
        return [(staged.source, staged.column) for staged in self.planned.columns]

    def plan(self) -> PipelinePlan:
        columns = [*self.planned.columns, *self.planned.refused]
        return PipelinePlan(
            self.pipeline.name,
            self.table or "query",
            f"{self.pipeline.target_connection}.{self.planned.load.tables[0].table}",
            self.pipeline.mode,
            self.path,
            self.path_reason,
            len(self.split.partitions),
            self.split.reason,
            tuple(_column_plan(staged) for staged in columns),
            self.planned.ddl,
            self.planned.sql,
            (*self.notes, *self.planned.notes),
            self.planned.refusals,
            self.planned.changes,
            self.window.lower if self.window else None,
            self.window.upper if self.window else None,
            tuple(planned for _, planned in self.inputs),
        )


def _column_plan(staged: StagedColumn) -> ColumnPlan:
    column = staged.column
    canonical = str(column.type) if column.logical is None else f"{column.type} ({column.logical.kind})"
    return ColumnPlan(
        staged.source,
        column.name,
        column.describe(),
        canonical.removeprefix("extension<").removesuffix(">"),
        staged.native.sql,
        staged.native.verdict.value,
        staged.native.note or staged.native.remedy,
    )


def ends(project: Project, pipeline: Pipeline) -> Ends:
    handed = pipeline.handed
    source = project.connection(pipeline.source) if handed is None else handed.config()
    target = project.connection(pipeline.target_connection)
    found = Ends(source, target, handed or backend(source.type), backend(target.type))
    if not found.source_backend.capabilities.reads:
        raise _unable(pipeline, f"{source.type} cannot be a source", "choose another source")
    if not found.target_backend.capabilities.writes:
        raise _unable(pipeline, f"{target.type} cannot be a target", "choose another target")
    if pipeline.query is not None and not found.source_backend.capabilities.queries:
        raise _unable(
            pipeline,
            f"{source.type} runs no query",
            'name a `table`, and query it with `transform`: "select … from source"',
        )
    if pipeline.incremental is not None and not found.source_backend.capabilities.incremental:
        raise _unable(pipeline, f"{source.type} cannot be read incrementally", "leave incremental out")
    return found


def _unable(pipeline: Pipeline, what: str, remedy: str) -> Unsupported:
    return Unsupported(what, kept="nothing was touched", remedy=remedy, place=pipeline.place)


def source_tables(project: Project, pipeline: Pipeline) -> list[str | None]:
    """The tables of a pipeline: its own one, or all that its patterns match; None for a query."""
    if not pipeline.tables:
        return [pipeline.table]
    found = ends(project, pipeline)
    known = found.source_backend.tables(found.source)
    matched, idle = match_tables(pipeline.tables, known)
    if idle or not matched:
        raise PlanRefused(
            f"no table matches {', '.join(idle or pipeline.tables)}",
            why=f"connection {pipeline.source} has {len(known)} tables",
            remedy=f"penstock tables list {pipeline.source}",
            place=pipeline.place,
        )
    _check_targets(pipeline, matched, folding=found.target_backend.capabilities.case_insensitive)
    return [str(name) for name in matched]


def _check_targets(pipeline: Pipeline, tables: list[TableName], *, folding: bool) -> None:
    """Two source tables must not take turns in one target."""
    found = clash([(str(name), pipeline.target_table(name)) for name in tables], folding=folding)
    if found is not None:
        one, other, target = found
        raise PlanRefused(
            f"{one} and {other} would both be loaded into {target}",
            why="the target does not tell them apart",
            kept="nothing was touched",
            remedy='put the schema into the target: target = "warehouse.{schema}.{table}"',
            place=pipeline.place,
        )


def prepare(
    project: Project,
    pipeline: Pipeline,
    table: str | None,
    run: RunContext,
    options: RunOptions,
    as_text: frozenset[str] = frozenset(),
) -> Prepared:
    """Open both ends and plan. The caller closes what it gets; on an error all is closed here."""
    _check_limit(pipeline, options)
    with ExitStack() as stack:
        found = ends(project, pipeline)
        require_abilities(pipeline, found.target_backend.capabilities)
        for error in unable_here(pipeline, found.target_backend, found.target, pipeline.target_table(table)):
            raise error
        request = ReadRequest(
            TableName.parse(table) if table else None,
            pipeline.query,
            pipeline.partition_on,
            options.limit,
            pipeline.keys,
        )
        chosen = choose_path(pipeline, found, options)
        target = found.target_backend.target(found.target, run)
        stack.callback(target.close)
        source = found.source_backend.source(found.source, request, run)
        stack.callback(source.close)
        path, reason = _through_frames(pipeline, source, target) or chosen
        schema = source.schema()
        keys = pipeline.keys or source.primary_key()
        target_table = target.qualify(pipeline.target_table(table))
        if overlap := target.overlaps(source, target_table):
            raise PlanRefused(
                "the source overlaps its target", why=overlap, remedy="write to another place", place=pipeline.place
            )
        existing = target.inspect(target_table)
        stored = target.watermark(pipeline.name, target_table) if pipeline.incremental else None
        # A target that was dropped, or is refreshed, is filled from the beginning.
        afresh = options.full_refresh or existing is None
        window = _window(pipeline, source, None if afresh else stored)
        transform = None
        inputs = open_inputs(project, pipeline, source, run, stack)
        want, notes = _tasks(project, pipeline, [source, *(one.source for one in inputs)], target)
        if path != "native" and (where := cluster.place(project.spark)) is not None:
            notes += (f"tasks run on {where}",)
        split: Split | None = None
        loaded = schema
        planned_inputs: tuple[InputPlan, ...] = ()
        if path == "spark":
            then = staged_sql(pipeline, found)
            read, pruned = _read_by(pipeline, schema, inputs, then)
            if len(read) < len(schema):
                notes += (f"{len(read)} of {len(schema)} columns are read: the transform names no other",)
            notes += moments(project, pipeline, inputs)
            reading = _Reading(project, pipeline, source, window, inputs, run, want, then)
            try:
                split, transform, planned_inputs = reading.transform(read, pruned)
            except TransformError:
                whole = [one.source.schema() for one in inputs]
                if len(read) == len(schema) and list(map(len, pruned)) == list(map(len, whole)):
                    raise
                # Once more with every column: Spark's message suggests names out of those that it knows.
                split, transform, planned_inputs = reading.transform(schema, whole)
            loaded = transform.schema
            stack.callback(transform.close)
        wanted = LoadRequest(
            pipeline,
            loaded,
            keys,
            target_table,
            existing,
            run,
            _watermark(window),
            stored,
            as_text,
            options.full_refresh,
            native=path == "native",
            by_attempt=path == "spark",
        )
        planned = plan_load(wanted, target, found.target_backend.capabilities)
        if path == "native" and (around := _not_by_sql(source, planned.columns, target.dialect)):
            path, reason = _around(pipeline, around)
            planned = plan_load(replace(wanted, native=False), target, found.target_backend.capabilities)
        planned = replace(planned, refusals=(*planned.refusals, *unheld(target, pipeline.declared)))
        if transform is not None:
            wires = [(staged.source, staged.column) for staged in planned.columns]
            planned = replace(planned, refusals=(*planned.refusals, *transform.refusals(wires)))
        if path == "native" and not planned.refused and not planned.refusals:
            reads = [_native_read(staged, target.dialect) for staged in planned.columns]
            checks = source.select_checks([column for column, _ in reads], window)
            planned = planned.reading(source.select_sql(reads, window), checks)
            split = Split((), "the statement runs inside the database")
        elif split is None:
            columns = [staged.column.renamed(staged.source) for staged in planned.columns]
            split = source.partitions(columns, want, window) if columns else Split((), "nothing to read")
        return Prepared(
            pipeline,
            table,
            run,
            source,
            target,
            path,
            reason,
            planned,
            split,
            window,
            transform,
            tuple(zip(inputs, planned_inputs, strict=True)),
            (*source.notes(), *(note for one in inputs for note in one.source.notes()), *notes),
            source.rows() if path == "fused" and window is None and options.limit is None else None,
            stack.pop_all(),
        )


def _tasks(
    project: Project, pipeline: Pipeline, sources: Sequence[Source], target: Target
) -> tuple[int, tuple[str, ...]]:
    """How many tasks are wanted, no more than may have their sessions at all ends at once; with a note of that."""
    want = pipeline.parallel or project.spark.parallel or PARTITIONS_PER_CORE * cluster.cores(project.spark)
    servers: dict[str, list[Sessions]] = {}
    for sessions in [*(source.sessions() for source in sources), target.sessions()]:
        if sessions is not None:
            servers.setdefault(sessions.server, []).append(sessions)
    # A server at several ends has that many sessions of every task, or of tasks that run beside it.
    rooms = [
        (min(end.most for end in counted) - sum(end.driver for end in counted)) // len(counted)
        for counted in servers.values()
    ]
    most = max(1, min(rooms, default=want))
    return min(want, most), (f"{most} tasks at most: max_connections",) if most < want else ()


def _check_limit(pipeline: Pipeline, options: RunOptions) -> None:
    """A part of the source must never pass for the whole of it."""
    if options.limit is None:
        return
    reasons = {
        "the watermark would pass rows that were not read": pipeline.incremental is not None,
        "rows that were not read would count as vanished": pipeline.deletes != "none"
        or pipeline.mode == "truncate"
        or options.full_refresh,
    }
    for why, applies in reasons.items():
        if applies:
            raise ConfigError(
                f"--limit is refused for pipeline {pipeline.name}",
                why=why,
                kept="nothing was touched",
                remedy="try it with a query that has a limit, into another target",
                place=pipeline.place,
            )


def _native_read(staged: StagedColumn, dialect: Dialect | None) -> tuple[Column, str]:
    """A column that a cast checks comes as it would be staged; every other one as the database has it."""
    column = staged.column.renamed(staged.source)
    text_type = dialect.text_type if dialect is not None else ""
    if column.logical is not None and (staged.native.valid or staged.native.sql == text_type):
        # As text, and as the same text that the other paths would stage.
        column = replace(column, logical=None)
    return column, staged.column.name


def choose_path(pipeline: Pipeline, found: Ends, options: RunOptions) -> tuple[str, str]:
    """Native, fused or spark, and why; a forced path that cannot be is refused with the reason."""
    wanted = pipeline.path
    if pipeline.transform is not None or pipeline.transform_function is not None:
        if wanted in ("native", "fused"):
            raise PlanRefused(
                f'path = "{wanted}" is refused', why="a transform runs in Spark", remedy="leave `path` out"
            )
        return "spark", "a transform runs in Spark"
    if staged_sql(pipeline, found):
        reason = f"transforms_pre runs in Spark: {found.target_backend.capabilities.title} runs no SQL of its own"
        if wanted in ("native", "fused"):
            raise PlanRefused(
                f'path = "{wanted}" is refused', why=reason, remedy="leave `path` out", place=pipeline.place
            )
        return "spark", reason
    if wanted == "spark":
        return "spark", 'path = "spark" is set'
    native, reason = _native(found, options)
    if wanted == "native" and not native:
        raise PlanRefused('path = "native" is refused', why=reason, remedy="leave `path` out", place=pipeline.place)
    if native and wanted != "fused":
        return "native", reason
    return "fused", 'path = "fused" is set' if wanted == "fused" else reason


def _through_frames(pipeline: Pipeline, source: Source, target: Target) -> tuple[str, str] | None:
    """The path of ends that Spark itself reads or writes; which they are is known once they are open."""
    reasons = [f"{source.reader} reads it"] if isinstance(source, ReadsFrames) else []
    reasons += [f"{target.writer} writes it"] if isinstance(target, WritesFrames) else []
    if not reasons:
        return None
    reason = "; ".join(reasons)
    if pipeline.path in ("native", "fused"):
        raise PlanRefused(
            f'path = "{pipeline.path}" is refused', why=reason, remedy="leave `path` out", place=pipeline.place
        )
    if pipeline.transform is not None or pipeline.transform_function is not None:
        reason = f"a transform runs in Spark; {reason}"
    return "spark", reason


def _not_by_sql(source: Source, columns: Sequence[StagedColumn], dialect: Dialect | None) -> str:
    """Why a load inside one database cannot be a statement of it; empty where it can."""
    if casts := [staged.source for staged in columns if staged.native.in_sink]:
        return f"the cast of {', '.join(casts)} is checked on its way, which no statement of the target can"
    if texts := source.unselectable([_native_read(staged, dialect)[0] for staged in columns]):
        return f"the text of {', '.join(texts)} is made on its way: the database would print it otherwise"
    return ""


def _around(pipeline: Pipeline, reason: str) -> tuple[str, str]:
    if pipeline.path == "native":
        raise PlanRefused('path = "native" is refused', why=reason, remedy="leave `path` out", place=pipeline.place)
    return "fused", reason


def staged_sql(pipeline: Pipeline, found: Ends) -> tuple[str, ...]:
    """The statements before the load that Spark runs, because the target runs none."""
    return () if found.target_backend.capabilities.user_sql else pipeline.transforms_pre


def _native(found: Ends, options: RunOptions) -> tuple[bool, str]:
    capabilities = found.target_backend.capabilities
    if found.source.type != found.target.type:
        return False, f"{found.source.type} and {found.target.type} are different systems; no transform needs Spark SQL"
    if not capabilities.same_database_sql:
        return False, f"{capabilities.title} runs no INSERT … SELECT"
    if options.limit is not None:
        return False, "--limit reads through Spark"
    same, why = found.target_backend.same_database(found.source, found.target)
    return (True, "both ends are the same database") if same else (False, why)


def _read_by(
    pipeline: Pipeline, schema: Schema, inputs: Sequence[OpenInput], then: Sequence[str]
) -> tuple[Schema, list[Schema]]:
    """What must be read for the transform, of the source and of each input. Of a function nobody can tell: all.

    `then`, the statements over `staged`, run in the same session: they may read every view too.
    """
    from penstock.engine.prune import columns_read, names
    from penstock.engine.transform import VIEW

    whole = [one.source.schema() for one in inputs]
    sql = pipeline.transform
    if pipeline.transform_function is not None or sql is None:
        return schema, whole
    views = [VIEW, *(one.name for one in inputs)]

    def read(all_of: Schema, view: str) -> Schema:
        texts = [sql, *(text for text in then if names(text, view))]
        kept = {name for text in texts for name in columns_read(text, all_of, view, views).names}
        return Schema.of([column for column in all_of if column.name in kept])

    return read(schema, VIEW), [read(found, one.name) for one, found in zip(inputs, whole, strict=True)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """All that a transform reads, open; planned once or twice with more or fewer columns."""

    project: Project
    pipeline: Pipeline
    source: Source
    window: Window | None
    inputs: Sequence[OpenInput]
    run: RunContext
    want: int
    staged_sql: tuple[str, ...]

    def transform(self, read: Schema, pruned: Sequence[Schema]) -> tuple[Split, TransformPlan, tuple[InputPlan, ...]]:
        from penstock.engine import session
        from penstock.engine.functions import pickle_by_value
        from penstock.engine.transform import TransformPlan, transform

        split = split_of(self.source, read, self.want, self.window)
        splits = [one.split(schema, self.want) for one, schema in zip(self.inputs, pruned, strict=True)]
        views = list(zip(self.inputs, pruned, splits, strict=True))
        if self.pipeline.transform_function is not None:
            for read_from in (self.source, *(one.source for one in self.inputs)):
                read_from.hand_out()  # a function may look at rows to say what it does
        if isinstance(self.source, FrameSource):
            if self.staged_sql:
                raise PlanRefused(
                    "transforms_pre is not for a Spark frame",
                    why="the target runs no SQL of its own, and the frame goes on in its own session",
                    kept="nothing was touched",
                    remedy="do it to the frame",
                )
            return split, TransformPlan.of(self.source.given, self.want), ()
        spark = session.spark(self.project.spark, self.project.root)
        if self.project.functions or self.pipeline.transform_function is not None:
            pickle_by_value(self.project.root)
        what = self.pipeline.transform_function or self.pipeline.transform or "select * from source"
        made = transform(
            spark,
            rows_of(self.source, split),
            read,
            what,
            self.run,
            self.want,
            [one.view(schema, cut) for one, schema, cut in views],
            functions_of(self.project),
            self.staged_sql,
        )
        return split, made, tuple(one.plan(schema, cut) for one, schema, cut in views)


def functions_of(project: Project) -> list[Udf]:
    """The project's functions, as Spark will call them."""
    from penstock.engine.functions import Udf
    from penstock.schema import words

    return [
        Udf(one.name, one.function, words.parse(one.word).type, one.aggregate, one.per_row, one.place)
        for one in project.functions.values()
    ]


# ---------------------------------------------------------------- incremental


def _window(pipeline: Pipeline, source: Source, stored: str | None) -> Window | None:
    """`[last upper, upper)`; the upper bound is fixed on the source, at its one moment."""
    if pipeline.incremental is None:
        return None
    if isinstance(source, ReadsFrames):
        whole = ', and take all rows each time: mode = "truncate"' if pipeline.mode == "append" else ""
        raise _unable(pipeline, f"{source.reader} reads no window", f"leave incremental out{whole}")
    lower = _lower(pipeline, stored) if stored else None
    upper = source.upper(Cursor(pipeline.incremental, pipeline.lag, pipeline.cursor_timezone, lower))
    return Window(pipeline.incremental, lower, upper, pipeline.on_null_cursor)


def _lower(pipeline: Pipeline, stored: str) -> str:
    watermark: dict[str, Any] = json.loads(stored)
    if watermark["column"] != pipeline.incremental:
        raise PlanRefused(
            f"the cursor is {pipeline.incremental}, but the last load went by {watermark['column']}",
            why="the two have no common order",
            kept="nothing was touched",
            remedy=f"penstock run {pipeline.name} --full-refresh",
            place=pipeline.place,
        )
    return str(watermark["upper"])


def _watermark(window: Window | None) -> str | None:
    return None if window is None else json.dumps({"column": window.column, "upper": window.upper})
