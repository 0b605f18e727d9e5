"""Changes on their way from a source's log to a target: positions, transactions, rows. Data only.

A change is a row of an Arrow table, one table per source table and schema version:

    tx    which transaction of the segment        op    insert, update, delete, truncate
    seq   its place in that transaction, across all tables
    n0 …  the new values, column by column        o0 …  the old ones, where the source sent them
    u0 …  true where the source sent "unchanged" instead of a value: NULL is something else

Values are the source's own text. What they mean is decided where they are applied: a value that nobody can
read fails its table, and never the capture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.base import ConnectionConfig, Partition
from penstock.backends.steps import RunContext, TableLoad
from penstock.errors import PenstockError, Unsupported
from penstock.schema import Column, Schema, TableName

INSERT, UPDATE, DELETE, TRUNCATE = range(4)

TX = pa.field("tx", pa.int32(), nullable=False)
SEQ = pa.field("seq", pa.int64(), nullable=False)
OP = pa.field("op", pa.int8(), nullable=False)
VALUE = pa.large_string()  # offsets of 64 bits: one batch of a column may hold more than 2 GiB

TRANSACTIONS = pa.schema(
    [
        pa.field("commit", pa.uint64(), nullable=False),
        pa.field("end", pa.uint64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("changes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log, between two transactions.

    Order and skip by `commit` only; confirm to the server and start streaming at `end` only. One
    transaction's commit may equal the end of the one before: to skip by `end` would lose it, to start
    at `commit` would repeat one. Positions of two origins do not compare.
    """

    origin: str  # of Postgres: system identifier and timeline
    commit: int
    end: int

    def to_record(self) -> dict[str, Any]:
        return {"origin": self.origin, "commit": self.commit, "end": self.end}

    @staticmethod
    def from_record(record: dict[str, Any]) -> Position:
        return Position(record["origin"], record["commit"], record["end"])


@dataclass(frozen=True, slots=True)
class ChangedColumn:
    """A column as the log describes it."""

    name: str
    native: str  # the source's spelling of its type, as in `Column.native`
    key: bool  # part of what tells rows apart
    number: int = 0  # the source's own, which a rename keeps; 0 where it has none
    missing: str | None = None  # what rows have that are older than the column
    word: str = ""  # its canonical type (`schema.words`): for who reads the log without its server


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as it was when changes of it were made."""

    table: TableName
    columns: tuple[ChangedColumn, ...]
    identity: str  # key: by the columns that are keys; full: by the whole old row; none
    # Two versions with different files and different stamps: between them the rows were rewritten without a change.
    file: str = ""
    stamp: str = ""

    def continues(self, later: TableVersion) -> bool:
        """Whether the changes alone lead from rows of this version to those of a later one."""
        return not self.rewritten(later) and self._key == later._key

    @property
    def _key(self) -> frozenset[int | str]:
        return frozenset(column.number or column.name for column in self.columns if column.key)

    def rewritten(self, later: TableVersion) -> bool:
        """Whether rows may have other values in a later version, which nobody has told."""
        return bool(self.file and later.file) and self.file != later.file and self.stamp != later.stamp

    def to_record(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "identity": self.identity,
            "columns": [[c.name, c.native, c.key, c.number, c.missing, c.word] for c in self.columns],
            "file": self.file,
            "stamp": self.stamp,
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> TableVersion:
        columns = tuple(ChangedColumn(*column) for column in record["columns"])
        return TableVersion(
            TableName.parse(record["table"]), columns, record["identity"], record["file"], record["stamp"]
        )


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one version of one table, in the order of the log."""

    version: TableVersion
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Changes of one table that lie in a file of their own: a piece of a transaction too large to be held."""

    version: TableVersion
    file: str  # beside the segments
    rows: int
    crc: int
    tx: int
    aborted: tuple[int, ...] = ()  # subtransactions that were rolled back: their rows do not count

    def to_record(self) -> dict[str, Any]:
        names = ("file", "rows", "crc", "tx", "aborted")
        return {"version": self.version.to_record()} | {name: getattr(self, name) for name in names}

    @staticmethod
    def from_record(record: dict[str, Any]) -> StoredChanges:
        version, aborted = TableVersion.from_record(record["version"]), tuple(record["aborted"])
        return StoredChanges(version, record["file"], record["rows"], record["crc"], record["tx"], aborted)


@dataclass(frozen=True, slots=True)
class Segment:
    """Whole transactions between two positions."""

    after: Position
    until: Position
    transactions: pa.Table  # of TRANSACTIONS
    tables: tuple[TableChanges, ...] = ()
    stored: tuple[StoredChanges, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)  # heartbeats, DDL seen: for people and for the applier
    number: int = 0  # in its chain, of one that was read from there


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole transactions, in the order of their commits, as a stream gives them."""

    transactions: pa.Table  # of TRANSACTIONS
    tables: tuple[TableChanges, ...]
    stored: tuple[StoredChanges, ...] = ()

    @property
    def rows(self) -> int:
        held: int = sum(table.rows.num_rows for table in self.tables)
        return held + sum(one.rows for one in self.stored)


