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
from penstock.backends.files.csv import write_lines
from penstock.backends.files.streams import BOM, Bytes, sink
from penstock.backends.files.texts import Unreadable, member, token_of
from penstock.errors import SourceError
from penstock.schema import Column


def blocks(path: Path, dialect: Dialect, part: tuple[int, int] | None) -> Iterator[tuple[int, int, jsontext.Members]]:
    """The objects of a file, so many at a time: how many lines came before, how many objects, and their members."""
    start = part[0] if part is not None else 0
    stream = Bytes(path, dialect.compression, part, encoding=dialect.encoding)
    before, rest, first = 0, b"", not start
    try:
        while True:
            data = stream.read(jsontext.BLOCK)
            last = not data
            if first:
                data, first = data.removeprefix(BOM), False
            whole, rest = _whole_lines(rest + data, last=last)
            if whole:
                lines = _lines(path, whole)
                full = lines.filter(pc.not_equal(lines, ""))
                if len(full):
                    yield before, len(full), _members(path, lines, full, (start, before))
                before += len(lines)
            if last:
                return
    except UnicodeError as error:
        raise _no_text(path, dialect.encoding) from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read", why="it is cut off or damaged", remedy="write it again") from error
    finally:
        stream.close()


def _whole_lines(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    if last:
        return data, b""
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _lines(path: Path, data: bytes) -> pa.Array:
    raw = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(raw == ord("\n"))
    if not len(stops) or stops[-1] != len(raw) - 1:
        stops = np.append(stops, len(raw))
    starts = np.concatenate([[0], stops[:-1] + 1])
    ends = np.minimum(stops + 1, len(raw))
    return pc.utf8_trim(_text(path, build(raw, ends - starts, pa.binary())), " \t\r\n")


def _members(path: Path, lines: pa.Array, full: pa.Array, before: tuple[int, int]) -> jsontext.Members:
    """The members of the lines that are not empty, each one object.

    `before` says where the part of the file begins, and how many lines of it came before.
    """
    try:
        return _taken_apart(full)
    except pa.ArrowInvalid as error:
        wrong = pc.indices_nonzero(pc.not_equal(lines, ""))[_first_wrong(full)].as_py()
        raise SourceError(
            f"line {line_number(path, before, wrong)} of {path} is not a JSON object",
            why="it is cut off, damaged, several lines long, several on one line, or holds a number beyond a double",
            remedy="write one object per line",
        ) from error


def _taken_apart(lines: pa.Array) -> jsontext.Members:
    if pc.all(pc.starts_with(lines, "{")).as_py() is False:
        raise pa.ArrowInvalid("a line is no object")
    jsontext.parsed(pc.binary_join_element_wise(lines, "\n", ""))
    return jsontext.members(lines)


def _text(path: Path, lines: pa.Array) -> pa.Array:
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise _no_text(path, "utf-8") from error


def _no_text(path: Path, encoding: str) -> SourceError:
    return SourceError(
        f"{path} is not {encoding}",
        why="it holds bytes that are no text in that encoding",
        remedy='set `encoding`, for example "latin-1"',
    )


def _first_wrong(lines: pa.Array) -> int:
    """The place of the first line that is not one object, found by halves."""
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _taken_apart(lines.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def line_number(path: Path, before: tuple[int, int], place: int) -> int:
    """The number of a line in the whole file, for people; the lines of parts before are counted now."""
    start, lines = before
    stream = Bytes(path, "", (0, start))
    while start and (data := stream.read(jsontext.BLOCK)):
        lines += data.count(b"\n")
    stream.close()
    return lines + place + 1


def keys(path: Path, dialect: Dialect) -> list[str]:
    """Every member's name in the file, in the order in which they come up."""
    found: dict[str, None] = {}
    for _, _, members in blocks(path, dialect, None):
        found.update(dict.fromkeys(pc.unique(members.names).to_pylist()))
    return list(found)


def read(
    path: Path, dialect: Dialect, wanted: Sequence[str], known: Sequence[str], part: tuple[int, int] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches with the tokens of the wanted members, and how many lines came before."""
    expected = pa.array(list(known), pa.string())
    for before, count, found in blocks(path, dialect, part):
        names = pc.unique(found.names)
        new = names.filter(pc.invert(pc.is_in(names, expected)))
        if len(new):
            raise SourceError(
                f"{path} has members that no column is declared for",
                why=", ".join(repr(name) for name in new.slice(0, 3).to_pylist()),
                remedy="declare them in `columns` of the table, or declare none",
            )
        try:
            arrays = [member(found, count, name) for name in wanted]
        except Unreadable as error:
            raise SourceError(
                f"line {line_number(path, (part[0] if part else 0, before), error.places[0])} of {path}"
                " has a member twice",
                remedy="name its members apart",
            ) from error
        if not arrays:
            arrays, wanted_here = [pa.nulls(count, pa.string())], [""]
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
