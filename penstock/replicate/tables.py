"""Which tables a replication has, where each goes, and how its rows are held there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.backends.base import Backend, Capabilities, ConnectionConfig, RunContext, StagedColumn, Target
from penstock.backends.change_source import ChangeSource, LogNames, ReadsChanges, ReplicatedTable, TableRequest
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.changelog.config import ChangelogConfig
from penstock.backends.registry import backend
from penstock.errors import ConfigError, PlanRefused, Unsupported
from penstock.load.flush import Replica
from penstock.observe import logs
from penstock.project.model import Project
from penstock.project.patterns import Pattern, clash, match_tables
from penstock.project.replications import Replication, TableOptions
from penstock.schema import Schema, TableName

log = logs.Log("replicate")

HIDDEN = "_penstock_copy_"
SHOWN = 5  # tables that an error names


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a replication, by configuration."""

    source: ConnectionConfig
    target: ConnectionConfig
    source_backend: Backend
    target_backend: Backend
    copy_from: ConnectionConfig | None = None

    def change_source(self, replication: Replication, tables: Sequence[TableRequest]) -> ChangeSource:
        assert isinstance(self.source_backend, ReadsChanges)  # noqa: S101  asked when they were found
        made = self.source_backend.change_source(self.source, log_names(replication), tables)
        if self.copy_from is not None:
            made.copies_from(self.copy_from)
        return made

    def applier(self, replication: Replication) -> Applier:
        assert isinstance(self.target_backend, AppliesChanges)  # noqa: S101  as above
        return self.target_backend.applier(self.target, replication.name)

    def log_of_target(self, replication: Replication) -> Path | None:
        """Of a target that is a log itself: its folder."""
        assert isinstance(self.target_backend, AppliesChanges)  # noqa: S101  as above
        return self.target_backend.log_of(self.target, replication.name)

    def writer(self, run: RunContext) -> Target:
        written = self._written()
        return backend(written.type).target(written, run)

    def _written(self) -> ConnectionConfig:
        assert isinstance(self.target_backend, AppliesChanges)  # noqa: S101  as above
        return self.target_backend.works_in(self.target)

    @property
    def capabilities(self) -> Capabilities:
        """Of the database whose tables are written."""
        return backend(self._written().type).capabilities


def log_names(replication: Replication) -> LogNames:
    return LogNames(replication.slot_name, replication.publication_name, own=replication.publication is not None)


def ends_of(project: Project, replication: Replication) -> Ends:
    source, target = source_of(project, replication), project.connection(replication.target)
    standby = project.connection(replication.copy_from) if replication.copy_from is not None else None
    if standby is not None and standby.type != source.type:
        raise ConfigError(
            f"copy_from = {replication.copy_from!r} is no standby of {replication.source!r}",
            why=f"one is {standby.type}, the other {source.type}",
            place=replication.place,
        )
    found = Ends(source, target, backend(source.type), backend(target.type), standby)
    for ability, given, does in (
        (ReadsChanges, found.source_backend, "be the source of a replication"),
        (AppliesChanges, found.target_backend, "be the target of a replication"),
    ):
        if not isinstance(given, ability):
            raise Unsupported(
                f"{given.capabilities.title} cannot {does}", kept="nothing was touched", place=replication.place
            )
    return found


def source_of(project: Project, replication: Replication) -> ConnectionConfig:
    """The connection that is read; of `replication:NAME`, the log that this other one writes."""
    written = replication.source_replication
    if written is None:
        return project.connection(replication.source)
    other = project.replication(written)
    target = project.connection(other.target)
    maker = backend(target.type)
    log = maker.log_of(target, other.name) if isinstance(maker, AppliesChanges) else None
    return ChangelogConfig(name=replication.source, path=str(log or other.buffer_folder(project.root)))


def requests(project: Project, replication: Replication, ends: Ends) -> list[TableRequest]:
    """The tables of the source that the patterns mean now."""
    known = ends.source_backend.tables(ends.source)
    names, idle = match_tables(replication.tables, known)
    if idle:
        raise ConfigError(
            f"there is no table {', '.join(idle)}",
            why=f"connection {replication.source!r} does not see it",
            remedy=f"`penstock tables list {replication.source}` shows what is there",
            place=replication.place,
        )
    exact = [pattern for text in replication.tables if (pattern := Pattern.parse(text.removeprefix("!"))).exact]
    literal = {name for name in names if any(one.fits(name) for one in exact)}
    ours = _filled(replication, ends, [name for name in names if name not in literal])
    names = [name for name in names if name not in ours]
    if not names:
        raise ConfigError(
            f"no table fits {', '.join(replication.tables)}",
            why="what fits is filled by replications: name it letter by letter" if ours else "",
            remedy=f"`penstock tables list {replication.source}` shows what is there",
            place=replication.place,
        )
    options = {TableName.parse(name): given for name, given in replication.options.items()}
    unmet = [str(name) for name in options if name not in names]
    if unmet:
        raise ConfigError(
            f"there are options for {', '.join(unmet)}, which is no table of the replication",
            why=f"its tables are {', '.join(map(str, names[:SHOWN]))}{', …' if len(names) > SHOWN else ''}",
            remedy="write its name with its schema, as the source has it; or take the options away",
            place=replication.place,
        )
    twice = clash(
        [(str(name), target_name(replication, name, options)) for name in names],
        folding=ends.target_backend.capabilities.case_insensitive,
    )
    if twice is not None:
        raise ConfigError(
            f"{twice[0]} and {twice[1]} would both go into {twice[2]}",
            remedy='target_name = "{schema}_{table}", or a target of its own for one of them',
            place=replication.place,
        )
    del project
    return [_request(name, options.get(name, TableOptions()), literal=name in literal) for name in names]


