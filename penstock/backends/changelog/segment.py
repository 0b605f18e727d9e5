"""A segment as bytes: Arrow IPC per table, then a footer that says where each begins and what it must be.

    PSEG1\\n | transactions | table 0 | table 1 | … | footer (JSON) | length of footer, 8 bytes | its CRC, 4 | PSEG1\\n

The footer comes last, and its length is checked against the object's own: half an object is no segment.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from penstock.backends.changes import Position, Segment, StoredChanges, TableChanges, TableVersion
from penstock.errors import StateError
from penstock.schema import TableName

MAGIC = b"PSEG1\n"
TAIL = struct.Struct(">QI")
FORMAT = 1
# The forms of rows: segments are Arrow, the files of large transactions as they are asked for.
ARROW, PARQUET = "arrow", "parquet"
_PARQUET = b"PAR1"  # begins a file of Parquet


# Of the agent that a writer belongs to: how often the target was set back, and which agent of it that is. One that
# has a higher turn came later.
Turn = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Where a segment stands in its chain."""

    number: int
    writer: str  # of the capture that wrote it
    turn: Turn = (0, 0)


def encode(segment: Segment, link: Link) -> list[pa.Buffer | bytes]:
    """The object's parts, to be written one after the other."""
    parts: list[pa.Buffer | bytes] = [MAGIC]
    at = len(MAGIC)
    places = []
    for rows in (segment.transactions, *(table.rows for table in segment.tables)):
        body = encode_rows(rows)
        places.append(
            {"at": at, "bytes": body.size, "crc": zlib.crc32(body), "rows": rows.num_rows, "held": rows.nbytes}
        )
        parts.append(body)
        at += body.size
    footer = {
        "format": FORMAT,
        "number": link.number,
        "writer": link.writer,
        "turn": link.turn,
        "after": segment.after.to_record(),
        "until": segment.until.to_record(),
        "transactions": places[0],
        "tables": [
            {"version": table.version.to_record(), **place}
            for table, place in zip(segment.tables, places[1:], strict=True)
        ],
        "first_at": _first_at(segment.transactions),
        "stored": [one.to_record() for one in segment.stored],
        "notes": segment.notes,
    }
    text = json.dumps(footer, separators=(",", ":")).encode()
    parts += [text, TAIL.pack(len(text), zlib.crc32(text)), MAGIC]
    return parts


def _first_at(transactions: pa.Table) -> str | None:
    """When the first of them was committed, by the source's clock."""
    return transactions["at"][0].as_py().isoformat() if transactions.num_rows else None


def encode_rows(rows: pa.Table, form: str = ARROW) -> pa.Buffer:
    out = pa.BufferOutputStream()
    if form == PARQUET:
        pq.write_table(rows, out, compression="zstd")
        return out.getvalue()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(out, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return out.getvalue()


def footer_of(data: pa.Buffer, name: str) -> dict[str, Any]:
    """What the object says of itself; an error if it is not whole."""
    size = data.size
    ending = len(MAGIC) + TAIL.size
    if size < len(MAGIC) + ending or data.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
        raise damaged(name, "it does not begin as a segment does")
    tail = data.slice(size - ending, ending).to_pybytes()
    length, crc = TAIL.unpack_from(tail)
    if tail[TAIL.size :] != MAGIC or length > size - ending - len(MAGIC):
        raise damaged(name, "it does not end as a segment does")
    text = data.slice(size - ending - length, length).to_pybytes()
    if zlib.crc32(text) != crc:
        raise damaged(name, "its footer is not what was written")
    footer: dict[str, Any] = json.loads(text)
    if footer["format"] != FORMAT:
        raise StateError(
            f"the segment {name} has format {footer['format']}",
            why=f"this Penstock reads format {FORMAT}",
            remedy="use the Penstock that wrote it, or a newer one",
        )
    return footer


def decode(data: pa.Buffer, name: str, only: frozenset[TableName] | None = None) -> tuple[Segment, Link]:
    """With `only`, without the rows of other tables."""
    footer = footer_of(data, name)
    versions = [TableVersion.from_record(found["version"]) for found in footer["tables"]]
    wanted = [place for place, version in enumerate(versions) if only is None or version.table in only]
    bodies = _bodies(data, [footer["transactions"], *(footer["tables"][place] for place in wanted)], name)
    transactions = next(bodies)
    tables = tuple(TableChanges(versions[place], rows) for place, rows in zip(wanted, bodies, strict=True))
    segment = Segment(
        Position.from_record(footer["after"]),
        Position.from_record(footer["until"]),
        transactions,
        tables,
        tuple(StoredChanges.from_record(one) for one in footer["stored"]),
        footer["notes"],
        footer["number"],
    )
    return segment, Link(footer["number"], footer["writer"])


def _bodies(data: pa.Buffer, places: list[dict[str, Any]], name: str) -> Iterator[pa.Table]:
    for place in places:
        yield decode_rows(data.slice(place["at"], place["bytes"]), name, place["crc"], place["rows"])


def decode_rows(body: pa.Buffer, name: str, crc: int, count: int) -> pa.Table:
    if zlib.crc32(body) != crc:
        raise damaged(name, "a table in it is not what was written")
    parquet = body.slice(0, len(_PARQUET)).to_pybytes() == _PARQUET
    rows = pq.read_table(pa.BufferReader(body)) if parquet else pa.ipc.open_stream(body).read_all()
    if rows.num_rows != count:
        raise damaged(name, f"{count} rows were written, {rows.num_rows} are there")
    return rows


def damaged(name: str, why: str) -> StateError:
    return StateError(
        f"the segment {name} is damaged",
        why=why,
        kept="nothing of it was applied",
        remedy="restore the file from a copy, or resync the replication: `penstock replications resync NAME`",
    )
