"""JSON Lines: an object per line. Every token is kept as it is written, so that no digit is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.files import jsontext
from penstock.backends.files.bytetext import build
from penstock.backends.files.config import Dialect
from penstock.backends.files.csv import UTF8, write_lines
from penstock.backends.files.streams import Bytes, sink
from penstock.backends.files.texts import Unreadable, member, token_of
from penstock.errors import SourceError
from penstock.schema import Column

_BOM = b"\xef\xbb\xbf"


def blocks(path: Path, dialect: Dialect, part: tuple[int, int] | None) -> Iterator[tuple[int, pa.Array]]:
    """The lines of a file, so many at a time, and how many came before; checked to be JSON objects."""
    start, end = part if part is not None else (0, None)
    stream = Bytes(path, dialect.compression, start, end)
    before, rest = 0, b""
    try:
        while True:
            data = stream.read(jsontext.BLOCK)
            if not data and not rest:
                return
            if not before and not start:
                data = data.removeprefix(_BOM)
            whole, rest = _whole_lines(rest + data, last=not data)
            if whole:
                lines = _lines(path, whole, (start, before), dialect)
                yield before, lines.filter(pc.not_equal(lines, ""))
                before += len(lines)
            elif not data:
                return
    except OSError as error:
        raise SourceError(f"{path} cannot be read", why="it is cut off or damaged", remedy="write it again") from error
    finally:
        stream.close()


def _whole_lines(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    if last:
        return data, b""
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _lines(path: Path, data: bytes, before: tuple[int, int], dialect: Dialect) -> pa.Array:
    """`before` says where the part of the file begins, and how many lines of it came before."""
    if dialect.encoding.lower() not in UTF8:
        data = data.decode(dialect.encoding).encode()
    raw = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(raw == ord("\n"))
    if not len(stops) or stops[-1] != len(raw) - 1:
        stops = np.append(stops, len(raw))
    starts = np.concatenate([[0], stops[:-1] + 1])
    ends = np.minimum(stops + 1, len(raw))
    lines = pc.utf8_trim(_text(path, build(raw, ends - starts, pa.binary())), " \t\r\n")
    bad = pc.fill_null(pc.and_(pc.not_equal(lines, ""), pc.invert(pc.starts_with(lines, "{"))), False)
    if pc.any(bad).as_py():
        raise _no_object(path, before, int(pc.index(bad, True).as_py()))
    try:
        if pc.any(pc.not_equal(lines, "")).as_py():
            jsontext.check_lines(data)
    except pa.ArrowInvalid as error:
        raise _no_object(path, before, _first_wrong(lines)) from error
    return lines


def _text(path: Path, lines: pa.Array) -> pa.Array:
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{path} is not utf-8",
            why="it holds bytes that are no text",
            remedy='set `encoding`, for example "latin-1"',
        ) from error


def _first_wrong(lines: pa.Array) -> int:
    """The place of the first line that is no JSON, found by halves."""
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            jsontext.check(lines.slice(low, middle - low).filter(pc.not_equal(lines.slice(low, middle - low), "")))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def line_number(path: Path, before: tuple[int, int], place: int) -> int:
    """The number of a line in the whole file, for people; the lines of parts before are counted now."""
    start, lines = before
    stream = Bytes(path, "", 0, start, b"\n")
    while start and stream.read(jsontext.BLOCK):
        pass
    stream.close()
    return stream.marks + lines + place + 1


def _no_object(path: Path, before: tuple[int, int], place: int) -> SourceError:
    line = line_number(path, before, place)
    return SourceError(
        f"line {line} of {path} is not a JSON object",
        why="it is cut off, damaged, or several lines long",
        remedy="write one object per line",
    )


def keys(path: Path, dialect: Dialect) -> list[str]:
    """Every member's name in the file, in the order in which they come up."""
    found: dict[str, None] = {}
    for _, lines in blocks(path, dialect, None):
        if len(lines):
            names = jsontext.members(lines).names
            found.update(dict.fromkeys(pc.unique(names).to_pylist()))
    return list(found)


def read(
    path: Path, dialect: Dialect, wanted: Sequence[str], known: Sequence[str], part: tuple[int, int] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches with the tokens of the wanted members, and how many lines came before."""
    expected = pa.array(list(known), pa.string())
    for before, lines in blocks(path, dialect, part):
        if not len(lines):
            continue
        found = jsontext.members(lines)
        names = pc.unique(found.names)
        new = names.filter(pc.invert(pc.is_in(names, expected)))
        if len(new):
            raise SourceError(
                f"{path} has members that no column is declared for",
                why=", ".join(repr(name) for name in new.slice(0, 3).to_pylist()),
                remedy="declare them in `columns` of the table, or declare none",
            )
        try:
            arrays = [member(found, len(lines), name) for name in wanted]
        except Unreadable as error:
            raise SourceError(
                f"line {line_number(path, (part[0] if part else 0, before), error.places[0])} of {path}"
                " has a member twice",
                remedy="name its members apart",
            ) from error
        if not arrays:
            arrays, wanted_here = [pa.nulls(len(lines), pa.string())], [""]
        else:
            wanted_here = list(wanted)
        yield before, pa.RecordBatch.from_arrays(arrays, names=wanted_here)


class Writer:
    """Writes canonical batches into a new file."""

    def __init__(self, path: Path, columns: Sequence[Column], dialect: Dialect) -> None:
        self._columns = list(columns)
        self._stream = sink(path, dialect.compression)
        self._encoding = dialect.encoding
        self.lines = True

    def write(self, batch: pa.RecordBatch) -> None:
        names = [column.name for column in self._columns]
        texts = [token_of(batch.column(name)) for name in names]
        write_lines(self._stream, jsontext.objects(names, texts), self._encoding)

    def close(self) -> None:
        self._stream.close()

    def drop(self) -> None:
        self._stream.close()
