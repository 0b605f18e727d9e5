"""Messages of `pgoutput`, byte by byte, as a server sends them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime

UNCHANGED = object()  # of a value that is too large to be sent again
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

Value = str | None | object


def data(payload: bytes) -> bytes:
    """In XLogData, as it comes over the link."""
    return b"w" + struct.pack(">QQQ", 1, 2, 3) + payload


def begin(end: int, xid: int = 7) -> bytes:
    return data(b"B" + struct.pack(">QqI", end, 0, xid))


def commit(commit: int, end: int, at: datetime = EPOCH) -> bytes:
    return data(b"C" + struct.pack(">BQQq", 0, commit, end, _micros(at)))


def relation(
    oid: int, table: str, columns: Sequence[tuple[str, int, bool]], identity: str = "d", sub: int | None = None
) -> bytes:
    """Columns by name, type and whether they belong to the identity."""
    made = struct.pack(">I", oid) + b"public\0" + table.encode() + b"\0" + identity.encode()
    made += struct.pack(">H", len(columns))
    for name, type_oid, key in columns:
        made += bytes([key]) + name.encode() + b"\0" + struct.pack(">Ii", type_oid, -1)
    return data(b"R" + _sub(sub) + made)


def insert(oid: int, *new: Value, sub: int | None = None) -> bytes:
    return data(b"I" + _sub(sub) + struct.pack(">I", oid) + b"N" + _tuple(new))


def update(
    oid: int, *new: Value, old: Sequence[Value] = (), key: Sequence[Value] = (), sub: int | None = None
) -> bytes:
    before = b"O" + _tuple(old) if old else b"K" + _tuple(key) if key else b""
    return data(b"U" + _sub(sub) + struct.pack(">I", oid) + before + b"N" + _tuple(new))


def delete(oid: int, *, old: Sequence[Value] = (), key: Sequence[Value] = (), sub: int | None = None) -> bytes:
    before = b"O" + _tuple(old) if old else b"K" + _tuple(key)
    return data(b"D" + _sub(sub) + struct.pack(">I", oid) + before)


def truncate(*oids: int, sub: int | None = None) -> bytes:
    return data(b"T" + _sub(sub) + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids))


def message(text: bytes) -> bytes:
    """A logical message, as a heartbeat is."""
    return data(b"M" + struct.pack(">BQ", 1, 5) + b"prefix\0" + struct.pack(">I", len(text)) + text)


def origin() -> bytes:
    return data(b"O" + struct.pack(">Q", 1) + b"elsewhere\0")


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return data(b"S" + struct.pack(">IB", xid, first))


def stream_stop() -> bytes:
    return data(b"E")


def stream_commit(xid: int, commit: int, end: int, at: datetime = EPOCH) -> bytes:
    return data(b"c" + struct.pack(">IBQQq", xid, 0, commit, end, _micros(at)))


def stream_abort(xid: int, sub: int) -> bytes:
    return data(b"A" + struct.pack(">II", xid, sub))


def _tuple(values: Sequence[Value]) -> bytes:
    made = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            made += b"n"
        elif value is UNCHANGED:
            made += b"u"
        else:
            text = str(value).encode()
            made += b"t" + struct.pack(">I", len(text)) + text
    return made


def _sub(sub: int | None) -> bytes:
    """Before the change of a streamed transaction: the id of its subtransaction."""
    return b"" if sub is None else struct.pack(">I", sub)


def _micros(at: datetime) -> int:
    return round((at - EPOCH).total_seconds() * 1_000_000)
