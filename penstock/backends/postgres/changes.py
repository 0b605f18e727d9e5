"""The stream of a slot as whole transactions: messages in, columns of changes out.

Rows are never touched one by one: all messages of a table that came together are split at once (`pgoutput.py`).
A transaction that the server sends in pieces before its end is kept apart, each row with the id of its
subtransaction, until the server says commit; what was aborted is left out then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends import changes
from penstock.backends.change_source import Scratch
from penstock.backends.changes import Batch, StoredChanges, TableChanges, TableVersion
from penstock.backends.postgres import pgoutput
from penstock.backends.postgres.pgoutput import Messages, Numbers, Relation, parse_relation
from penstock.schema import TableName

EPOCH_MICROS = 946_684_800_000_000  # from 1970-01-01 to 2000-01-01
SUB = "sub"  # of a row that is streamed: its subtransaction
# Of a transaction that is not over: what is more lies in files. A row may be of any size, so both count.
HELD_ROWS = 200_000
HELD_BYTES = 64 * 1024 * 1024

Describe = Callable[[Relation, TableVersion | None], TableVersion]
# Comes back once the catalog shows what a transaction has done: the log may tell of it a moment earlier.
Visible = Callable[[int], None]

_OPS = np.zeros(256, np.int8)
_OPS[[pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE]] = [changes.INSERT, changes.UPDATE, changes.DELETE]
_IS_ROW = np.zeros(256, bool)
_IS_ROW[[pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE]] = True
# Behind these nothing is half.
ENDS = frozenset({pgoutput.COMMIT, pgoutput.STREAM_STOP, pgoutput.STREAM_COMMIT, pgoutput.STREAM_ABORT})


@dataclass(slots=True)
class _Streamed:
    """A transaction that is not over: what has come of it so far."""

    xid: int = 0
    versions: dict[int, TableVersion] = field(default_factory=dict)
    told: list[tuple[Relation, TableVersion]] = field(default_factory=list)  # before the catalog could know of it
    pieces: list[TableChanges] = field(default_factory=list)
    stored: list[StoredChanges] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    aborted: list[int] = field(default_factory=list)
    messages: int = 0

    @property
    def large(self) -> bool:
        return self.rows > HELD_ROWS or self.bytes > HELD_BYTES


@dataclass(frozen=True, slots=True)
class _Half:
    """What the last messages have begun and not ended: a transaction sent whole, or a piece of a streamed one."""

    transaction: _Streamed
    streamed: bool

    @property
    def end(self) -> int:
        return pgoutput.STREAM_STOP if self.streamed else pgoutput.COMMIT


@dataclass(slots=True)
class _Part:
    """Messages of one way of sending: of transactions sent whole, or of one that is streamed."""

    numbers: Numbers  # of the messages, in order
    shift: int  # bytes between a message's kind and what it says
    tx: Numbers  # of each message
    seq: Numbers
    xids: Numbers  # of each message its transaction
    versions: dict[int, TableVersion]  # written to as relations are described
    known: dict[int, TableVersion]  # where the others are looked for
    told: list[tuple[Relation, TableVersion]] | None = None  # of a transaction that is not over, as it was described


class Decoder:
    """Keeps what later messages stand on: relations, and transactions that are on their way.

    One for each connection: after a new start the server sends all of it again.
    """

    def __init__(
        self, describe: Describe, visible: Visible, scratch: Scratch, known: Mapping[TableName, TableVersion]
    ) -> None:
        self._describe = describe
        self._visible = visible
        self._scratch = scratch
        self._versions: dict[int, TableVersion] = {}
        self._known = dict(known)  # by name: what was told last, of this start or of the one before
        self._streamed: dict[int, _Streamed] = {}
        self._half: _Half | None = None

    def feed(self, given: Sequence[bytes]) -> Batch:
        """The transactions that these messages end. What they leave half, the next ones go on with."""
        found: list[Batch] = []
        if self._half is not None:
            given, ended = self._go_on(given, self._half)
            found += ended
        whole = _whole(given)
        if whole:
            found.append(self._fed(given[:whole]))
        if whole < len(given):
            self._begin_half(given[whole:])
        return changes.joined(found) if found else Batch(changes.TRANSACTIONS.empty_table(), ())

    def _begin_half(self, given: Sequence[bytes]) -> None:
        for at, one in enumerate(given):
            kind = one[pgoutput.HEADER]
            if kind in (pgoutput.BEGIN, pgoutput.STREAM_START):
                streamed = kind == pgoutput.STREAM_START
                messages = Messages([one])
                xid = self._xid(messages, 0) if streamed else int(_begun(messages, np.zeros(1, np.int64))[0])
                begun = self._streamed.setdefault(xid, _Streamed(xid)) if streamed else _Streamed(xid)
                self._half = _Half(begun, streamed)
                self._go_on(given[at + 1 :], self._half)
                return

    def _go_on(self, given: Sequence[bytes], half: _Half) -> tuple[Sequence[bytes], list[Batch]]:
        """What stands behind the end of what was half, and the transaction that ends there."""
        end = next((at for at, one in enumerate(given) if one[pgoutput.HEADER] == half.end), None)
        messages = Messages(given if end is None else given[: end + 1])
        self._hold(messages, np.arange(len(given) if end is None else end), half.transaction, 4 if half.streamed else 0)
        if end is None:
            return [], []
        self._half = None
        if half.streamed:
            return given[end + 1 :], []
        tables, stored = tuple(self._end(half.transaction, 0)), tuple(half.transaction.stored)
        ended = Batch(_transactions(messages, np.array([end]), tables, stored), tables, stored)
        return given[end + 1 :], [ended]

    def _fed(self, given: Sequence[bytes]) -> Batch:
        messages = Messages(given)
        # What a streamed transaction has told of a table holds from its commit on, and is not told again: what stands
        # behind the commit is read after it.
        ends = np.flatnonzero(messages.kinds[:-1] == pgoutput.STREAM_COMMIT) + 1
        if ends.size == 0:
            return self._decoded(messages)
        parts = pairwise([0, *ends.tolist(), len(given)])
        return changes.joined([self._decoded(Messages(given[low:high])) for low, high in parts])

    def _decoded(self, messages: Messages) -> Batch:
        kinds = messages.kinds
        inside = np.cumsum(kinds == pgoutput.STREAM_START) > np.cumsum(kinds == pgoutput.STREAM_STOP)
        commits = np.flatnonzero((kinds == pgoutput.COMMIT) | (kinds == pgoutput.STREAM_COMMIT))
        tables = list(self._sent_whole(messages, np.flatnonzero(~inside), commits))
        stored: list[StoredChanges] = []
        # Pieces and ends of streamed transactions in the order in which they came.
        for number in np.flatnonzero(np.isin(kinds, _STREAM_ENDS)):
            kind = int(kinds[number])
            if kind == pgoutput.STREAM_START:
                self._piece(messages, int(number))
            elif kind == pgoutput.STREAM_ABORT:
                self._abort(messages, int(number))
            elif kind == pgoutput.STREAM_COMMIT:
                ended = self._streamed.pop(self._xid(messages, int(number)), _Streamed())
                self._describe_again(ended)
                tx = int(np.searchsorted(commits, number))
                tables += self._end(ended, tx)
                stored += [replace(one, tx=tx, aborted=tuple(ended.aborted)) for one in ended.stored]
        return Batch(_transactions(messages, commits, tables, stored), tuple(tables), tuple(stored))

    def _sent_whole(self, messages: Messages, numbers: Numbers, commits: Numbers) -> Iterator[TableChanges]:
        begins = np.flatnonzero(messages.kinds == pgoutput.BEGIN)
        before = np.searchsorted(begins, numbers, side="right") - 1
        begun = begins[np.maximum(before, 0)] if begins.size else np.zeros_like(numbers)
        xids = _begun(messages, begun) if begins.size else np.zeros_like(numbers)
        txs = np.searchsorted(commits, numbers)
        part = _Part(numbers, 0, txs, numbers - begun, xids, self._versions, self._versions)
        yield from self._changes(messages, part)

    def _piece(self, messages: Messages, start: int) -> None:
        stops = np.flatnonzero(messages.kinds[start:] == pgoutput.STREAM_STOP)
        numbers = np.arange(start + 1, start + int(stops[0]))
        xid = self._xid(messages, start)
        self._hold(messages, numbers, self._streamed.setdefault(xid, _Streamed(xid)), 4)

    def _hold(self, messages: Messages, numbers: Numbers, held: _Streamed, shift: int) -> None:
        """More of a transaction that is not over."""
        seq = held.messages + np.arange(numbers.size)
        held.messages += numbers.size
        # One that is sent whole has been committed: what it says of tables holds at once.
        versions = held.versions if shift else self._versions
        txs, xids = np.zeros(numbers.size, np.int64), np.full(numbers.size, held.xid, np.int64)
        part = _Part(numbers, shift, txs, seq, xids, versions, self._versions, held.told if shift else None)
        for piece in self._changes(messages, part):
            rows = piece.rows
            if not shift:
                rows = rows.append_column(SUB, pa.array(np.zeros(rows.num_rows, np.int64)))
            held.rows += rows.num_rows
            held.bytes += rows.nbytes
            held.pieces.append(TableChanges(piece.version, rows))
        if held.large:
            # What has come goes into files, which the segment will only point at.
            for piece in held.pieces:
                file, crc = self._scratch.put(piece.rows)
                held.stored.append(StoredChanges(piece.version, file, piece.rows.num_rows, crc, 0))
            held.pieces.clear()

    def _xid(self, messages: Messages, number: int) -> int:
        return int(messages.uint32(messages.starts[[number]] + 1)[0])

    def _abort(self, messages: Messages, number: int) -> None:
        """Of the whole, or of a subtransaction: its rows stay out at the end."""
        xid, sub = (int(messages.uint32(messages.starts[[number]] + at)[0]) for at in (1, 5))
        if xid == sub:
            for one in self._streamed.pop(xid, _Streamed()).stored:
                self._scratch.drop(one.file)
        elif xid in self._streamed:
            self._streamed[xid].aborted.append(sub)

    def _describe_again(self, ended: _Streamed) -> None:
        """What a transaction has altered itself, the catalog shows only now that it is committed."""
        if not ended.told:
            return
        self._visible(ended.xid)
        own: dict[TableName, TableVersion] = {}
        now: dict[TableVersion, TableVersion] = {}
        for relation, version in ended.told:
            before = own.get(version.table) or self._known.get(version.table)
            now[version] = own[version.table] = self._describe(relation, before)
        ended.versions = {oid: now.get(version, version) for oid, version in ended.versions.items()}
        ended.pieces = [TableChanges(now.get(one.version, one.version), one.rows) for one in ended.pieces]
        ended.stored = [replace(one, version=now.get(one.version, one.version)) for one in ended.stored]

    def _end(self, streamed: _Streamed, tx: int) -> Iterator[TableChanges]:
        # What an aborted transaction has said of a table never was: only now do its relations count.
        self._versions |= streamed.versions
        self._known |= {version.table: version for version in streamed.versions.values()}
        gone = pa.array(streamed.aborted, pa.int64())
        for piece in streamed.pieces:
            rows = piece.rows
            if streamed.aborted:
                rows = rows.filter(pc.invert(pc.is_in(rows[SUB], gone)))
            if rows.num_rows:
                rows = rows.drop_columns([SUB])
                yield TableChanges(
                    piece.version, rows.set_column(0, changes.TX, pa.array(np.full(rows.num_rows, tx, np.int32)))
                )

    # ------------------------------------------------------------ one way of sending

    def _before(self, part: _Part, name: TableName) -> TableVersion | None:
        """What was told of a table last; of a transaction that is not over, what it has told itself."""
        own = [version for version in part.versions.values() if part.shift and version.table == name]
        return own[-1] if own else self._known.get(name)

    def _changes(self, messages: Messages, part: _Part) -> Iterator[TableChanges]:
        kinds = messages.kinds[part.numbers]
        told: dict[int, list[tuple[int, TableVersion]]] = {}
        first = dict(part.known) | part.versions
        for at in np.flatnonzero(kinds == pgoutput.RELATION):
            relation = parse_relation(messages.payload(int(part.numbers[at])), streamed=part.shift > 0)
            name = TableName(relation.schema, relation.table)
            if part.told is None:
                self._visible(int(part.xids[at]))
            version = self._describe(relation, self._before(part, name))
            if part.told is not None:
                part.told.append((relation, version))
            else:
                self._known[name] = version
            told.setdefault(relation.oid, []).append((int(at), version))
            part.versions[relation.oid] = version
        rows = np.flatnonzero(_IS_ROW[kinds])
        if rows.size:
            oids = messages.uint32(messages.starts[part.numbers[rows]] + 1 + part.shift)
            for oid in np.unique(oids):
                of_table = rows[oids == oid]
                for within, version in _spans(of_table, first.get(int(oid)), told.get(int(oid), [])):
                    yield TableChanges(version, _rows(messages, part, within, version))
        for place in np.flatnonzero(kinds == pgoutput.TRUNCATE):
            for named in _truncated(messages, int(part.numbers[place]), part.shift):
                version = _version_at(int(place), first.get(named), told.get(named, []))
                yield TableChanges(version, _truncation(messages, part, int(place)))


def _whole(given: Sequence[bytes]) -> int:
    """How many of the messages stand before what is half."""
    return next((at for at in range(len(given), 0, -1) if given[at - 1][pgoutput.HEADER] in ENDS), 0)


def _begun(messages: Messages, begins: Numbers) -> Numbers:
    """The ids of the transactions that these messages begin."""
    return messages.uint32(messages.starts[begins] + 17)


_STREAM_ENDS = [pgoutput.STREAM_START, pgoutput.STREAM_ABORT, pgoutput.STREAM_COMMIT]


def _version_at(at: int, first: TableVersion | None, told: list[tuple[int, TableVersion]]) -> TableVersion:
    found = first
    for place, version in told:
        if place < at:
            found = version
    assert found is not None  # noqa: S101  the protocol describes a relation before its first change
    return found


def _spans(
    rows: Numbers, first: TableVersion | None, told: list[tuple[int, TableVersion]]
) -> Iterator[tuple[Numbers, TableVersion]]:
    """The rows of a table by the version that was told before them."""
    bounds = [-1, *(at for at, _ in told), np.iinfo(np.int64).max]
    for version, (low, high) in zip([first, *(v for _, v in told)], pairwise(bounds), strict=True):
        within = rows[(rows > low) & (rows < high)]
        if within.size:
            assert version is not None  # noqa: S101  as above
            yield within, version


def _rows(messages: Messages, part: _Part, at: Numbers, version: TableVersion) -> pa.Table:
    numbers = part.numbers[at]
    kinds = messages.kinds[numbers]
    width = len(version.columns)
    places = messages.starts[numbers] + 5 + part.shift
    marks = messages.data[places]
    columns = _head(part, at, _OPS[kinds])
    with_old = np.flatnonzero(marks != pgoutput.NEW)
    with_new = np.flatnonzero(kinds != pgoutput.DELETE)
    news = places + 1
    olds: list[tuple[str, pa.Array]] = []
    if with_old.size:
        old = pgoutput.tuples(messages, places[with_old] + 1, width)
        news[with_old] = old.ends + 1
        whole = version.identity == "full"
        for number, values in enumerate(old.values):
            if whole or version.columns[number].key:
                olds.append((f"o{number}", _spread(values, with_old, at.size)))
    if with_new.size:
        new = pgoutput.tuples(messages, news[with_new], width)
        for number, values in enumerate(new.values):
            columns[f"n{number}"] = _spread(values, with_new, at.size)
        for number, same in enumerate(new.unchanged):
            if same is not None:
                flags = np.zeros(at.size, bool)
                flags[with_new] = same
                columns[f"u{number}"] = pa.array(flags)
    columns |= dict(olds)
    if part.shift:
        columns[SUB] = pa.array(messages.uint32(messages.starts[numbers] + 1))
    return pa.table(columns, schema=_schema(list(columns)))


def _truncation(messages: Messages, part: _Part, at: int) -> pa.Table:
    one = np.array([at])
    columns = _head(part, one, np.array([changes.TRUNCATE], np.int8))
    if part.shift:
        columns[SUB] = pa.array(messages.uint32(messages.starts[part.numbers[one]] + 1))
    return pa.table(columns, schema=_schema(list(columns)))


def _truncated(messages: Messages, number: int, shift: int) -> list[int]:
    start = int(messages.starts[number]) + 1 + shift
    count = int(messages.uint32(np.array([start]))[0])
    return [int(oid) for oid in messages.uint32(start + 5 + 4 * np.arange(count))]


def _head(part: _Part, at: Numbers, ops: np.ndarray) -> dict[str, pa.Array]:
    return {
        "tx": pa.array(part.tx[at].astype(np.int32)),
        "seq": pa.array(part.seq[at]),
        "op": pa.array(ops),
    }


def _schema(names: Sequence[str]) -> pa.Schema:
    fields = {field.name: field for field in (changes.TX, changes.SEQ, changes.OP)}
    kinds = {"n": changes.VALUE, "o": changes.VALUE, "u": pa.bool_(), "s": pa.int64()}
    return pa.schema([fields.get(name) or pa.field(name, kinds[name[0]]) for name in names])


def _spread(values: pa.Array, rows: Numbers, size: int) -> pa.Array:
    """`values` of some rows as a column of all."""
    if rows.size == size:
        return values
    places = np.zeros(size, np.int64)
    places[rows] = np.arange(rows.size)
    absent = np.ones(size, bool)
    absent[rows] = False
    return values.take(pa.array(places, mask=absent))


def _transactions(
    messages: Messages, commits: Numbers, tables: Sequence[TableChanges], stored: Sequence[StoredChanges]
) -> pa.Table:
    # Of a streamed transaction the id comes first.
    shift = np.where(messages.kinds[commits] == pgoutput.STREAM_COMMIT, 4, 0)
    at = messages.starts[commits] + 2 + shift
    counts = np.zeros(commits.size, np.int64)
    for table in tables:
        counts += np.bincount(table.rows["tx"].to_numpy(), minlength=commits.size)
    for one in stored:
        counts[one.tx] += one.rows
    micros = messages.uint64(at + 16).astype(np.int64) + EPOCH_MICROS
    return pa.table(
        {
            "commit": pa.array(messages.uint64(at)),
            "end": pa.array(messages.uint64(at + 8)),
            "at": pa.array(micros).view(pa.timestamp("us", "UTC")),
            "changes": pa.array(counts),
        },
        schema=changes.TRANSACTIONS,
    )
