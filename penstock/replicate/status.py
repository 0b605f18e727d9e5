"""A replication as people see it: in the live table, in the state store, in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.backends.change_source import HeldLog
from penstock.backends.change_target import TableState
from penstock.backends.changes import Position
from penstock.replicate.reacting import Warned
from penstock.schema import TableName


@dataclass(frozen=True, slots=True)
class Status:
    """A replication at one moment, as it is shown."""

    name: str
    state: str
    position: Position | None
    captured: Position | None
    source_end: int
    tables: tuple[TableState, ...]
    copied: Mapping[TableName, tuple[int, int]] = field(default_factory=dict)  # ranges, of how many
    rows: Mapping[TableName, int] = field(default_factory=dict)  # copied since this start
    applied: Mapping[TableName, int] = field(default_factory=dict)  # changes since this start
    error: str = ""
    waiting: str = ""
    remedy: str = ""  # of the error
    circuits: Mapping[str, Any] = field(default_factory=dict)  # of both ends and of the copies, as records
    lag_seconds: float = 0.0  # since the first commit that was captured and is not applied
    altered: frozenset[TableName] = frozenset()  # whose form at the source no change has told of yet
    warnings: tuple[Warned, ...] = ()  # of tables of the target that are written to all the same
    held: HeldLog | None = None  # at the source, when it was last asked

    @property
    def lag_bytes(self) -> int:
        return max(0, self.source_end - self.position.end) if self.position is not None else 0

    def to_record(self) -> dict[str, Any]:
        """As JSON, for the state store and the command line."""
        return {
            "position": self.position.to_record() if self.position is not None else None,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": round(self.lag_seconds, 3),
            "held": self.held.to_record() if self.held is not None else None,
            "error": self.error,
            "remedy": self.remedy,
            "waiting": self.waiting,
            "circuits": dict(self.circuits),
            "warnings": [{"table": str(one.table), "what": one.what, "remedy": one.remedy} for one in self.warnings],
            "tables": [
                {
                    "table": str(state.source),
                    "target": str(state.target),
                    "phase": state.phase,
                    "altered": state.source in self.altered,
                    "ranges": list(self.copied.get(state.source, (0, 0))),
                    "copied": self.rows.get(state.source, 0),
                    "applied": self.applied.get(state.source, 0),
                    "reason": state.reason,
                    "remedy": state.remedy,
                    "attempts": state.attempts,
                    "retry_at": state.retry_at,
                }
                for state in self.tables
            ],
        }
