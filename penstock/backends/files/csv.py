"""CSV: texts in rows. `""` is empty text, nothing at all is NULL, unless the options say otherwise."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from penstock.backends.files.config import Dialect
from penstock.backends.files.streams import BOM, CHUNK, UTF8, Bytes, sink
from penstock.backends.files.texts import text_of
from penstock.backends.steps import RunContext
from penstock.errors import DataError, PlanRefused, SourceError
from penstock.schema import Column

PLAIN = ",;|\t"  # delimiters that no number and no date holds
# The first rows of a file, for its header: this much of it, and if they are longer than that, so much.
FIRST_ROWS = (CHUNK, 64 * CHUNK)
# Arrow reads 32 blocks ahead of who takes the batches. Rows longer than one are read by blocks of a batch's size.
BLOCK = CHUNK


def _parse_options(dialect: Dialect, columns: int, wrong: list[Any], verdict: str) -> pa_csv.ParseOptions:
    def note(row: Any) -> str:
        wrong.append(row)
        return verdict

    return pa_csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote or False,
        double_quote=not dialect.escape,
        escape_char=dialect.escape or False,
        newlines_in_values=True,
        # Of one column, an empty line is a NULL.
        ignore_empty_lines=columns > 1,
        invalid_row_handler=note,
    )


def _read_options(size: int, names: Sequence[str] | None) -> pa_csv.ReadOptions:
    return pa_csv.ReadOptions(use_threads=False, block_size=size, column_names=list(names) if names else None)


def _convert_options(dialect: Dialect, names: Sequence[str]) -> pa_csv.ConvertOptions:
    return pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=list(names),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[dialect.null],
    )


def header(path: Path, dialect: Dialect) -> list[str]:
    """The names in the first row, each once."""
    for size in FIRST_ROWS:
        try:
            names = _first_row(path, dialect, size)
            break
        except pa.ArrowInvalid as error:
            if size == FIRST_ROWS[-1] or path.stat().st_size <= size:
                raise SourceError(
                    f"{path} has no header",
                    why="it is empty" if not path.stat().st_size else "its first rows are no CSV",
                    remedy="write at least a header, or remove the file",
                ) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        raise PlanRefused(
            f"the header of {path} has a name more than once" if twice else f"a column of {path} has no name",
            why=", ".join(twice) if twice else f"it is column {names.index('') + 1}",
            remedy="correct the header, or set header = false and declare the columns",
        )
    return names


def _first_row(path: Path, dialect: Dialect, size: int) -> list[str]:
    stream = Bytes(path, dialect.compression, encoding=dialect.encoding)
    try:
        options = _parse_options(dialect, 2, [], "skip")
        with pa_csv.open_csv(stream, _read_options(size, None), options) as reader:
            return list(reader.schema.names)
    except (UnicodeError, OSError) as error:
        raise _unreadable(path, dialect, error) from error
    finally:
        stream.close()


def read(
    path: Path,
    dialect: Dialect,
    names: Sequence[str],
    wanted: Sequence[str],
    part: tuple[int, int] | None,
    run: RunContext,
) -> Iterator[pa.RecordBatch]:
    """Batches with the wanted columns as text. `names` are those of the file, in its order."""
    given = 0
    try:
        for batch in _read(path, dialect, names, wanted, part, min(BLOCK, run.batch_bytes)):
            given += batch.num_rows
            yield batch
        return
    except _LongRow:
        pass  # found among what was read ahead: all rows before it may not have been given yet
    try:
        for batch in _read(path, dialect, names, wanted, part, run.batch_bytes):
            new = batch.slice(min(given, batch.num_rows))
            given -= batch.num_rows - new.num_rows
            yield new
    except _LongRow as error:
        raise SourceError(
            f"a row of {path} is longer than a batch", why="quotes that do not pair make such rows"
        ) from error


def _read(
    path: Path,
    dialect: Dialect,
    names: Sequence[str],
    wanted: Sequence[str],
    part: tuple[int, int] | None,
    block: int,
) -> Iterator[pa.RecordBatch]:
    start = part[0] if part is not None else 0
    has_header = dialect.header and start == 0
    if not wanted:
        wanted = names[:1]  # so that rows are counted
    wrong: list[Any] = []
    # Arrow drops a byte order mark at the start of whatever it reads; in the middle of a file it is a character.
    last = _last_row(dialect)
    row = (dialect.delimiter.join([last] * len(names)) + "\n").encode()
    before = BOM if start else b""
    stream = Bytes(path, dialect.compression, part, encoding=dialect.encoding, before=before, after=row)
    try:
        options = _parse_options(dialect, len(names), wrong, "error")
        reading = _read_options(block, None if has_header else names)
        with pa_csv.open_csv(stream, reading, options, _convert_options(dialect, wanted)) as reader:
            yield from _without_last(reader, last, path)
    except pa.ArrowInvalid as error:
        if stream.empty and not has_header:
            return
        if "straddling" in str(error):
            raise _LongRow from error
        raise _wrong(path, error, wrong, dialect) from error
    except (UnicodeError, OSError) as error:
        raise _unreadable(path, dialect, error) from error
    finally:
        stream.close()


class _LongRow(Exception):
    """A row lies across more than two blocks."""


def _last_row(dialect: Dialect) -> str:
    """A text that no file holds, for a row of our own after the last one."""
    letters = [mark for mark in string.ascii_letters if mark not in (dialect.delimiter, dialect.quote, dialect.escape)]
    return "".join(secrets.choice(letters) for _ in range(32))


def _without_last(batches: Iterator[pa.RecordBatch], last: str, path: Path) -> Iterator[pa.RecordBatch]:
    """All rows but our own: inside of quotes Arrow takes the rest of a file, ours with it, for one value."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows:
            if held is not None:
                yield held
            held = batch
    if held is None or held.column(0)[-1].as_py() != last:
        raise SourceError(
            f"{path} ends inside quotes",
            why="its quotes do not pair: it is cut off, or a value begins with a single quote",
            remedy='write it again; if quotes mean nothing in it, set quote = ""',
        )
    yield held.slice(0, held.num_rows - 1)