def _filled(replication: Replication, ends: Ends, names: Sequence[TableName]) -> set[TableName]:
    """Tables of these that replications fill: one that took them for its own would go round in circles."""
    assert isinstance(ends.source_backend, ReadsChanges)  # noqa: S101  asked when they were found
    written = ends.source_backend.written_by(ends.source, replication.name)
    for name in names:
        if written.get(name, replication.name) != replication.name:
            why = f"replication {written[name]} fills it"
            remedy = "name it letter by letter if it shall be replicated on"
            log.warning("a table is left out", replication=replication.name, table=str(name), why=why, remedy=remedy)
    return {name for name in names if name in written or name.table.startswith(HIDDEN)}


def _request(name: TableName, options: TableOptions, *, literal: bool) -> TableRequest:
    return TableRequest(name, options.include, options.exclude, options.where or "", literal)


def target_name(
    replication: Replication, source: TableName, options: Mapping[TableName, TableOptions] | None = None
) -> TableName:
    known = options or {TableName.parse(name): given for name, given in replication.options.items()}
    given = known.get(source)
    if given is not None and given.target is not None:
        return TableName.parse(given.target)
    name = replication.target_name.replace("{schema}", source.schema or "").replace("{table}", source.table)
    return TableName(replication.target_schema, name)


def hidden_name(replication: Replication, table: TableName, copy: str) -> str:
    """Of the table that a copy fills; of fixed length, and another for every copy."""
    digest = hashlib.sha256(f"{replication.name}:{table}:{copy}".encode()).hexdigest()[:16]
    return f"{HIDDEN}{digest}"


@dataclass(frozen=True, slots=True)
class Kept:
    """A table of the source with the table that it is kept in."""

    source: ReplicatedTable
    replica: Replica
    wire: Schema  # the forms in which its columns reach the target
    texts: frozenset[str] = frozenset()  # columns with values that only their text form carries
    names: Mapping[str, str] = field(default_factory=dict)  # of columns that are called otherwise in the target

    def held(self, column: str) -> str:
        """What a column of the source is called in the target."""
        return self.names.get(column, column)

    @staticmethod
    def plan(
        replication: Replication,
        source: ReplicatedTable,
        target: Target,
        texts: Iterable[str] = (),
        *,
        same_kind: bool,
    ) -> Kept:
        """With `same_kind`, the target reads the source's own texts."""
        odd = frozenset(texts)
        options = {TableName.parse(name): given for name, given in replication.options.items()}
        names = options[source.name].rename if source.name in options else {}
        wire = Schema.of([c.as_text() if same_kind or c.name in odd else c for c in source.schema])
        table = target.qualify(target_name(replication, source.name))
        existing = target.inspect(table)
        if existing is not None and existing.owners == {replication.name}:
            existing = None  # of our own making: a copy that replaces its rows gives it any form
        staged = []
        for column in wire:
            named = column.renamed(names.get(column.name, column.name))
            there = existing.column(named.name) if existing is not None else None
            native = target.native(named, there, None)
            if native.verdict == "refused":
                raise PlanRefused(
                    f"column {column.name} of {source.name} does not go into {native.sql}",
                    why=native.note,
                    remedy=native.remedy,
                    place=str(source.name),
                )
            staged.append(StagedColumn(column.name, named, native))
        assert target.dialect is not None  # noqa: S101  asked by the agent
        declared = bool(existing.primary_key) if existing is not None else target.dialect.declares_keys
        replica = Replica(
            table,
            tuple(staged),
            tuple(names.get(key, key) for key in source.key),
            soft=replication.deletes == "soft",
            metadata=replication.metadata_columns,
            declared=declared,
            truncates=replication.truncate_with == "truncate" and target.dialect.truncates,
        )
        return Kept(source, replica, wire, odd, names)

    def into(self, table: str) -> Kept:
        """The same, into a table beside it."""
        return replace(self, replica=replace(self.replica, table=TableName(self.replica.table.schema, table)))
