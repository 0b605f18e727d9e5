"""What a replication asks of its source: the tables, a moment to copy them at, and the log from there on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.backends.base import ConnectionConfig, Partition
from penstock.backends.changes import Batch, ChangedColumn, Position, TableVersion
from penstock.backends.steps import RunContext
from penstock.errors import Unsupported
from penstock.schema import Column, Schema, TableName


@dataclass(frozen=True, slots=True)
class LogNames:
    """How a replication calls what it makes on the source's server."""

    slot: str
    publication: str
    own: bool = False  # the publication is the user's: it is left as it is


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table of the source that is asked for."""

    name: TableName
    include: tuple[str, ...] = ()  # only these columns and the key; () for all
    exclude: tuple[str, ...] = ()  # all columns but these
    where: str = ""  # only these rows, in the source's own SQL
    literal: bool = True  # named letter by letter, not by a pattern


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must be put right before a replication starts."""

    what: str
    remedy: str


COPY_AGAIN = 'copy all of it again: `penstock replications resync NAME`, then start it; or on_slot_loss = "recopy"'


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a log cannot be read on behind a position."""

    state: str  # what the replication is in: gap, slot lost, publication lost, diverged
    why: str
    remedy: str = COPY_AGAIN
    healed: bool = True  # by copying every table again


@dataclass(frozen=True, slots=True)
class HeldLog:
    """What a source keeps of its log because we have not confirmed it."""

    bytes: int
    state: str  # in the source's own word
    left: int | None  # bytes until it throws that away; None without a limit
    warning: Finding | None = None  # that it soon will, or that its disk may fill

    def to_record(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "state": self.state,
            "left_bytes": self.left,
            "warning": self.warning.what if self.warning is not None else "",
            "remedy": self.warning.remedy if self.warning is not None else "",
        }


@dataclass(frozen=True, slots=True)
class ReplicatedTable:
    """A table that a replication is asked for, as the source has it."""

    name: TableName
    schema: Schema
    key: tuple[str, ...]
    version: TableVersion
    bytes: int = 0


class Scratch(ABC):
    """Where pieces of transactions that are not over are put, each in a file of its own."""

    @abstractmethod
    def put(self, rows: pa.Table) -> tuple[str, int]:
        """The file's name and its checksum; on return it is on the disk."""

    @abstractmethod
    def drop(self, file: str) -> None:
        """Of a transaction that was rolled back."""


class ChangeStream(ABC):
    """The log of a source from a position on, for one reader."""

    @property
    @abstractmethod
    def origin(self) -> str: ...

    @property
    @abstractmethod
    def source_end(self) -> int:
        """How far the source's log goes, as it says."""

    @property
    @abstractmethod
    def idle_end(self) -> int:
        """Up to there the log has nothing for us that is not durable yet: it may be kept as a position."""

    @abstractmethod
    def take(self, timeout: float) -> Batch | None:
        """The next whole transactions; None if nothing came in time. Raises what has ended the stream."""

    @abstractmethod
    def durable(self, end: int) -> None:
        """All that was taken is on the disk: the source need not keep what lies before `end`."""

    @abstractmethod
    def close(self) -> None: ...


class CopyMoment(ABC):
    """One moment of the source: all that committed before `commit`, and nothing else. Held until closed."""

    commit: int
    origin: str
    at: datetime  # by the source's clock

    @property
    def position(self) -> Position:
        """Where the log goes on behind it."""
        return Position(self.origin, self.commit - 1, self.commit)

    @property
    def exact(self) -> int:
        """Up to there the log may have what was read already: only behind it the rows are of one moment."""
        return self.commit

    def of(self, table: TableName) -> CopyMoment:
        """The moment that this table is read at, where not all are read from the same server."""
        del table
        return self

    def covers(self, table: TableName) -> bool:
        """Whether every change of the table from this moment on is sent: not of one that was published later."""
        del table
        return True

    def extent(self, table: TableName) -> tuple[Position, int]:
        """Where the log goes on behind a table's rows, and the last moment that one of them is of."""
        del table
        return self.position, self.exact

    def stamp(self, piece: dict[str, Any]) -> tuple[int, datetime]:
        """The moment that the rows of a piece are of."""
        del piece
        return self.commit, self.at

    @abstractmethod
    def ranges(self, table: TableName) -> list[dict[str, Any]]:
        """The table in pieces of about the same size, as JSON: they are read one by one, some perhaps later."""

    @abstractmethod
    def partition(
        self, table: TableName, columns: Sequence[Column], piece: dict[str, Any], run: RunContext
    ) -> Partition:
        """One of the pieces, at this moment. Raises `SourceMoved` if it is not what it was when it was cut."""

    def rows(self, version: TableVersion, keys: pa.Table) -> pa.Table:
        """The rows with these keys, texts by the columns' names, as they are at this moment; not those that are gone.

        The columns of both are texts, as the log has them, in the order of the version's columns.
        """
        raise Unsupported(f"{keys.num_rows} rows of {version.table} cannot be read by their keys")

    @abstractmethod
    def close(self) -> None: ...