def joined(batches: Sequence[Batch]) -> Batch:
    """Several as one, their transactions numbered on."""
    if len(batches) == 1:
        return batches[0]
    first = 0
    by_version: dict[TableVersion, list[pa.Table]] = {}
    stored: list[StoredChanges] = []
    for batch in batches:
        stored += [replace(one, tx=one.tx + first) for one in batch.stored]
        for table in batch.tables:
            moved = pc.add(table.rows["tx"], pa.scalar(first, pa.int32()))
            by_version.setdefault(table.version, []).append(table.rows.set_column(0, TX, moved))
        first += batch.transactions.num_rows
    tables = tuple(
        TableChanges(version, pa.concat_tables(rows, promote_options="default")) for version, rows in by_version.items()
    )
    return Batch(pa.concat_tables([batch.transactions for batch in batches]), tables, tuple(stored))


def behind(batch: Batch, commit: int) -> Batch:
    """Without the transactions up to `commit`: after a new start a source sends again what was not confirmed."""
    commits = batch.transactions["commit"].to_numpy()
    seen = int((commits <= commit).sum())
    if seen == 0:
        return batch
    first = pa.scalar(seen, TX.type)
    tables = []
    for table in batch.tables:
        rows = table.rows.filter(pc.greater_equal(table.rows["tx"], first))
        if rows.num_rows:
            tables.append(TableChanges(table.version, rows.set_column(0, TX, pc.subtract(rows["tx"], first))))
    stored = tuple(replace(one, tx=one.tx - seen) for one in batch.stored if one.tx >= seen)
    return Batch(batch.transactions.slice(seen), tuple(tables), stored)


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
class ReplicatedTable:
    """A table that a replication is asked for, as the source has it."""

    name: TableName
    schema: Schema
    key: tuple[str, ...]
    version: TableVersion
    bytes: int = 0


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

    def successor(self, outline: str) -> TableName | None:
        """What the table of an outline is called now; None if it was dropped."""
        del outline
        return None

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


# ---------------------------------------------------------------- applying

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
        """All of it in one transaction behind the fence, or nothing."""

    @abstractmethod
    def has_table(self, table: TableName) -> bool: ...

    @abstractmethod
    def remove(self) -> None:
        """Forget the replication; the tables stay as they are."""

    @abstractmethod
    def close(self) -> None: ...


# ---------------------------------------------------------------- what a backend says it can do


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


class ReadsChanges(ABC):
    """Of a backend whose log can be read."""

    @abstractmethod
    def change_source(
        self, config: ConnectionConfig, names: LogNames, tables: Sequence[TableRequest]
    ) -> ChangeSource: ...


class ReadsTexts(ABC):
    """Of a backend whose log holds its own texts: what they mean, without its server."""

    @abstractmethod
    def text_values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        """As `ChangeSource.values`."""

    @abstractmethod
    def text_keys(self, column: ChangedColumn, texts: pa.Array) -> pa.Array | None:
        """As `ChangeSource.key_texts`; None where only the server can tell which keys are equal."""


class AppliesChanges(ABC):
    """Of a backend that a replication can go into."""

    @abstractmethod
    def applier(self, config: ConnectionConfig, replication: str) -> Applier: ...

    def works_in(self, config: ConnectionConfig) -> ConnectionConfig:
        """The database whose tables a replication writes; another one where the target itself only shows them."""
        return config

    def log_of(self, config: ConnectionConfig, replication: str) -> Path | None:
        """As `Applier.log`, without opening anything."""
        del config, replication
        return None
