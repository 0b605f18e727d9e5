"""A load, planned: checks first, then the columns, then the statements. No row is touched here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.backends.base import (
    Capabilities,
    Check,
    Dialect,
    Execute,
    Guard,
    LoadPlan,
    PartitionField,
    RunContext,
    StagedColumn,
    Step,
    TableLoad,
    Target,
    TargetTable,
    UserSql,
    Widen,
    other_owners,
)
from penstock.errors import PlanRefused, Unsupported
from penstock.load.columns import ColumnsPlan, check_names, plan_columns
from penstock.load.event_time import event_refusals, scd2_by_event
from penstock.load.modes import (
    MODES,
    ROW_HASH,
    VALID_FROM,
    Statement,
    cast_check,
    declared_key_checks,
    duplicate_key_check,
    key_checks,
    metadata_columns,
    null_checks,
    null_key_check,
    staged_view,
    tie_check,
)
from penstock.load.partitions import (
    existing_refusals,
    partition_fields,
    partition_notes,
    partition_refusals,
    partition_steps,
)
from penstock.load.times import find_moment
from penstock.load.ttl import expired, staged_views
from penstock.project.abilities import unable
from penstock.project.model import Pipeline
from penstock.schema import AddKey, ColumnDef, CreateSchema, CreateTable, Ddl, Schema, TableName

KEYED = ("merge", "scd2")  # modes that find a row's earlier version by its keys


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a run asks the planner for."""

    pipeline: Pipeline
    schema: Schema  # as the sink will get it: the source's, or the transform's result
    keys: tuple[str, ...]  # the pipeline's, or the source's primary key
    table: TableName  # as the target spells it
    existing: TargetTable | None
    run: RunContext
    watermark: str | None = None
    continues: str | None = None
    as_text: frozenset[str] = frozenset()
    full_refresh: bool = False
    native: bool = False  # the source is read by a statement of the target
    by_attempt: bool = False  # a transform: see LoadPlan


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    load: LoadPlan
    columns: tuple[StagedColumn, ...]
    refused: tuple[StagedColumn, ...]
    refusals: tuple[str, ...]
    ddl: tuple[str, ...]
    sql: tuple[str, ...]
    notes: tuple[str, ...]
    changes: bool
    created: bool

    def reading(self, query: str, checks: tuple[Check, ...]) -> PlannedLoad:
        """The same load with the source read by `query`, inside the database."""
        return replace(self, load=replace(self.load, native_query=query, native_checks=checks))

    def require(self, place: str) -> None:
        """Raise with every finding at once if the load cannot be carried out."""
        findings = list(self.refusals)
        remedies = []
        for staged in self.refused:
            note = f" ({staged.native.note})" if staged.native.note else ""
            findings.append(
                f"column {staged.source}: {staged.column.describe()} does not go into {staged.native.sql}{note}"
            )
            if staged.native.remedy:
                remedies.append(staged.native.remedy)
        if findings:
            raise PlanRefused(
                "the load is refused",
                why="; ".join(findings),
                kept="nothing was touched",
                remedy="; ".join(dict.fromkeys(remedies)) or f"see the plan: penstock plan {self.load.run.pipeline}",
                place=place,
            )


