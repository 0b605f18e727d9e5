"""A log as the source of a replication: its copies are the first rows, its segments are the buffer.

Nothing is asked of the database that the log is of. Its values are that database's own texts; what they mean is read
by its backend, without a server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.backends.base import Partition, RunContext, TableInfo
from penstock.backends.change_source import (
    COPY_AGAIN,
    ChangeSource,
    ChangeStream,
    CopyMoment,
    Finding,
    Obstacle,
    ReadsTexts,
    ReplicatedTable,
    Scratch,
    TableRequest,
)
from penstock.backends.changelog.chain import Chain
from penstock.backends.changelog.config import ChangelogConfig
from penstock.backends.changelog.snapshots import Snapshot, Snapshots, read_piece
from penstock.backends.changes import ChangedColumn, Position, TableVersion
from penstock.backends.registry import backend
from penstock.errors import COPY_TABLE_AGAIN, PlanRefused, SourceError, Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Schema, TableName
from penstock.schema.words import parse


@dataclass(frozen=True, slots=True)
class PiecePartition(Partition):
    """One piece of a table's copy."""

    path: Path
    crc: int
    version: TableVersion
    columns: tuple[Column, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        failpoint("read.open")
        reader = texts_reader(self.version)
        places = {column.name: number for number, column in enumerate(self.version.columns)}
        schema = Schema.of(self.columns)
        for batch in read_piece(self.path, self.crc):
            named = {column.name: batch.column(f"n{places[column.name]}") for column in self.columns}
            rows = reader.text_values(self.version, schema, pa.table(named))
            failpoint("read.batch")
            yield from rows.combine_chunks().to_batches()


def texts_reader(version: TableVersion) -> ReadsTexts:
    """What reads the texts of a log: the backend that has printed them."""
    name = text_backend(version)
    found = backend(name)
    if not isinstance(found, ReadsTexts):
        raise Unsupported(
            f"the texts of {version.table} cannot be read without their server", why=f"they are those of {name}"
        )
    return found


def text_backend(version: TableVersion) -> str:
    return version.columns[0].native.partition(":")[0] if version.columns else ""


class LogMoment(CopyMoment):
    """The copies that a log has now, each of a moment of its own; the earliest of them is where a target begins."""

    def __init__(self, source: ChangelogSource, snapshots: Mapping[TableName, Snapshot]) -> None:
        self._source = source
        self._snapshots = dict(snapshots)
        earliest = min((one.position for one in snapshots.values()), key=lambda position: position.commit, default=None)
        self.origin = earliest.origin if earliest is not None else ""
        self.commit = earliest.commit + 1 if earliest is not None else 0
        self.at = datetime.now(UTC)

    def extent(self, table: TableName) -> tuple[Position, int]:
        found = self._copy(table)
        return found.position, found.exact

    def stamp(self, piece: dict[str, Any]) -> tuple[int, datetime]:
        return piece["commit"], datetime.fromisoformat(piece["at"])

    def ranges(self, table: TableName) -> list[dict[str, Any]]:
        found = self._copy(table)
        problem = self._source.unusable(found)
        if problem:
            raise PlanRefused(
                f"the log has no copy of {table} that its changes go on from",
                why=problem,
                kept="what the target has of it",
                remedy="copy the table anew into the log: `penstock replications resync` of the replication that writes"
                " it; this one then goes on by itself",
                place=str(table),
            )
        return [one.to_record() | {"number": found.number} for one in found.pieces]

    def partition(
        self, table: TableName, columns: Sequence[Column], piece: dict[str, Any], run: RunContext
    ) -> Partition:
        del run
        return self._source.partition(table, columns, piece)

    def _copy(self, table: TableName) -> Snapshot:
        if table not in self._snapshots:
            raise no_copy([table])
        return self._snapshots[table]

    def close(self) -> None:
        """It holds nothing: what is in a log stays."""


def no_copy(tables: Sequence[TableName]) -> PlanRefused:
    listed = ", ".join(map(str, tables))
    return PlanRefused(
        f"the log has no copy of {listed}",
        why="it has only changes: rows that were there before them would be missing in the target",
        remedy="read a files target, or a buffer with keep_copy = true, whose replication has copied the table",
        place=str(tables[0]),
    )


class ChangelogSource(ChangeSource):
    """Knows the log by its footers; asks only for those that came since it last looked."""

    def __init__(self, config: ChangelogConfig, tables: Sequence[TableRequest]) -> None:
        self._config = config
        self._requests = {one.name: one for one in tables}
        self._turn = threading.Lock()  # copies and flushes ask at once, each in a thread of its own
        self._chain = Chain(config.folder)
        self._snapshots = Snapshots(config.folder)
        self._versions: dict[TableName, TableVersion] = {}  # that the changes have told last
        self._told: dict[TableName, int] = {}  # and up to which commit
        self._skipped = 0  # up to there the log was begun anew: what lies before is no whole with what lies behind
        self._left: dict[TableName, int] = {}  # tables that who writes it has left out, and from which commit on
        self._first = self._last = 0  # numbers of the segments that were looked at
        self._look()

    def _look(self) -> None:
        with self._turn:
            self._look_on()

    def _look_on(self) -> None:
        if not self._first:
            self._first = self._chain.first()
            self._last = self._first - 1
        while self._first and self._chain.has(self._last + 1):
            footer = self._chain.footer(self._last + 1)
            self._last += 1
            if not footer["transactions"]["rows"] and footer["after"]["commit"] < footer["until"]["commit"]:
                self._skipped = footer["until"]["commit"]
            for name in footer["notes"].get("forgotten", ()):
                self._left[TableName.parse(name)] = footer["until"]["commit"]
            for one in (*footer["tables"], *footer["stored"]):
                version = TableVersion.from_record(one["version"])
                self._versions[version.table] = version
                self._told[version.table] = footer["until"]["commit"]

    @property
    def log(self) -> Path:
        return self._config.folder

    @property
    def texts_of(self) -> str:
        return next(map(text_backend, self._forms().values()), "")

    @property
    def end(self) -> Position | None:
        self._look()
        return Position.from_record(self._chain.footer(self._last)["until"]) if self._first else None

    def _forms(self) -> dict[TableName, TableVersion]:
        """Every table of the log, as its copy has it, or its changes where there is none."""
        self._look()
        return self._versions | {name: one.version for name, one in self._snapshots.newest().items()}

    def known(self) -> list[TableInfo]:
        copies = self._snapshots.newest()
        found = []
        for name, version in sorted(self._forms().items(), key=lambda item: str(item[0])):
            pieces = copies[name].pieces if name in copies else ()
            rows = sum(one.rows for one in pieces) if name in copies else None
            key = tuple(column.name for column in version.columns if column.key)
            found.append(TableInfo(name, "table", rows, sum(one.bytes for one in pieces), key))
        return found

    # ------------------------------------------------------------ tables

    def tables(self) -> list[ReplicatedTable]:
        return [self.described(version) for name, version in self._forms().items() if name in self._requests]

    def described(self, version: TableVersion) -> ReplicatedTable:
        columns = []
        for column in version.columns:
            word = parse(column.word)
            columns.append(Column(column.name, word.type, word.logical, column.native))
        key = tuple(column.name for column in version.columns if column.key)
        copy = self._snapshots.newest().get(version.table)
        size = sum(one.bytes for one in copy.pieces) if copy is not None else 0
        return ReplicatedTable(version.table, Schema.of(columns), key, version, size)

    def findings(self) -> list[Finding]:
        found = []
        forms = self._forms()
        for name, asked in self._requests.items():
            if asked.include or asked.exclude or asked.where:
                found.append(
                    Finding(
                        f"{name} is asked for in part, and a log has whole rows",
                        "take include, exclude and where to the replication that writes the log",
                    )
                )
            version = forms.get(name)
            unknown = [column for column in version.columns if column.key] if version is not None else []
            for column in unknown:
                assert version is not None  # noqa: S101  it has columns
                if texts_reader(version).text_keys(column, pa.array([], pa.large_string())) is None:
                    found.append(
                        Finding(
                            f"only its server knows which keys {column.name} of {name} are equal",
                            f'leave the table out: "!{name}"',
                        )
                    )
        return found

    def prepare(self) -> list[str]:
        return []

    def publish(self) -> None:
        """Nothing is made in a log that somebody else writes."""

    def change(self, tables: Sequence[TableRequest]) -> None:
        self._requests = {one.name: one for one in tables}

    # ------------------------------------------------------------ copies

    def begin(self) -> CopyMoment:
        lacking = [name for name in self._requests if name not in self._snapshots.newest()]
        if lacking:
            raise no_copy(lacking)
        moment = self.moment()
        for name in self._requests:
            moment.ranges(name)  # refuses a copy that the log does not go on from
        return moment

    def moment(self) -> CopyMoment:
        newest = self._snapshots.newest()
        return LogMoment(self, {name: one for name, one in newest.items() if name in self._requests})

    def unusable(self, copy: Snapshot) -> str:
        """Why a table cannot begin with this copy; "" if it can."""
        problem = self._problem(copy.position)
        if copy.position.commit < self._skipped:
            problem = "the log was begun anew since then, behind changes that it lacks"
        if copy.exact <= self._left.get(copy.table, -1):
            problem = "the replication that writes the log has left the table out since then"
        later = self._versions.get(copy.table)
        if problem or later is None or self._told[copy.table] < copy.exact or copy.version.continues(later):
            return problem
        return "its rows were rewritten, or its key has changed, and the log has no copy since then"

    def copies(self) -> Mapping[TableName, int]:
        self._look()
        copied = {name: one.exact for name, one in self._snapshots.newest().items()}
        # Of a table that is left out, no change is told any more: to go on as if there were none would be wrong.
        return copied | {name: left + 1 for name, left in self._left.items() if left >= copied.get(name, 0)}

    def partition(self, table: TableName, columns: Sequence[Column], piece: dict[str, Any]) -> Partition:
        """Of the very copy that the piece was cut from: a newer one may be there by now."""
        found = [one for one in self._snapshots.all() if one.number == piece["number"]]
        if not found:
            raise SourceError(
                f"the copy of {table} is gone from the log",
                remedy=COPY_TABLE_AGAIN,
                place=str(table),
            )
        return PiecePartition(self._snapshots.folder / piece["file"], piece["crc"], found[0].version, tuple(columns))

    # ------------------------------------------------------------ changes

    def obstacle(self, after: Position) -> Obstacle | None:
        problem = self._problem(after)
        return Obstacle("gap", problem, COPY_AGAIN) if problem else None

    def _problem(self, after: Position) -> str:
        self._look()
        first = self._chain.first()
        if not first:
            return ""
        begins = Position.from_record(self._chain.footer(first)["after"])
        if begins.origin != after.origin:
            return f"the log is of {begins.origin}, and not of {after.origin}"
        if begins.commit > after.commit:
            return "the changes behind it are gone from the log: it kept them not long enough"
        return ""

    def stream(self, after: Position, scratch: Scratch, known: Mapping[TableName, TableVersion]) -> ChangeStream:
        del after, scratch, known
        raise Unsupported("a log is read as it is, without a capture")

    def values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        return texts_reader(version).text_values(version, schema, rows)

    def key_texts(self, column: ChangedColumn, texts: pa.Array) -> pa.Array:
        found = backend(column.native.partition(":")[0])
        made = found.text_keys(column, texts) if isinstance(found, ReadsTexts) else None
        if made is None:
            raise Unsupported(f"only its server knows which keys {column.name} are equal")
        return made

    def mark(self) -> int:
        end = self.end
        return end.commit if end is not None else 0

    def remove(self) -> None:
        """Nothing was made."""

    def close(self) -> None:
        """It holds nothing."""
