"""The messages of `pgoutput`, split column by column: bytes in, Arrow texts out. Nothing here touches a server.

Many messages are laid end to end in one buffer, and what is done per message is done by numpy on all of
them at once. Values stay the server's own text: what they mean is decided where they are applied, so that
a value nobody can read fails its table and never the capture.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

HEADER = 25  # of XLogData: 'w', where it begins, where the WAL ends, when it was sent

BEGIN, COMMIT, RELATION, TYPE, ORIGIN, MESSAGE = (ord(letter) for letter in "BCRYOM")
INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "IUDT")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = (ord(letter) for letter in "SEcA")
ROWS = np.array([INSERT, UPDATE, DELETE], dtype=np.uint8)

NEW, OLD, KEY = (ord(letter) for letter in "NOK")
NULL, UNCHANGED, TEXT = (ord(letter) for letter in "nut")

Bytes = np.ndarray  # of uint8
Numbers = np.ndarray  # of int64


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    key: bool  # part of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it before its first change."""

    oid: int
    schema: str
    table: str
    identity: str  # d: primary key, n: nothing, f: the whole row, i: an index
    columns: tuple[RelationColumn, ...]


def parse_relation(payload: bytes, *, streamed: bool = False) -> Relation:
    at = 5 if streamed else 1
    (oid,) = struct.unpack_from(">I", payload, at)
    schema, at = _text(payload, at + 4)
    table, at = _text(payload, at)
    identity = chr(payload[at])
    (count,) = struct.unpack_from(">H", payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = payload[at]
        name, at = _text(payload, at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", payload, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _text(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(b"\0", at)
    return payload[at:end].decode(), end + 1


SHORT = 12  # bytes of a text that a view holds itself
# A text at the very end is read with as many bytes behind it as any other.
_BEHIND = bytes(SHORT)


class Messages:
    """XLogData messages as they came, laid end to end."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self.data: Bytes = np.frombuffer(b"".join((*messages, _BEHIND)), np.uint8)
        ends = np.cumsum(lengths)
        self.starts: Numbers = ends - lengths + HEADER
        self.ends: Numbers = ends
        self.kinds: Bytes = self.data[self.starts]

    def payload(self, number: int) -> bytes:
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    def uint32(self, at: Numbers) -> Numbers:
        """The big-endian numbers that begin at these places."""
        found: Numbers = _at_every_byte(self.data, ">u4")[at].astype(np.int64)
        return found

    def uint64(self, at: Numbers) -> np.ndarray:
        found: np.ndarray = _at_every_byte(self.data, ">u8")[at].astype(np.uint64)
        return found


def _at_every_byte(data: Bytes, kind: str) -> np.ndarray:
    """The buffer as if a value of this kind began at every byte of it."""
    width = np.dtype(kind).itemsize
    return np.ndarray((data.size - width + 1,), dtype=kind, buffer=data, strides=(1,))


@dataclass(frozen=True, slots=True)
class Tuples:
    """The values of one tuple per row, a column each: texts, and where they were sent as unchanged."""

    values: list[pa.Array]
    unchanged: list[np.ndarray | None]  # of bool; None where no row has it
    ends: Numbers  # where what follows the tuple begins


def tuples(messages: Messages, at: Numbers, columns: int) -> Tuples:
    """The tuples that begin at these places (at their count of columns)."""
    data = messages.data
    at = at + 2
    values: list[pa.Array] = []
    unchanged: list[np.ndarray | None] = []
    for _ in range(columns):
        kinds = data[at]
        sent = kinds == TEXT
        # What lies behind a NULL is the next column's: read all the same, and not used.
        lengths = messages.uint32(np.minimum(at + 1, data.size - 4))
        if sent.all():
            values.append(_texts(data, at + 5, lengths, None))
            unchanged.append(None)
            at = at + 5 + lengths
            continue
        lengths = np.where(sent, lengths, 0)
        values.append(_texts(data, at + 5, lengths, sent))
        same = kinds == UNCHANGED
        unchanged.append(same if same.any() else None)
        at = at + 1 + np.where(sent, 4 + lengths, 0)
    return Tuples(values, unchanged, at)


# Per length, which of a view's twelve bytes are the text's; behind a short one stand zeros.
_KEPT = np.vstack([np.where(np.arange(SHORT) < length, 255, 0) for length in (*range(SHORT + 1), SHORT)]).astype("u1")


def _texts(data: Bytes, starts: Numbers, lengths: Numbers, valid: np.ndarray | None) -> pa.Array:
    """The slices as one Arrow array: as views into the buffer, which Arrow then copies at once."""
    heads = _at_every_byte(data, f"V{SHORT}")[np.minimum(starts, data.size - SHORT)]
    words = (heads.view(np.uint8).reshape(-1, SHORT) & _KEPT[np.minimum(lengths, SHORT + 1)]).view("<i4")
    long = np.flatnonzero(lengths > SHORT)
    words[long, 1] = 0  # the number of the buffer
    words[long, 2] = starts[long]
    views = np.empty((lengths.size, 4), "<i4")
    views[:, 0] = lengths
    views[:, 1:] = words
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    made = pa.Array.from_buffers(pa.string_view(), lengths.size, [bitmap, pa.py_buffer(views), pa.py_buffer(data)])
    return made.cast(pa.large_string())