def plan_load(request: LoadRequest, target: Target, capabilities: Capabilities) -> PlannedLoad:
    """The whole load. Findings are collected, so that a user sees all of them at once."""
    pipeline = request.pipeline
    require_abilities(pipeline, capabilities)
    table, existing = request.table, request.existing
    dialect = target.dialect
    if pipeline.truncate_with == "truncate" and (dialect is None or not dialect.truncates):
        raise Unsupported(
            f"{capabilities.title} has no TRUNCATE",
            kept="nothing was touched",
            remedy="leave truncate_with out",
            place=pipeline.place,
        )
    metadata = metadata_columns(pipeline, dialect) if dialect is not None else ()
    columns = plan_columns(
        pipeline,
        request.schema,
        target,
        existing,
        table,
        folding=capabilities.case_insensitive,
        as_text=request.as_text,
        metadata=metadata,
        raw=request.native,
        transformed=request.by_attempt,
    )
    refusals = [*columns.refusals, *_table_refusals(request, existing, table)]
    refusals += check_names([*columns.names, *(c.name for c in metadata)], table, capabilities)
    keys = columns.named(request.keys)
    refusals += _key_refusals(pipeline, keys, columns, request.schema)
    refusals += _unknown_columns(pipeline, columns)
    refusals += _fixed_columns(pipeline, existing, columns, keys)
    refusals += _versions_key(pipeline, existing, keys)
    partition_by = partition_fields(pipeline, columns)
    refusals += partition_refusals(partition_by, columns, sql=dialect is not None)
    if pipeline.mode not in KEYED:
        # Only errors show them: those of the source's table that a transform or drift has left.
        keys = tuple(key for key in keys if key in columns.names)
    refreshes = pipeline.mode == "append" and request.full_refresh
    refusals += target.refusals(table, "truncate" if refreshes else pipeline.mode)
    if dialect is None:
        return _without_sql(request, columns, keys, refusals, partition_by)
    refusals += existing_refusals(partition_by, existing)
    event, wrong = find_moment("event_time", pipeline.event_time, pipeline, columns, capabilities)
    refusals += [*wrong, *event_refusals(event, columns)]
    expiry, wrong = find_moment("ttl", pipeline.ttl.column if pipeline.ttl else None, pipeline, columns, capabilities)
    refusals += wrong
    statement = Statement(
        pipeline,
        dialect,
        table,
        columns.columns,
        keys,
        columns.kept,
        exists=existing is not None,
        indexed=bool(existing and existing.primary_key),
        identity=columns.identity,
        triggers=bool(existing and existing.triggers),
        full_refresh=request.full_refresh,
        tracked=_tracked(pipeline, columns, keys),
        event=event,
        expiry=expiry,
        partition_by=partition_by,
    )
    refusals += _declared_key(statement, columns) if existing is None else []
    schema_ddl = _schema_ddl(statement, target)
    adopt = _adopted(request, columns, metadata, statement, capabilities)
    if adopt:
        # The target makes the schema in the commit transaction, before staging moves into it.
        adopt, ddl = (*schema_ddl, *adopt), []
        steps = _adopt_steps(statement, target)
    else:
        ddl = [*schema_ddl, *columns.ddl]
        if existing is None:
            ddl.append(_table_ddl(columns, metadata, statement))
        steps = _steps(statement, ddl, columns, target)
    steps += _sequence_steps(pipeline, statement, columns)
    table_load = TableLoad(
        table,
        columns.columns,
        tuple(steps),
        pipeline.mode,
        adopt,
        # What only adds rows leaves others to their work, and needs no right but to add.
        lock=existing is not None and (pipeline.mode != "append" or request.full_refresh),
        creates=existing is None,
        partition_by=partition_by,
        metadata=tuple(metadata),
    )
    plan = LoadPlan(
        request.run,
        (table_load,),
        request.watermark,
        request.continues,
        keys,
        by_attempt=request.by_attempt,
    )
    rendered = [line for item in (*ddl, *adopt) for line in target.render(item)]
    return PlannedLoad(
        plan,
        columns.columns,
        columns.refused,
        tuple(refusals),
        tuple(rendered),
        tuple(
            step.sql
            for step in steps
            if not (isinstance(step, Widen) or (isinstance(step, Execute) and step.sql in rendered))
        ),
        (
            *(existing.notes if existing else ()),
            *columns.notes,
            *_hash_notes(pipeline, dialect, capabilities),
            *partition_notes(
                partition_by, existing, _key(statement, columns), declared=_may_declare(statement, columns)
            ),
        ),
        columns.changes,
        existing is None,
    )


def _hash_notes(pipeline: Pipeline, dialect: Dialect, capabilities: Capabilities) -> tuple[str, ...]:
    if pipeline.mode != "scd2" or dialect.hashes:
        return ()
    return (f"{ROW_HASH} stays NULL, {capabilities.title} has no MD5; it is information only",)


def _without_sql(
    request: LoadRequest,
    columns: ColumnsPlan,
    keys: tuple[str, ...],
    refusals: Sequence[str],
    partition_by: tuple[PartitionField, ...],
) -> PlannedLoad:
    """The load of a target that has no statements: what to do is said by the mode, what to heed by the guard."""
    pipeline, existing = request.pipeline, request.existing
    replaces = existing is not None and (pipeline.mode == "truncate" or request.full_refresh)
    load = TableLoad(
        request.table,
        columns.columns,
        (),
        pipeline.mode,
        creates=existing is None,
        replaces=replaces,
        guard=Guard(pipeline.allow_empty, pipeline.max_delete_ratio) if replaces else None,
        partition_by=partition_by,
    )
    plan = LoadPlan(request.run, (load,), request.watermark, request.continues, keys, by_attempt=request.by_attempt)
    notes = (*(existing.notes if existing else ()), *columns.notes)
    return PlannedLoad(
        plan,
        columns.columns,
        columns.refused,
        tuple(refusals),
        (),
        pipeline.transforms_pre,  # run by Spark, before anything is written
        notes,
        columns.changes,
        existing is None,
    )