class ChangeSource(ABC):
    """A database whose log is read: what it needs of the server, and how it is asked."""

    left_out: tuple[Finding, ...] = ()  # tables and columns that are asked for and not replicated, and why

    @property
    @abstractmethod
    def texts_of(self) -> str:
        """The backend whose own texts the values are."""

    @property
    def log(self) -> Path | None:
        """Of a source that is a durable log already: its folder, which is read as it is, without a capture."""
        return None

    @abstractmethod
    def tables(self) -> list[ReplicatedTable]:
        """Those that the patterns name now, with every one that cannot be replicated left out and told."""

    @abstractmethod
    def described(self, version: TableVersion) -> ReplicatedTable:
        """A table in the form that the log has told of."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """All that stands in the way, at once."""

    def advice(self) -> list[Finding]:
        """What would be better otherwise, and stands in nobody's way."""
        return []

    @abstractmethod
    def prepare(self) -> list[str]:
        """The statements that a DBA would run by hand, in order."""

    @abstractmethod
    def publish(self) -> None:
        """Make what the log needs to tell of the tables, where it is missing. What else `prepare` says is a DBA's."""

    @abstractmethod
    def change(self, tables: Sequence[TableRequest]) -> None:
        """From now on these are the tables of the replication: the log tells of the new ones, and not of the others.

        A moment that is taken afterwards is exact for the new ones.
        """

    def copies_from(self, config: ConnectionConfig) -> None:
        """Read the rows of tables with a key there, from a server that follows this one."""
        raise Unsupported(f"copy_from is nothing for a source of this kind: {config.name}")

    def place(self) -> str:
        """Which database it is, whatever way leads there; "" where nobody can tell."""
        return ""

    def outlines(self) -> dict[TableName, str]:
        """Of every table that is there: what its rows hang on and the log does not tell of.

        Another outline than before: rows have come or gone without a change, and the table is copied again.
        """
        return {}

    def altered(self, known: Mapping[TableName, TableVersion]) -> dict[TableName, TableVersion]:
        """Of these tables those whose form is another one now, or whose rows lie elsewhere.

        The log tells of a form only before the next change of the table: there may be none for long.
        """
        del known
        return {}

    def successor(self, outline: str) -> TableName | None:
        """What the table of an outline is called now; None if it was dropped."""
        del outline
        return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While an agent takes a replication over and begins it: another that starts at the same moment comes after.

        Else each would take away what the other has made, and find itself replaced by it.
        """
        yield

    @abstractmethod
    def begin(self) -> CopyMoment:
        """Make what is missing, and the log's beginning: from this moment on it is kept for us."""

    @abstractmethod
    def moment(self) -> CopyMoment:
        """Another exact moment, for a table that is copied again or joins later."""

    def copies(self) -> Mapping[TableName, int]:
        """Of a log: the moments of the copies that it has. A newer one is there because changes alone did not do."""
        return {}

    @abstractmethod
    def obstacle(self, after: Position) -> Obstacle | None:
        """Why the log cannot be read on behind this position; None if it can."""

    def held(self) -> HeldLog | None:
        """What it keeps of its log for us; None of one that keeps nothing for anybody."""
        return None

    @abstractmethod
    def stream(self, after: Position, scratch: Scratch, known: Mapping[TableName, TableVersion]) -> ChangeStream:
        """`known` are the versions that the log has told last."""

    @abstractmethod
    def values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        """Columns of texts, named as in `schema`, as its canonical types."""

    @abstractmethod
    def key_texts(self, column: ChangedColumn, texts: pa.Array) -> pa.Array:
        """Texts of a key column, changed so that they are equal where the source calls the values equal."""

    @abstractmethod
    def mark(self) -> int:
        """A place in the log, marked if need be: whose end lies behind it has all that is committed now."""

    def beat(self, end: int) -> bool:
        """Write something for us into a log that has gone on far behind `end` without it; whether it was wanted.

        A source keeps what its reader has not confirmed, and a reader confirms what it has got: on a server that is
        busy with others, one that gets nothing would keep it for ever.
        """
        del end
        return False

    @abstractmethod
    def remove(self) -> None:
        """Take back all that `begin` has made on the server."""

    @abstractmethod
    def close(self) -> None: ...


class ReadsChanges(ABC):
    """Of a backend whose log can be read."""

    @abstractmethod
    def change_source(
        self, config: ConnectionConfig, names: LogNames, tables: Sequence[TableRequest]
    ) -> ChangeSource: ...

    def written_by(self, config: ConnectionConfig, replication: str) -> Mapping[TableName, str]:
        """Tables there that a replication fills, this one or any other, each with whose it is."""
        del config, replication
        return {}

    def left_at_source(self, names: LogNames) -> list[str]:
        """The statements that take back what a replication has made there, for a server that is not reached."""
        del names
        return []


class ReadsTexts(ABC):
    """Of a backend whose log holds its own texts: what they mean, without its server."""

    @abstractmethod
    def text_values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        """As `ChangeSource.values`."""

    @abstractmethod
    def text_keys(self, column: ChangedColumn, texts: pa.Array) -> pa.Array | None:
        """As `ChangeSource.key_texts`; None where only the server can tell which keys are equal."""