def _wrong(path: Path, error: Exception, wrong: Sequence[Any], dialect: Dialect) -> SourceError:
    """What Arrow says quotes the row: the text of a cell. Only its place is told."""
    if wrong:
        row = wrong[0]
        place = f"line {row.number} of {path}" if row.number else f"a row of {path}"
        return SourceError(
            f"{place} has {row.actual_columns} values instead of {row.expected_columns}",
            why="the row is ragged; lines are counted without those inside of quotes",
            remedy="correct the row, or the options delimiter, quote and escape",
        )
    text = str(error)
    if "UTF8" in text or "utf-8" in text:
        return _unreadable(path, dialect, error)
    if "compressed" in text.lower() or "zlib" in text.lower():
        return SourceError(f"{path} cannot be unpacked", why="it is cut off or damaged", remedy="write it again")
    return SourceError(
        f"{path} cannot be read as CSV", why="its rows do not follow the options", remedy="see its first rows"
    )


def _unreadable(path: Path, dialect: Dialect, error: Exception) -> SourceError:
    if isinstance(error, OSError) and not isinstance(error, UnicodeError):
        return SourceError(f"{path} cannot be read", why="it is cut off or damaged", remedy="write it again")
    return SourceError(
        f"{path} is not {dialect.encoding}",
        why="it holds bytes that are no text in that encoding",
        remedy='set `encoding`, for example encoding = "latin-1"',
    )


# ---------------------------------------------------------------- parts of a file


def has_quoted_lines(path: Path, dialect: Dialect) -> bool:
    """Whether a value may hold a line break: then the file must not be cut. Looks through all of it."""
    if dialect.escape:
        return True
    if not dialect.quote:
        return False
    quote, marks = ord(dialect.quote), [ord(mark) for mark in (dialect.delimiter, dialect.quote, "\n", "\r")]
    inside, before = 0, b"\n"
    with pa.OSFile(str(path), "rb") as file:
        rest: bytes = file.read(len(BOM)).removeprefix(BOM)
        while True:
            data = file.read(CHUNK)
            rest += data
            around_it = np.frombuffer(before + rest + b"\n", np.uint8)  # with the byte before, and an end after
            raw = around_it[1 : -1 if not data else -2]  # the last byte is looked at with the one after it
            quotes = np.flatnonzero(raw == quote)
            # To Arrow a quote opens at the start of a value only, and is a character elsewhere. Where every one
            # that would open stands at a start, and every one that would close at an end, or is doubled,
            # counting tells what lies inside; otherwise nothing does but reading.
            opens = (np.arange(len(quotes)) + inside) % 2 == 0
            if not np.isin(np.where(opens, around_it[quotes], around_it[quotes + 2]), marks).all():
                return True
            if len(quotes) or inside:
                ends = np.flatnonzero((raw == ord("\n")) | (raw == ord("\r")))
                if ((np.searchsorted(quotes, ends) + inside) % 2 == 1).any():
                    return True
            inside = (len(quotes) + inside) % 2
            if not data:
                return bool(inside)
            before, rest = (before + rest)[-2:-1], rest[-1:]