def require_abilities(pipeline: Pipeline, capabilities: Capabilities) -> None:
    """Refuse what the target cannot do, by its own word; needs no connection."""
    for error in unable(pipeline, capabilities):
        raise error


def _table_refusals(request: LoadRequest, existing: TargetTable | None, table: TableName) -> list[str]:
    if existing is None:
        return []
    pipeline = request.pipeline
    findings = list(existing.refusals)
    refreshes = request.full_refresh and pipeline.mode == "append"
    others = other_owners(existing.owners, pipeline.name)
    if (
        (pipeline.mode == "truncate" or pipeline.deletes != "none" or pipeline.ttl or refreshes)
        and others
        and not pipeline.delete_scope
    ):
        # Two pipelines that each delete what the other brought would empty the table in turns.
        findings.append(
            f"{table} is loaded by pipeline {', '.join(sorted(others))} too; one that deletes needs a delete_scope"
        )
    if (
        pipeline.mode == "append"
        and pipeline.incremental
        and request.continues is None
        and pipeline.name in existing.owners
        and not request.full_refresh
    ):
        # The window would begin at the beginning, and bring what is there a second time.
        findings.append(
            f"{pipeline.name} has loaded {table} without `incremental`, and where those rows end is not known;"
            " --full-refresh replaces them and begins anew"
        )
    return findings


def _key_refusals(pipeline: Pipeline, keys: Sequence[str], columns: ColumnsPlan, schema: Schema) -> list[str]:
    if pipeline.mode not in KEYED:
        return []
    if not keys:
        return [f"mode {pipeline.mode} needs keys, and the source has no primary key to take them from"]
    planned = {*columns.names, *(staged.column.name for staged in columns.refused)}
    return [
        f"key column {key} is not among the columns that are loaded ({', '.join(schema.names)})"
        for key in keys
        if key not in planned
    ]


def _tracked(pipeline: Pipeline, columns: ColumnsPlan, keys: Sequence[str]) -> tuple[str, ...]:
    track, ignore = columns.named(pipeline.track), columns.named(pipeline.ignore)
    # The time of an event is when it was, not what it was.
    event = columns.named([pipeline.event_time] if pipeline.event_time else [])
    values = [name for name in columns.names if name not in (*keys, *ignore)]
    return tuple(name for name in values if name in track or not (track or name in event))


def _unknown_columns(pipeline: Pipeline, columns: ColumnsPlan) -> list[str]:
    return [
        f"{option} names {name}, which is no column that is loaded"
        for option, names in (("track", pipeline.track), ("ignore", pipeline.ignore))
        for name in columns.named(names)
        if name not in columns.names
    ]


def _fixed_columns(
    pipeline: Pipeline, existing: TargetTable | None, columns: ColumnsPlan, keys: Sequence[str]
) -> list[str]:
    """A load that replaces rows would update them, and the server does not let anybody."""
    updates = pipeline.mode == "merge" or (pipeline.event_time is not None and pipeline.order_by is not None)
    if existing is None or not updates:
        return []
    return [
        f"target column {column.name} is generated always as identity and no key, so a load cannot update it:"
        " leave it out of the query, or alter it to generated by default"
        for column in existing.columns
        if column.identity == "always" and column.name in columns.names and column.name not in keys
    ]


def _versions_key(pipeline: Pipeline, existing: TargetTable | None, keys: Sequence[str]) -> list[str]:
    """A table that takes one row of a key takes no second version: the first change would fail, and blame the data."""
    key = existing.primary_key if existing is not None else ()
    if pipeline.mode != "scd2" or existing is None or not key or not set(key) <= set(keys):
        return []
    return [
        f"{existing.name} has the primary key ({', '.join(key)}), and in a history a key has several"
        f" rows: add {VALID_FROM} to it, or let the load make the table"
    ]


def _definition(staged: StagedColumn, keys: Sequence[str]) -> ColumnDef:
    return ColumnDef(staged.column.name, staged.native.sql, nullable=staged.column.name not in keys)


def _table_ddl(columns: ColumnsPlan, metadata: Sequence[ColumnDef], statement: Statement) -> CreateTable:
    keys = statement.keys if statement.pipeline.mode in KEYED else ()
    own = tuple(_definition(staged, keys) for staged in columns.columns)
    if columns.followed is not None:
        own = columns.followed.definitions()
    declared = _key(statement, columns) if _may_declare(statement, columns) else ()
    return CreateTable(statement.table, (*own, *metadata), declared, statement.partition_by)


