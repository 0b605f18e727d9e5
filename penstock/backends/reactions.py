"""What a target's tables do of their own accord with what a replication writes: triggers, rules, constraints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.schema import TableName


@dataclass(frozen=True, slots=True)
class Reaction:
    """One of them, of a table that is there."""

    what: str
    remedy: str = ""
    refused: bool = False  # rows could become others, or go, and nobody would be told


class Reacts(ABC):
    """Of a target whose tables may react."""

    def may_silence(self) -> bool:
        """Whether the connection's user may keep triggers from firing; asked without an applier."""
        return False

    @abstractmethod
    def reactions(
        self, tables: Mapping[TableName, Sequence[str]], *, silenced: bool
    ) -> dict[TableName, list[Reaction]]:
        """Of tables, each with what its rows are told apart by. `silenced`: as `Applier.silence` has answered."""


def by_rows(constraint: str, table: str, remedy: str) -> Reaction:
    """Of a constraint that is not put off to the end of a flush."""
    what = f"{constraint} of {table} is checked row by row: two rows that change values with each other fail the table"
    return Reaction(what, remedy)
