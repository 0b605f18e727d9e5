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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import TableName

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
        moved = bool(self.file and later.file) and self.file != later.file and self.stamp != later.stamp
        return moved or self.replaced(later)

    def replaced(self, later: TableVersion) -> bool:
        """Whether a column has gone and another of its name and type has come, and the versions look the same.

        The catalog is asked later than the log was written: nobody can tell which of the two a change is of.
        """
        pairs = list(zip(self.columns, later.columns, strict=False))
        if len(self.columns) != len(later.columns) or any((a.name, a.native) != (b.name, b.native) for a, b in pairs):
            return False
        return any(a.number and b.number and a.number != b.number for a, b in pairs)

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

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(table.rows.nbytes for table in self.tables)


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