def cuts(path: Path, size: int, want: int) -> list[tuple[int, int]]:
    """The file in about `want` parts, each of whole lines."""
    bounds = [0]
    with pa.OSFile(str(path), "rb") as file:
        for number in range(1, want):
            place = max(size * number // want, bounds[-1])
            if (found := _next_line(file, place, size)) is not None and bounds[-1] < found < size:
                bounds.append(found)
    return list(zip(bounds, [*bounds[1:], size], strict=True))


def _next_line(file: Any, place: int, size: int) -> int | None:
    file.seek(place)
    while place < size:
        data = file.read(CHUNK)
        found = data.find(b"\n")
        if found >= 0:
            return int(place + found + 1)
        place += len(data)
    return None


# ---------------------------------------------------------------- writing


class Writer:
    """Writes canonical batches into a new file."""

    def __init__(self, path: Path, columns: Sequence[Column], dialect: Dialect, *, headed: bool = True) -> None:
        self._columns = list(columns)
        self._dialect = dialect
        self._stream = sink(path, dialect.compression)
        self.lines = True
        if dialect.header and headed:
            names = [self._quoted(pa.array([column.name]), first=place == 0) for place, column in enumerate(columns)]
            self._put(pc.binary_join_element_wise(*names, dialect.delimiter))

    def write(self, batch: pa.RecordBatch) -> None:
        arrays = [batch.column(column.name) for column in self._columns]
        texts = [self._text(array, first=place == 0) for place, array in enumerate(arrays)]
        if len(texts) == 1:
            self._put(pc.fill_null(texts[0], self._dialect.null))
            return
        options = {"null_handling": "replace", "null_replacement": self._dialect.null}
        self._put(pc.binary_join_element_wise(*texts, self._dialect.delimiter, **options))

    def _text(self, array: pa.Array, *, first: bool) -> pa.Array:
        text = text_of(array)
        plain = pa.types.is_boolean(array.type) or pa.types.is_integer(array.type) or pa.types.is_date32(array.type)
        plain = plain and not self._dialect.null and self._dialect.delimiter in PLAIN
        return text if plain else self._quoted(text, first=first)

    def _quoted(self, text: pa.Array, *, first: bool) -> pa.Array:
        """In quotes where it would be taken for something else: an end, a quote, NULL, or a byte order mark."""
        dialect = self._dialect
        marks = [dialect.delimiter, dialect.quote, dialect.escape, "\n", "\r"]
        if pc.any(pc.match_substring_regex(text, "[\n\r]")).as_py():
            self.lines = False
        special = "[" + "".join("\\" + mark if mark in "\\]^-[" else mark for mark in marks if mark) + "]"
        needs = pc.or_(pc.match_substring_regex(text, special), pc.equal(text, dialect.null))
        if first:  # of a line, and so it may be of a file, whose readers drop such a character
            needs = pc.or_(needs, pc.starts_with(text, BOM.decode()))
        if not pc.any(needs).as_py():
            return text
        if not dialect.quote:
            raise DataError(
                "a value needs quotes, and quote is empty",
                why="it holds the delimiter or a line break, begins with U+FEFF, or is the text that means NULL",
                remedy="set `quote`, or another delimiter",
            )
        if dialect.escape:
            inner = pc.replace_substring(text, dialect.escape, dialect.escape * 2)
            inner = pc.replace_substring(inner, dialect.quote, dialect.escape + dialect.quote)
        else:
            inner = pc.replace_substring(text, dialect.quote, dialect.quote * 2)
        return pc.if_else(needs, pc.binary_join_element_wise(dialect.quote, inner, dialect.quote, ""), text)

    def _put(self, rows: pa.Array) -> None:
        write_lines(self._stream, rows, self._dialect.encoding)

    def close(self) -> None:
        self._stream.close()

    def drop(self) -> None:
        self._stream.close()


def write_lines(stream: Any, rows: pa.Array, encoding: str = "utf-8") -> None:
    """Rows, each with a line's end, as the bytes that they are."""
    ended = pc.binary_join_element_wise(rows, "\n", "")
    if not len(ended):
        return
    _, offsets, data = ended.buffers()
    edges = np.frombuffer(offsets, np.int32)
    first, last = int(edges[ended.offset]), int(edges[ended.offset + len(ended)])
    body = data.slice(first, last - first)
    if encoding.lower() in UTF8:
        stream.write(body)
        return
    try:
        stream.write(body.to_pybytes().decode("utf-8").encode(encoding))
    except UnicodeEncodeError as error:
        raise DataError(
            f"a value has a character that {encoding} lacks",
            remedy="leave `encoding` out, which is utf-8, or write such columns in another form",
        ) from error
