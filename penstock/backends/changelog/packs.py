"""Old segments in one file, so many at a time: a day of a log has hundreds of thousands of them.

    PPACK1\\n | segment | segment | … | where each begins and the last ends, 8 bytes each | its CRC, 4 | PPACK1\\n

Which numbers a pack holds, its name says: `SEGMENTS` that follow each other, the first of them a multiple of that.
Whoever looks for a segment needs no list of packs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.backends.changelog.segment import damaged

SUFFIX = ".pack"
SEGMENTS = 256
# Larger ones stay as they are: there are few of them for the room that they take, and to write them twice costs more.
MOST_BYTES = 64 * 1024 * 1024
MAGIC = b"PPACK1\n"
_CRC = struct.Struct(">I")


def numbers_beside(number: int) -> range:
    """The numbers that are in a pack together with this one."""
    first = number - number % SEGMENTS
    return range(max(first, 1), first + SEGMENTS)  # a log begins with 1


def encode(segments: Iterable[pa.Buffer]) -> Iterator[pa.Buffer | bytes]:
    """The parts of a pack, to be written one after the other."""
    yield MAGIC
    places = [len(MAGIC)]
    for segment in segments:
        yield segment
        places.append(places[-1] + segment.size)
    index = struct.pack(f">{len(places)}Q", *places)
    yield from (index, _CRC.pack(zlib.crc32(index)), MAGIC)


def segment_in(pack: pa.Buffer, number: int, name: str) -> pa.Buffer:
    """One segment of a pack; an error if the pack is not whole."""
    beside = numbers_beside(number)
    length = (len(beside) + 1) * 8
    end = pack.size - len(MAGIC) - _CRC.size
    if end < length + len(MAGIC) or pack.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
        raise damaged(name, "it is no whole pack")
    tail = pack.slice(end - length).to_pybytes()
    index, [crc] = tail[:length], _CRC.unpack_from(tail, length)
    if tail[length + _CRC.size :] != MAGIC or zlib.crc32(index) != crc:
        raise damaged(name, "its index is not what was written")
    begin, after = struct.unpack_from(">2Q", index, (number - beside[0]) * 8)
    return pack.slice(begin, after - begin)
