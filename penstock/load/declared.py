"""A target table that a class declares: how the table follows the class, and the source its columns.

The class is the truth about the table. A table that lacks a column of it gets it, a narrower column is
widened; anything else that differs is refused with what to do. Nothing is ever dropped or narrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.backends.base import Native, StagedColumn, Target, TargetColumn, TargetTable, Verdict
from penstock.project.model import ColumnOption, Pipeline
from penstock.schema import AddColumn, Column, ColumnDef, Ddl, TableName, WidenColumn
from penstock.schema.columns import ENUM
from penstock.schema.declared import DeclaredColumn, DeclaredTable
from penstock.schema.names import folded
from penstock.schema.words import parse, spell

TEXT = "text"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A declared column as this target holds it."""

    declared: DeclaredColumn
    column: Column
    native: Native
    cast: str  # as a user would ask for it
    labels: tuple[str, ...] = ()  # of an enum

    def definition(self) -> ColumnDef:
        return ColumnDef(self.declared.name, self.native.sql, nullable=self.declared.nullable)


@dataclass(frozen=True, slots=True)
class Followed:
    """What the class asks of the target: DDL, and the table as it will be after that."""

    table: DeclaredTable
    wanted: tuple[Wanted, ...]
    existing: TargetTable | None
    ddl: tuple[Ddl, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]
    folding: bool

    def of(self, name: str) -> Wanted | None:
        same = [one for one in self.wanted if _same(one.declared.name, name, folding=self.folding)]
        return same[0] if same else None

    def option(self, option: ColumnOption, source: str) -> ColumnOption | None:
        """What happens to a column of the source; None for one that the class does not have."""
        found = self.of(option.rename or source)
        if found is None:
            return None
        return option.model_copy(update={"type": found.cast, "rename": found.declared.name})

    def not_null(self, columns: Sequence[StagedColumn]) -> tuple[str, ...]:
        """Columns that take no NULL although the source may give one."""
        strict = {one.declared.name for one in self.wanted if not one.declared.nullable}
        return tuple(s.column.name for s in columns if s.column.name in strict and s.column.nullable)

    def definitions(self) -> tuple[ColumnDef, ...]:
        return tuple(one.definition() for one in self.wanted)

    def ordered(self, columns: Sequence[StagedColumn]) -> list[StagedColumn]:
        """In the order of the class, which a new table has too."""
        places = {one.declared.name: place for place, one in enumerate(self.wanted)}
        return sorted(columns, key=lambda staged: places.get(staged.column.name, len(places)))

    def checked(self, staged: StagedColumn, target: Target) -> StagedColumn:
        """An enum takes no other text than its labels."""
        found = self.of(staged.column.name)
        if target.dialect is None or found is None or not found.labels:
            return staged
        labels = ", ".join(_literal(label) for label in found.labels)
        valid = f"({{}} is null or cast({{}} as {target.dialect.text_type}) in ({labels}))"
        both = f"({valid} and {staged.native.valid})" if staged.native.valid else valid
        return replace(staged, native=replace(staged.native, verdict=Verdict.CHECKED, valid=both))

    def adoptable(self, columns: Sequence[StagedColumn], mode: str, keys: Sequence[str]) -> bool:
        """Whether staging may become the table: it gets a merge's key afterwards, and no NOT NULL but that."""
        loaded = {staged.column.name for staged in columns}
        strict = {one.declared.name for one in self.wanted if not one.declared.nullable} - set(keys)
        keyed = not self.table.keys or (mode == "merge" and set(keys) == set(self.table.keys))
        return keyed and not strict and loaded == set(self.table.names)


def follow(
    table: DeclaredTable, target: Target, existing: TargetTable | None, name: TableName, *, folding: bool
) -> Followed:
    """Compare the class with the table that is there."""
    wanted, ddl, notes, refusals = [], list[Ddl](), list[str](), list[str]()
    columns = list(existing.columns) if existing is not None else []
    for declared in table.columns:
        one = _wanted(declared, target)
        if one.native.verdict is Verdict.REFUSED:
            refusals.append(f"{table.title}.{declared.name}: {one.native.note or 'the target has no such type'}")
            continue
        wanted.append(one)
        if existing is None:
            ddl += one.native.ddl
            continue
        there = existing.column(declared.name, folding=folding)
        if there is None:
            refusals += _added(table, one, name, ddl, notes)
            columns.append(TargetColumn(declared.name, one.native.sql, declared.nullable))
        elif not there.generated:
            after, refusal = _evolved(table, one, there, name, target, ddl, notes)
            refusals += refusal
            columns[columns.index(there)] = after
    if target.dialect is None and table.keys:
        notes.append(f"the key of {table.title} is held to be not NULL; that it is unique is not checked here")
    if existing is not None:
        refusals += _keys(table, existing)
        existing = replace(existing, columns=tuple(columns))
    return Followed(table, tuple(wanted), existing, tuple(ddl), tuple(notes), tuple(refusals), folding)


