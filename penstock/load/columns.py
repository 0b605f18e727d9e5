"""Which columns are loaded, in which form, into which type; and what drift means.

Nothing is guessed here: a column that the target cannot hold exactly is refused with the line of
TOML that would do, unless the user has already asked for a cast, which is then checked value by
value before the load.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.backends.base import Capabilities, Native, StagedColumn, Target, TargetColumn, TargetTable, Verdict
from penstock.errors import PlanRefused
from penstock.load.declared import Followed, extra, follow, missing
from penstock.project.model import ColumnOption, Pipeline
from penstock.schema import AddColumn, Column, ColumnDef, Ddl, Schema, TableName, WidenColumn
from penstock.schema.columns import ENUM, NUMERIC
from penstock.schema.names import folded

NAN_SPELLINGS = ("NaN", "nan")  # Postgres' own and ADBC's


@dataclass(frozen=True, slots=True)
class ColumnsPlan:
    """The columns of a load, the DDL they need and what a reader should know."""

    columns: tuple[StagedColumn, ...]
    refused: tuple[StagedColumn, ...]
    ddl: tuple[Ddl, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]
    not_null: tuple[str, ...]  # target columns that take no NULL although the source may give one
    identity: tuple[str, ...]
    numbered: tuple[str, ...]  # columns that own a sequence
    kept: tuple[str, ...]  # target columns that the source does not have
    changes: bool  # the target's types or columns would change
    followed: Followed | None = None  # the class that declares the target

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(staged.column.name for staged in self.columns)

    def named(self, sources: Sequence[str]) -> tuple[str, ...]:
        """Columns of the source by their names in the target."""
        names = {staged.source: staged.column.name for staged in (*self.columns, *self.refused)}
        return tuple(names.get(source, source) for source in sources)


@dataclass(slots=True)
class _Findings:
    raw: bool
    folding: bool
    transformed: bool
    columns: list[StagedColumn] = field(default_factory=list)
    refused: list[StagedColumn] = field(default_factory=list)
    ddl: list[Ddl] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def take(self, followed: Followed) -> None:
        self.ddl += followed.ddl
        self.notes += followed.notes
        self.refusals += followed.refusals

    def tell(self, note: str, refusal: str) -> None:
        self.notes += [note] if note else []
        self.refusals += [refusal] if refusal else []


def plan_columns(
    pipeline: Pipeline,
    schema: Schema,
    target: Target,
    existing: TargetTable | None,
    table: TableName,
    *,
    folding: bool,
    as_text: frozenset[str] = frozenset(),
    metadata: Sequence[ColumnDef] = (),
    raw: bool = False,
    transformed: bool = False,
) -> ColumnsPlan:
    """Every source column with its form and type.

    `folding` says that names that differ only in case are the same in the target. `as_text` names
    columns to carry as text. With `raw`, the database reads its own columns, so there is no staged
    form to decode. `transformed` says that the values went through Spark.
    """
    _check_options(pipeline, schema)
    found = _Findings(raw, folding, transformed)
    followed = None
    if pipeline.declared is not None:
        followed = follow(pipeline.declared, target, existing, table, folding=folding)
        existing = followed.existing
        found.take(followed)
    for column in schema:
        option = pipeline.columns.get(column.name, ColumnOption())
        if followed is not None:
            declared = followed.option(option, column.name)
            if declared is None:
                found.tell(*extra(pipeline, followed, column))
                continue
            option = declared
        _plan_column(pipeline, found, column, option, target, existing, table, text=column.name in as_text)
    if followed is not None:
        loaded = {staged.column.name for staged in (*found.columns, *found.refused)}
        notes, refusals = missing(pipeline, followed, loaded)
        found.notes, found.refusals = found.notes + notes, found.refusals + refusals
        found.columns = [followed.checked(staged, target) for staged in followed.ordered(found.columns)]
    kept = _kept_columns(pipeline, found, existing, {column.name for column in metadata})
    found.notes += _own_values(pipeline, found, existing)
    _metadata_columns(pipeline, found, existing, table, metadata)
    if not found.columns and not found.refused and not found.refusals:
        found.refusals.append("the source has no column that the target has")
    return ColumnsPlan(
        tuple(found.columns),
        tuple(found.refused),
        tuple(found.ddl),
        tuple(found.notes),
        tuple(found.refusals),
        _not_null(found.columns, existing, followed),
        tuple(c.name for c in existing.columns if c.identity) if existing else (),
        tuple(c.name for c in existing.columns if c.sequence) if existing else (),
        kept,
        bool(found.ddl) or existing is None,
        followed,
    )


def _check_options(pipeline: Pipeline, schema: Schema) -> None:
    for name in pipeline.columns:
        if name not in schema:
            near = difflib.get_close_matches(name, schema.names, 1)
            raise PlanRefused(
                f"columns.{name} names no column of the source",
                why=f"the source has {', '.join(schema.names)}",
                remedy=f"did you mean {near[0]!r}?" if near else "remove it",
                place=pipeline.place,
            )


def _plan_column(
    pipeline: Pipeline,
    found: _Findings,
    column: Column,
    option: ColumnOption,
    target: Target,
    existing: TargetTable | None,
    table: TableName,
    *,
    text: bool,
) -> None:
    source = column.name
    nan_decimal = option.nan == "null" and pa.types.is_decimal(column.type)  # which only its text can carry
    wire = (column.as_text() if text or nan_decimal else column).renamed(option.rename or source)
    cast = option.type
    if cast is not None and cast.lower() == "text":
        wire, cast = Column(wire.name, pa.string(), nullable=column.nullable), None
    there = existing.column(wire.name, folding=found.folding) if existing else None
    if there is not None:
        wire = wire.renamed(there.name)
    if there is not None and there.generated:
        found.notes.append(f"{wire.name} is generated by the target and left out")
        return
    if existing is not None and there is None:
        if pipeline.on_drift == "ignore" and not pipeline.strict_schema:
            found.notes.append(f'{source} is not in the target and left out (on_drift = "ignore")')
            return
        if pipeline.on_drift == "error" or pipeline.strict_schema:
            why = "strict_schema is set" if pipeline.strict_schema else 'on_drift = "error"'
            found.refusals.append(f"column {source} of the source is not in {table} ({why})")
            return
    if nan_decimal and cast is None and wire.logical is not None:
        cast = target.native(column, there, None).sql  # held as the decimal that it is
    native = _native(found, target, wire, there, cast)
    if there is not None and there.collation:
        native = replace(native, collation=there.collation, direct=False)
    if found.raw and not native.valid:
        native = replace(native, decode=_own_cast(wire, native, target))
    native = _with_nan(native, option, wire)
    if there is not None and native.verdict is Verdict.REFUSED and native.widen_to and cast is None:
        native = _widen(pipeline, found, wire, native, target, table)
    staged = StagedColumn(source, wire, native)
    if native.verdict is Verdict.REFUSED:
        found.refused.append(staged)
        return
    if there is not None and pipeline.strict_schema and native.verdict is Verdict.WIDENED:
        found.refusals.append(f"column {source} would be widened to {native.sql} (strict_schema is set)")
        return
    if existing is not None and there is None:
        found.ddl += [*native.ddl, AddColumn(table, ColumnDef(wire.name, native.sql))]
        found.notes.append(f"{wire.name} is added to the target; rows already there stay NULL (--full-refresh reloads)")
    elif existing is None:
        found.ddl += native.ddl
    found.columns.append(staged)


def _native(found: _Findings, target: Target, wire: Column, there: TargetColumn | None, cast: str | None) -> Native:
    if not found.transformed:
        return target.native(wire, there, cast)
    # Spark's `union` gives the left column's type to the right one's values: what a timestamp(3) or a
    # varchar(5) promises beyond its Arrow type, the values may not keep, and a plain cast would cut them.
    bare = replace(wire, native="")
    if cast is not None:
        return target.native(bare, there, cast)
    own = target.native(wire, there, None)
    if own.verdict is Verdict.REFUSED or not _may_cut(wire):
        return own
    plain = target.native(bare, there, None)
    if plain.sql == own.sql and plain.verdict is not Verdict.REFUSED:
        return plain
    checked = target.native(bare, there, own.sql)
    return plain if checked.verdict is Verdict.REFUSED else checked


def _may_cut(column: Column) -> bool:
    """Whether the source's own type may hold less than the Arrow type: a size, fewer digits of a second."""
    kind = column.logical.kind if column.logical is not None else ""
    element = column.type.value_type if pa.types.is_list(column.type) else column.type
    return kind != ENUM and ("(" in column.native or kind == NUMERIC or pa.types.is_timestamp(element))


