"""A table of the target that follows its source's form, in order with the rows around the change.

What adds comes first in the flush, what removes comes last; rows that are older than a new column have what they
have in the source. What the log cannot tell, because rows were rewritten without a word, is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.backends.applier import MISSING
from penstock.backends.base import Dialect, Execute, StagedColumn, Step, Target
from penstock.backends.change_source import ChangeSource
from penstock.backends.changes import VALUE, TableVersion
from penstock.errors import PlanRefused
from penstock.load.flush import metadata, own_columns
from penstock.replicate.tables import Kept
from penstock.replicate.versions import Differences, differences
from penstock.schema import AddColumn, ColumnDef, Schema, TableName, WidenColumn


class TableRewritten(Exception):
    """The rows of a table are others than the log has told: it must be copied again."""

    def __init__(self, table: TableName, why: str) -> None:
        super().__init__(why)
        self.table = table
        self.why = why


@dataclass(frozen=True, slots=True)
class Evolved:
    """A table in its new form, and what brings it there."""

    kept: Kept
    first: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()
    missing: pa.Table | None = None  # one row: what older rows have in new columns
    changed: bool = False  # the columns are others, or mean something else


class Evolver:
    def __init__(
        self, replication: str, source: ChangeSource, target: Target, dialect: Dialect, *, same_kind: bool
    ) -> None:
        self._replication = replication
        self._source = source
        self._target = target
        self._dialect = dialect
        self._same_kind = same_kind

    def evolve(self, kept: Kept, version: TableVersion) -> Evolved:
        found = differences(kept.source.version, version)
        if not found:
            return Evolved(kept if kept.source.version == version else _noted(kept, version))
        if found.rewritten or found.rekeyed:
            raise TableRewritten(version.table, "its key has changed" if found.rekeyed else "its rows were rewritten")
        made = self._kept(kept, version, found)
        table, quote = self._dialect.relation(kept.replica.table), self._dialect.quote
        added = {made.held(column.name) for column in found.added}
        renamed = [(kept.held(was), made.held(now)) for was, now in found.renamed]
        dropped = [kept.held(name) for name in found.dropped]
        # A name that is wanted again is made free first.
        wanted = added | {now for _, now in renamed}
        early = [name for name in dropped if name in wanted]
        first: list[Step] = [Execute(f"alter table {table} drop column {quote(name)}") for name in early]
        first += self._renames(table, renamed)
        natives = {staged.column.name: staged for staged in made.replica.columns}
        for name in sorted(added):
            staged = natives[name]
            first += self._run(AddColumn(kept.replica.table, ColumnDef(name, staged.native.sql)))
        for was, now in found.retyped:
            before = next(s for s in kept.replica.columns if s.source == was.name)
            name = made.held(now.name)
            if natives[name].native.sql != before.native.sql:
                first += self._run(WidenColumn(kept.replica.table, name, natives[name].native.sql))
        missing = {column.name: column.missing for column in found.added if column.missing is not None}
        fills = ", ".join(
            f"{quote(name)} = (select {natives[name].native.decode.replace('{}', quote(name))} from {MISSING})"
            for name in map(made.held, missing)
        )
        if missing:
            first.append(Execute(f"update {table} set {fills}"))
        late = [name for name in dropped if name not in wanted]
        last = [Execute(f"alter table {table} drop column {quote(name)}") for name in late]
        return Evolved(made, tuple(first), tuple(last), self._values(made, version, missing) if missing else None, True)

    def _renames(self, table: str, renamed: Sequence[tuple[str, str]]) -> list[Step]:
        """Two columns may have changed names with each other: then by way of names that nobody has."""
        before = {was for was, _ in renamed}
        pairs = list(renamed)
        if any(now in before for _, now in renamed):
            aside = [(was, f"_penstock_renamed_{number}") for number, (was, _) in enumerate(renamed)]
            pairs = [*aside, *((between, now) for (_, between), (_, now) in zip(aside, renamed, strict=True))]
        quote = self._dialect.quote
        return [Execute(f"alter table {table} rename column {quote(was)} to {quote(now)}") for was, now in pairs]

    def _run(self, ddl: AddColumn | WidenColumn) -> list[Step]:
        return self._target.steps([ddl])

    def _kept(self, kept: Kept, version: TableVersion, found: Differences) -> Kept:
        described = self._source.described(version)
        names = {now: was for was, now in found.renamed}
        texts = frozenset(c.name for c in described.schema if names.get(c.name, c.name) in kept.texts)
        wire = Schema.of([c.as_text() if self._same_kind or c.name in texts else c for c in described.schema])
        before = {staged.source: staged for staged in kept.replica.columns}
        other = {column.name for column in found.added} | {now.name for _, now in found.retyped}
        staged = []
        for column in wire:
            named = column.renamed(kept.held(column.name))
            if column.name in other:
                native = self._target.native(named, None, None)
                if native.verdict == "refused":
                    raise PlanRefused(
                        f"the new column {column.name} does not go into {native.sql}",
                        why=native.note,
                        remedy="leave it out: `exclude` in the table's options",
                        place=str(version.table),
                    )
            else:
                native = before[names.get(column.name, column.name)].native
            staged.append(StagedColumn(column.name, named, native))
        keys = tuple(kept.held(column.name) for column in version.columns if column.key)
        return Kept(described, replace(kept.replica, columns=tuple(staged), keys=keys), wire, texts, kept.names)

    def conform(self, kept: Kept) -> list[Step] | None:
        """What gives a table that is there, once it is empty, the columns of its copy; None if there is no table."""
        there = self._target.inspect(kept.replica.table)
        if there is None:
            return None
        wanted = {staged.column.name: staged.native.sql for staged in kept.replica.columns}
        ours = there.owners == {self._replication}
        own = set(own_columns(kept.replica))
        known = {column.name: column.type_sql for column in there.columns}
        table, quote = self._dialect.relation(kept.replica.table), self._dialect.quote
        # A table that somebody else has made keeps its columns; what it lacks is added.
        gone = [name for name, sql in known.items() if ours and name not in own and wanted.get(name) != sql]
        new = [name for name, sql in wanted.items() if name not in known or name in gone]
        steps: list[Step] = [Execute(f"alter table {table} drop column {quote(name)}") for name in gone]
        for name in new:
            steps += self._run(AddColumn(kept.replica.table, ColumnDef(name, wanted[name])))
        for column in metadata(self._dialect, soft=kept.replica.soft) if kept.replica.metadata else ():
            if column.name not in known:
                steps += self._run(AddColumn(kept.replica.table, column))
        return steps

    def with_texts(self, kept: Kept, texts: frozenset[str]) -> Kept:
        """The same table, some columns of which travel as text from now on."""
        wire = Schema.of([c.as_text() if c.name in texts else c for c in kept.wire])
        staged = []
        for column, before in zip(wire, kept.replica.columns, strict=True):
            named = column.renamed(kept.held(column.name))
            native = self._target.native(named, None, None) if column.name in texts else before.native
            staged.append(StagedColumn(column.name, named, native))
        return Kept(kept.source, replace(kept.replica, columns=tuple(staged)), wire, texts, kept.names)

    def _values(self, kept: Kept, version: TableVersion, missing: dict[str, str]) -> pa.Table:
        texts = pa.table({name: pa.array([text], VALUE) for name, text in missing.items()})
        made = self._source.values(version, kept.wire, texts)
        return made.rename_columns([kept.held(name) for name in made.column_names])


def _noted(kept: Kept, version: TableVersion) -> Kept:
    """The same form; what else a version says of the source may be newer."""
    return replace(kept, source=replace(kept.source, version=version))
