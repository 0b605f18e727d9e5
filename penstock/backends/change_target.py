"""What a replication asks of its target: whole transactions, and with them how far each table has got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from penstock.backends.base import ConnectionConfig
from penstock.backends.changes import Batch, Position, TableVersion
from penstock.backends.steps import TableLoad
from penstock.errors import PenstockError
from penstock.schema import TableName

Phase = Literal["waiting", "copying", "catching up", "streaming", "failed"]


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of a replication, as the target itself knows it: written together with the rows it speaks of."""

    source: TableName
    target: TableName
    phase: Phase = "waiting"
    position: Position | None = None  # how far its rows are; None of one that streams: as far as the watermark
    copy: str = ""  # the run that copies it: what it has staged is found by this
    ranges: tuple[dict[str, Any], ...] = ()  # what the copy reads, each a part of it
    exact: int = 0  # the last moment that a part of it was read at: before it, the rows are of no one moment
    hidden: str = ""  # the table that has its rows until it joins
    version: TableVersion | None = None  # of the source, as its rows have it
    outline: str = ""  # of the source, taken before its copy: see `ChangeSource.outlines`
    texts: tuple[str, ...] = ()  # columns with values that only their text form carries: see BeyondArrow
    failed_in: str = ""  # the phase that it goes on with when it is tried again
    reason: str = ""
    remedy: str = ""
    attempts: int = 0
    retry_at: str = ""  # UTC

    def to_record(self) -> dict[str, Any]:
        record = {name: getattr(self, name) for name in _PLAIN}
        record |= {
            "source": str(self.source),
            "target": str(self.target),
            "ranges": list(self.ranges),
            "texts": list(self.texts),
            "position": self.position.to_record() if self.position is not None else None,
            "version": self.version.to_record() if self.version is not None else None,
        }
        return record

    @staticmethod
    def from_record(record: dict[str, Any]) -> TableState:
        position, version = record["position"], record["version"]
        return TableState(
            **{name: record[name] for name in _PLAIN},
            source=TableName.parse(record["source"]),
            target=TableName.parse(record["target"]),
            ranges=tuple(record["ranges"]),
            texts=tuple(record["texts"]),
            position=Position.from_record(position) if position is not None else None,
            version=TableVersion.from_record(version) if version is not None else None,
        )


_PLAIN = ("phase", "failed_in", "copy", "outline", "exact", "hidden", "reason", "remedy", "attempts", "retry_at")


@dataclass(frozen=True, slots=True)
class Applied:
    """How far a replication has got in a target, and which agent may go on."""

    epoch: int
    position: Position | None
    tables: tuple[TableState, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFlush:
    """One table's part of a flush: what is staged, and the statements over it."""

    source: TableName
    load: TableLoad
    upserts: pa.Table | None = None
    deletes: pa.Table | None = None
    missing: pa.Table | None = None
    evolved: bool = False  # the table has other columns after it
    hidden: TableName | None = None  # that becomes the table: what is remembered of its columns goes with it
    tag: str = ""  # of the names that `upserts` and `deletes` are staged under


@dataclass(frozen=True, slots=True)
class Logged:
    """Changes as the log has them, for a target that keeps them so."""

    batch: Batch
    folder: Path  # where the files of what is `stored` lie


@dataclass(frozen=True, slots=True)
class Flush:
    """Whole transactions of all tables between two positions: one transaction of the target."""

    before: Position | None
    after: Position | None  # None only while there is none: before the first copy
    tables: Iterable[TableFlush] = ()  # taken one at a time: together they may be more than fits into memory
    states: tuple[TableState, ...] = ()  # of the tables that this flush brings somewhere else
    forgotten: tuple[TableName, ...] = ()  # tables that belong to the replication no more
    logged: Logged | None = None  # instead of `tables`, for a target that is a log itself


class TableFailed(Exception):
    """One table keeps a flush from being applied."""

    def __init__(self, table: TableName, error: PenstockError) -> None:
        super().__init__(str(error))
        self.table = table
        self.error = error


class Applier(ABC):
    """One replication in one target. Only the agent whose epoch it is can commit."""

    texts_of: ClassVar[str] = ""  # the backend whose own texts this target reads as they are
    lasting: ClassVar[bool] = True  # what it holds outlives this process

    @property
    def log(self) -> Path | None:
        """Of a target that is a log itself: its folder. It is given changes as they are, and copies of tables."""
        return None

    @abstractmethod
    def claim(self) -> Applied:
        """Take the replication over: whoever had it before cannot commit any more."""

    @abstractmethod
    def flush(self, flush: Flush) -> None:
        """All of it in one transaction behind the fence, or nothing.

        One that raises may be there all the same, where the answer to its COMMIT was lost: `known` tells.
        """

    def known(self) -> Applied | None:
        """How far it has got, asked after a flush that raised; None where none that raised is ever there.

        Once this has answered, no flush from before it can be committed any more.
        """
        return None

    def silence(self) -> bool:
        """From now on let the triggers of the target's tables not fire in flushes, where it may; whether it does."""
        return False

    @abstractmethod
    def has_table(self, table: TableName) -> bool: ...

    @abstractmethod
    def remove(self) -> None:
        """Forget the replication; the tables stay as they are."""

    @abstractmethod
    def close(self) -> None: ...


class AppliesChanges(ABC):
    """Of a backend that a replication can go into."""

    @abstractmethod
    def applier(self, config: ConnectionConfig, replication: str) -> Applier: ...

    def left_at_target(self, replication: str) -> list[str]:
        """The statements that make the target forget a replication, for one that is not reached."""
        del replication
        return []

    def works_in(self, config: ConnectionConfig) -> ConnectionConfig:
        """The database whose tables a replication writes; another one where the target itself only shows them."""
        return config

    def log_of(self, config: ConnectionConfig, replication: str) -> Path | None:
        """As `Applier.log`, without opening anything."""
        del config, replication
        return None
