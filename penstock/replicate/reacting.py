"""Tables of the target that are there, and what they do by themselves with what is written into them.

Looked at before a table is written to, when it is tried again, and with every look at the source. One that could change
or leave out rows in silence is left alone; what else it does, people are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.backends.base import RunContext, Target
from penstock.backends.change_source import ChangeSource, Finding
from penstock.backends.change_target import Applier
from penstock.backends.reactions import Reaction, Reacts
from penstock.errors import PenstockError, PlanRefused
from penstock.observe import logs
from penstock.project.model import Project
from penstock.project.replications import Replication
from penstock.replicate.tables import SHOWN, Ends, Kept, target_name
from penstock.schema import TableName

log = logs.Log("replicate")


@dataclass(frozen=True, slots=True)
class Warned:
    """What people shall know of a table of the target, although it is written to."""

    table: TableName  # as the source calls it
    what: str
    remedy: str


class Reacting:
    """Of the tables of one replication. Used by the agent's own thread alone."""

    def __init__(self, replication: Replication, target: Target | None, applier: Applier) -> None:
        self._replication = replication
        self._target = target if isinstance(target, Reacts) else None
        self._applier = applier
        self._found: dict[TableName, list[Reaction]] = {}

    @property
    def warnings(self) -> tuple[Warned, ...]:
        found = sorted(self._found.items(), key=lambda item: str(item[0]))
        return tuple(Warned(name, one.what, one.remedy) for name, all_ in found for one in all_ if not one.refused)

    def refusals(self, tables: Mapping[TableName, Kept]) -> dict[TableName, PenstockError]:
        """Why some of these must not be written to, as they are now."""
        if self._target is None or not tables:
            return {}
        wanted = {kept.replica.table: kept.replica.keys for kept in tables.values()}
        found = self._target.reactions(wanted, silenced=self._applier.silence())
        refused = {}
        for name, kept in tables.items():
            reactions = found.get(kept.replica.table, [])
            self._tell(name, reactions)
            if any(one.refused for one in reactions):
                refused[name] = _refusal(name, kept.replica.table, reactions)
        return refused

    def refusal(self, kept: Kept) -> PenstockError | None:
        """Of one of them."""
        return self.refusals({kept.source.name: kept}).get(kept.source.name)

    def require(self, tables: Mapping[TableName, Kept]) -> None:
        """Before anything begins: with all of them refused, or one where that is to halt it, nothing does."""
        refused = self.refusals(tables)
        if not refused or (len(refused) < len(tables) and self._replication.on_table_error != "halt"):
            return
        shown = [refused[name] for name in sorted(refused, key=str)[:SHOWN]]
        raise PlanRefused(
            f"replication {self._replication.name} cannot start",
            why="; ".join(error.why for error in shown),
            kept="nothing was touched",
            remedy="; ".join(error.remedy for error in shown),
            place=self._replication.place,
        )

    def forget(self, name: TableName) -> None:
        self._found = {other: found for other, found in self._found.items() if other != name}

    def _tell(self, name: TableName, reactions: Sequence[Reaction]) -> None:
        before = self._found.get(name, [])
        for one in reactions:
            if one not in before and not one.refused:
                replication = self._replication.name
                log.warning(one.what, replication=replication, table=str(name), remedy=one.remedy)
        # Another one: who is shown it, in another thread, goes through the one before.
        self._found = {**self._found, name: list(reactions)}


def _refusal(name: TableName, table: TableName, reactions: Sequence[Reaction]) -> PlanRefused:
    refused = [one for one in reactions if one.refused]
    return PlanRefused(
        f"{table} does not take rows as they are",
        why="; ".join(one.what for one in refused),
        kept="it stays as it is",
        remedy="; ".join(one.remedy for one in refused),
        place=str(name),
    )


def prepared(
    project: Project, replication: Replication, ends: Ends, source: ChangeSource
) -> tuple[list[Finding], list[Finding]]:
    """What a start would refuse and warn of in the target, without an applier; a target that is away is a warning."""
    if ends.log_of_target(replication) is not None:
        return [], []
    try:
        target = ends.writer(RunContext.new(replication.name, project.root / ".penstock" / "staging"))
        try:
            found = _asked(replication, source, target)
        finally:
            target.close()
    except PenstockError as error:
        return [], [Finding(f"the target could not be looked at: {error}", error.remedy)]
    told = [(one.refused, Finding(one.what, one.remedy)) for one in found]
    return [one for refused, one in told if refused], [one for refused, one in told if not refused]


def _asked(replication: Replication, source: ChangeSource, target: Target) -> list[Reaction]:
    if not isinstance(target, Reacts):
        return []
    options = {TableName.parse(name): given for name, given in replication.options.items()}
    wanted = {}
    for table in source.tables():
        names = options[table.name].rename if table.name in options else {}
        wanted[target.qualify(target_name(replication, table.name))] = [names.get(key, key) for key in table.key]
    found = target.reactions(wanted, silenced=target.may_silence())
    return [one for reactions in found.values() for one in reactions]