def _wanted(declared: DeclaredColumn, target: Target) -> Wanted:
    word = parse(declared.word)
    labels = word.logical.labels if word.logical is not None and word.logical.kind == ENUM else ()
    if labels:
        word = parse(TEXT)  # kept as text everywhere, and held to its labels
    column = word.column(declared.name, nullable=declared.nullable)
    native = target.native(column, None, None)
    # A target with SQL is asked in its own spelling, one without in words.
    plain = spell(column) == TEXT or target.dialect is None
    return Wanted(declared, column, native, spell(column) if plain else native.sql, labels)


def _added(table: DeclaredTable, one: Wanted, name: TableName, ddl: list[Ddl], notes: list[str]) -> list[str]:
    column = one.declared.name
    if not one.declared.nullable:
        return [
            f"{table.title}.{column} is new and takes no NULL, and rows that are in {name} have no value for it:"
            f" declare it with `| None`, or add the column to the table with values first"
        ]
    ddl += [*one.native.ddl, AddColumn(name, one.definition())]
    notes.append(f"{column} of {table.title} is added to the target; rows already there stay NULL")
    return []


def _evolved(
    table: DeclaredTable,
    one: Wanted,
    there: TargetColumn,
    name: TableName,
    target: Target,
    ddl: list[Ddl],
    notes: list[str],
) -> tuple[TargetColumn, list[str]]:
    """The column as it will be, and why it cannot be so."""
    refusals = []
    title = f"{table.title}.{one.declared.name}"
    if target.dialect is not None and there.nullable != one.declared.nullable:
        relation, column = target.dialect.relation(name), target.dialect.quote(there.name)
        change = "drop not null" if one.declared.nullable else "set not null"
        class_, table_ = ("may be NULL", "may not") if one.declared.nullable else ("takes no NULL", "does")
        refusals.append(
            f"{title} {class_}, and in {name} it {table_}: change the class, or"
            f" alter table {relation} alter column {column} {change}"
        )
    own = target.native(one.column, there, None)
    if own.sql.partition(" COLLATE ")[0] == one.native.sql and own.verdict is not Verdict.REFUSED:
        return there, refusals
    if own.verdict is Verdict.REFUSED and own.widen_to == one.native.sql:
        ddl.append(WidenColumn(name, there.name, one.native.sql))
        notes.append(f"{there.name} is widened to {one.native.sql}, as {table.title} has it")
        return replace(there, type_sql=one.native.sql), refusals
    refusals.append(
        f"{title} is {one.native.sql}, and in {name} it is {there.type_sql}, which cannot be widened to that:"
        " declare the type that the table has, or load into a new table"
    )
    return replace(there, type_sql=one.native.sql), refusals


def _keys(table: DeclaredTable, existing: TargetTable) -> list[str]:
    there = {key for key in existing.primary_key if key in table.names or key not in _OF_HISTORY}
    if not existing.primary_key or there == set(table.keys):
        return []
    return [
        f"{table.title} has the key ({', '.join(table.keys) or 'none'}), and {existing.name} has"
        f" ({', '.join(existing.primary_key)}): declare the key that the table has, or load into a new table"
    ]


_OF_HISTORY = frozenset({"valid_from"})  # scd2 adds it to the key


def extra(pipeline: Pipeline, followed: Followed, column: Column) -> tuple[str, str]:
    """A column of the source that the class lacks: a note, or a refusal."""
    title = followed.table.title
    if pipeline.on_drift == "ignore" and not pipeline.strict_schema:
        return f'{column.name} is not declared by {title} and left out (on_drift = "ignore")', ""
    return "", (
        f"column {column.name} of the source ({column.describe()}) is not declared by {title}:"
        f' declare it, leave it out of the query, or set on_drift = "ignore"'
    )


def missing(pipeline: Pipeline, followed: Followed, loaded: set[str]) -> tuple[list[str], list[str]]:
    """Columns of the class that the source does not bring: notes, and refusals."""
    notes, refusals = [], []
    there = followed.existing
    for one in followed.wanted:
        name = one.declared.name
        own = there.column(name, folding=followed.folding) if there is not None else None
        if name in loaded or (own is not None and own.name in loaded) or (own is not None and own.generated):
            continue
        filled = own is not None and (own.has_default or bool(own.identity))
        if there is not None and name in there.loaded:
            continue  # loaded before and gone now: told as drift
        if not one.declared.nullable and not filled:
            refusals.append(f"{followed.table.title}.{name} takes no NULL and is not in the source")
        elif pipeline.on_drift == "error" or pipeline.strict_schema:
            refusals.append(
                f"{followed.table.title}.{name} is not in the source: add it to the query,"
                f' or set on_drift = "ignore", which leaves it NULL'
            )
        elif there is None:
            notes.append(f"{name} is not in the source and stays NULL")
    return notes, refusals


def _same(left: str, right: str, *, folding: bool) -> bool:
    return left == right or (folding and folded(left) == folded(right))


def _literal(text: str) -> str:
    # Our templates replace a pair of braces.
    return "'" + text.replace("'", "''").replace("{}", "{' || '}") + "'"