def _own_cast(wire: Column, native: Native, target: Target) -> str:
    """From what the database itself has to the target's type."""
    plain = native.sql.removesuffix(f" COLLATE {native.collation}")  # a cast takes no collation
    dialect = target.dialect
    if dialect is not None and wire.logical is not None and wire.logical.kind == ENUM and wire.describe() != plain:
        # There is no cast from one enum to another.
        return dialect.cast(dialect.cast("{}", dialect.text_type), plain)
    return dialect.cast("{}", plain) if dialect is not None else f"cast({{}} as {plain})"


def _with_nan(native: Native, option: ColumnOption, wire: Column) -> Native:
    if option.nan != "null" or not (pa.types.is_floating(wire.type) or pa.types.is_string(wire.type)):
        return native
    spellings = ", ".join(f"'{word}'" for word in NAN_SPELLINGS)
    is_nan = f"{{}} in ({spellings})"
    # The templates take the staged column more than once, so it is put in by position.
    decode = native.decode.replace("{}", f"(case when {is_nan} then null else {{}} end)")
    valid = f"({is_nan} or ({native.valid}))" if native.valid else ""
    return replace(native, decode=decode, valid=valid, direct=False, nan_null=True)


def _widen(
    pipeline: Pipeline, found: _Findings, wire: Column, native: Native, target: Target, table: TableName
) -> Native:
    if pipeline.on_drift != "evolve" or pipeline.strict_schema:
        return replace(native, remedy=f'on_drift = "evolve" would widen it to {native.widen_to}')
    found.ddl.append(WidenColumn(table, wire.name, native.widen_to))
    found.notes.append(f"{wire.name} is widened to {native.widen_to}")
    return _native(found, target, wire, TargetColumn(wire.name, native.widen_to), None)