def _key(statement: Statement, columns: ColumnsPlan) -> tuple[str, ...]:
    """What no two rows of the target have in common."""
    keys = statement.keys if statement.pipeline.mode in KEYED else ()
    if statement.pipeline.mode == "scd2":
        return (*keys, VALID_FROM)
    return columns.followed.table.keys if columns.followed is not None else keys


def _may_declare(statement: Statement, columns: ColumnsPlan) -> bool:
    """The key of a partitioned table must hold what it is partitioned by."""
    return {field.column for field in statement.partition_by} <= set(_key(statement, columns))


def _declared_key(statement: Statement, columns: ColumnsPlan) -> list[str]:
    """A class promises its key."""
    if columns.followed is None or not columns.followed.table.keys or _may_declare(statement, columns):
        return []
    fields = ", ".join(field.column for field in statement.partition_by)
    return [f"{columns.followed.table.title} has a key without {fields}, which a partitioned table cannot have: add it"]


def _adopted(
    request: LoadRequest,
    columns: ColumnsPlan,
    metadata: Sequence[ColumnDef],
    statement: Statement,
    capabilities: Capabilities,
) -> tuple[Ddl, ...]:
    """The table that staging becomes, when this run creates it and every value is of its type already."""
    pipeline = request.pipeline
    fits = all(staged.native.direct and not staged.native.valid for staged in columns.columns)
    if (
        statement.exists
        or not capabilities.many_writers
        or request.native
        or request.by_attempt
        or pipeline.mode == "scd2"
        or pipeline.transforms_pre
        or pipeline.order_by
        or pipeline.ttl
        or pipeline.partition_by
        or columns.ddl
        or not fits
        or (columns.followed and not columns.followed.adoptable(columns.columns, pipeline.mode, statement.keys))
    ):
        return ()
    # No key and no NOT NULL yet: both are added after the rows are in, which is much faster.
    definitions = tuple(ColumnDef(s.column.name, s.native.sql) for s in columns.columns)
    return (CreateTable(statement.table, (*definitions, *metadata)),)


def _schema_ddl(statement: Statement, target: Target) -> tuple[Ddl, ...]:
    schema = statement.table.schema
    if statement.exists or schema is None or target.has_schema(schema):
        return ()
    return (CreateSchema(schema),)


def _steps(statement: Statement, ddl: Sequence[Ddl], columns: ColumnsPlan, target: Target) -> list[Step]:
    pipeline = statement.pipeline
    if (pipeline.mode in KEYED and not statement.keys) or (pipeline.event_time and statement.event is None):
        return []  # refused; there is nothing to match or to order rows by
    checks: list[Check] = []
    if columns.followed is not None and pipeline.mode not in KEYED:
        checks = declared_key_checks(statement, columns.followed.table.keys)
    elif not pipeline.order_by and statement.event is None:
        checks = key_checks(statement)
    elif statement.keys:
        ties = [tie_check(statement)] if statement.event is None else []  # of events it is told with their moment
        checks = [null_key_check(statement), *ties]
    return [
        *cast_check(statement),
        *target.steps(ddl),
        *_user_sql(pipeline.transforms_pre, "transforms_pre"),
        *staged_views(statement),
        *checks,
        *null_checks(statement, [name for name in columns.not_null if not checks or name not in statement.keys]),
        # Before the target's first change: one with changes that wait for the commit takes no partition.
        *partition_steps(statement.partition_by, columns, statement.dialect, statement.table, statement.key_text()),
        *expired(statement),
        *(scd2_by_event(statement, statement.event) if statement.event else MODES[pipeline.mode](statement)),
        *_user_sql(pipeline.transforms_post, "transforms_post"),
    ]


def _adopt_steps(statement: Statement, target: Target) -> list[Step]:
    """After the staging table has become the target: its key, then the user's own statements."""
    pipeline = statement.pipeline
    steps: list[Step] = [staged_view(statement)]
    if pipeline.mode == "merge":
        checks = (null_key_check(statement), duplicate_key_check(statement))
        steps += [Execute(line, diagnose=checks) for line in target.render(AddKey(statement.table, statement.keys))]
    return [*steps, *_user_sql(pipeline.transforms_post, "transforms_post")]


def _user_sql(statements: Sequence[str], place: str) -> list[UserSql]:
    return [UserSql(sql, f"{place}[{number}]") for number, sql in enumerate(statements)]


def _sequence_steps(pipeline: Pipeline, statement: Statement, columns: ColumnsPlan) -> list[Step]:
    if not pipeline.reset_sequences:
        return []
    return [
        Execute(sql)
        for name in columns.numbered
        if name in columns.names and (sql := statement.dialect.reset_sequence(statement.table, name))
    ]