def _kept_columns(
    pipeline: Pipeline, found: _Findings, existing: TargetTable | None, metadata: set[str]
) -> tuple[str, ...]:
    """Columns of the target that this load does not bring."""
    if existing is None:
        return ()
    planned = {staged.column.name for staged in (*found.columns, *found.refused)}
    planned |= {column.name for name in metadata if (column := existing.column(name, folding=found.folding))}
    kept = []
    for column in existing.columns:
        if column.name in planned or column.generated:
            continue
        kept.append(column.name)
        if column.name in existing.loaded and (pipeline.on_drift == "error" or pipeline.strict_schema):
            # Loaded before and gone now: old values would stay and look current.
            found.refusals.append(f"column {column.name} was loaded before and is gone from the source")
        elif not column.nullable and not column.has_default and not column.identity:
            found.refusals.append(f"target column {column.name} takes no NULL, has no default and is not in the source")
        else:
            found.notes.append(f"target column {column.name} is not in the source; new rows get its default or NULL")
    return tuple(kept)


def _own_values(pipeline: Pipeline, found: _Findings, existing: TargetTable | None) -> list[str]:
    """Columns that the target fills by itself."""
    if existing is None:
        return []
    planned = {staged.column.name for staged in found.columns}
    notes = [
        f"target column {column.name} is generated by the target"
        for column in existing.columns
        if column.generated and f"{column.name} is generated by the target and left out" not in found.notes
    ]
    sequence = "is moved past them" if pipeline.reset_sequences else "stays behind unless reset_sequences = true"
    return notes + [
        f"{column.name} is an identity column of the target: the source's values are taken, its sequence {sequence}"
        for column in existing.columns
        if column.identity and column.name in planned
    ]


def _metadata_columns(
    pipeline: Pipeline,
    found: _Findings,
    existing: TargetTable | None,
    table: TableName,
    metadata: Sequence[ColumnDef],
) -> None:
    taken = {staged.column.name for staged in found.columns}
    for column in metadata:
        if column.name in taken:
            found.refusals.append(f"the source has a column {column.name}, which the mode itself needs: rename it")
        elif existing is not None and existing.column(column.name, folding=found.folding) is None:
            if pipeline.on_drift == "error":
                found.refusals.append(
                    f'{table} lacks the column {column.name} that the mode needs (on_drift = "evolve" adds it)'
                )
            found.ddl.append(AddColumn(table, column))


def _not_null(
    columns: Sequence[StagedColumn], existing: TargetTable | None, followed: Followed | None
) -> tuple[str, ...]:
    if followed is not None and existing is None:
        return followed.not_null(columns)
    if existing is None:
        return ()
    strict = {column.name for column in existing.columns if not column.nullable}
    return tuple(s.column.name for s in columns if s.column.name in strict and s.column.nullable)


def check_names(names: Sequence[str], table: TableName, capabilities: Capabilities) -> list[str]:
    """Names that the target would cut, fold or take for one another: found here, not in its notices."""
    findings = []
    limit = capabilities.max_identifier_bytes
    for name in (*table.parts, *names):
        if limit is not None and len(name.encode()) > limit:
            findings.append(f"the name {name!r} has {len(name.encode())} bytes, {capabilities.title} takes {limit}")
    seen: dict[str, str] = {}
    for name in names:
        same = folded(name) if capabilities.case_insensitive else name
        if same in seen:
            findings.append(f"the columns {seen[same]!r} and {name!r} have the same name in {capabilities.title}")
        seen[same] = name
    return findings
