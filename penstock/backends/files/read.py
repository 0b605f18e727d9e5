"""Reading files: which they are, what columns they have, and how they are shared out among tasks.

A table is what its manifests name, and whatever files others have put there. The list is made once,
when the source is opened; every file is the same at the end of its reading as it was then, or the
run stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import Cursor, Partition, ReadRequest, RunContext, Shared, Source, Split, Window
from penstock.backends.files import csv, jsonl, parquet, types
from penstock.backends.files.config import Dialect, FilesConfig, format_of
from penstock.backends.files.infer import inferred
from penstock.backends.files.jsontext import unquoted
from penstock.backends.files.manifest import Chain
from penstock.backends.files.place import (
    OWN_NAME,
    Found,
    Mark,
    Place,
    agreed_format,
    folder_values,
    found_files,
    locate,
)
from penstock.backends.files.texts import Unreadable, text_of, value_of, value_of_token
from penstock.backends.files.window import inside, null_count, upper_bound
from penstock.backends.sql import null_note
from penstock.errors import DataError, PlanRefused, SourceError, SourceMoved
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Schema
from penstock.schema.words import parse

# Below this, starting a task costs more than it saves.
MIN_PART_BYTES = 8 * 1024 * 1024
KEYS_SHOWN = 3


# What compression saves is not known before a file is read; it is seldom more than this.
UNPACKED = 10
VALUE_BYTES = 16  # at least, of each value: a column of equal ones is next to nothing in a file


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a table."""

    path: Path
    staged: Path | None  # where it is while its run has not moved it
    mark: Mark
    dialect: Dialect
    columns: tuple[Column, ...]  # that the file itself holds, in its order
    folders: tuple[tuple[str, str | None], ...] = ()
    rows: int | None = None
    own: bool = False
    lines: bool | None = None  # of CSV: whether it may be cut at any line; None: not known


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that one task reads."""

    entry: Entry
    groups: tuple[int, ...] | None = None  # of Parquet
    part: tuple[int, int] | None = None  # bytes of lines

    def read(self, columns: Sequence[Column], keys: Sequence[str], run: RunContext) -> Iterator[pa.RecordBatch]:
        """Batches of exactly these columns."""
        path = self.path()
        yield from _raw(self, path, columns, keys, run)
        self._same(path, "while it was read")

    def path(self) -> Path:
        """Where the file is: its run may move it at any moment."""
        for path in (self.entry.path, self.entry.staged, self.entry.path):
            if path is not None and path.exists():
                self._same(path, "since the run began")
                return path
        raise self._moved("since the run began")

    def _same(self, path: Path, when: str) -> None:
        try:
            mark = Mark.of(path)
        except FileNotFoundError:
            if self.entry.staged is not None and self.entry.path.exists():
                return  # moved to its place: the same file
            raise self._moved(when) from None
        if mark != self.entry.mark:
            raise self._moved(when)

    def _moved(self, when: str) -> SourceMoved:
        return SourceMoved(
            f"{self.entry.path} was replaced, written to or removed {when}",
            why="what was read of it is no one moment of it",
            remedy="run it again when nobody writes there; let writers use another name and rename when done",
        )


def _raw(
    piece: Piece, path: Path, columns: Sequence[Column], keys: Sequence[str], run: RunContext
) -> Iterator[pa.RecordBatch]:
    entry = piece.entry
    held = {column.name: column for column in entry.columns}
    names = [column.name for column in columns if column.name in held]
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    seen = 0
    for batch, tokens in _batches(piece, path, names, run):
        arrays = []
        for column in columns:
            if column.name in held:
                array = batch.column(column.name)
                arrays.append(_value(array, held[column.name], column, piece, (batch, keys, seen), tokens=tokens))
            else:
                arrays.append(_constant(entry, column, batch.num_rows))
        seen += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(piece: Piece, path: Path, names: Sequence[str], run: RunContext) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Batches as the file's format gives them, and whether the texts are JSON."""
    entry = piece.entry
    failpoint("read.open")
    if entry.dialect.format == "parquet":
        for batch in parquet.read(path, names, piece.groups, run):
            yield batch, False
    elif entry.dialect.format == "csv":
        own = [column.name for column in entry.columns]
        for batch in csv.read(path, entry.dialect, own, names, piece.part, run):
            yield batch, False
    elif entry.dialect.format == "jsonl":
        known = [column.name for column in entry.columns]
        for _, batch in jsonl.read(path, entry.dialect, names, known, piece.part):
            yield batch, True
    else:
        raise SourceError("the rows of ORC files are counted and read by Spark alone", remedy="use another format")


def _value(
    array: pa.Array,
    held: Column,
    wanted: Column,
    piece: Piece,
    place: tuple[pa.RecordBatch, Sequence[str], int],
    *,
    tokens: bool,
) -> pa.Array:
    entry = piece.entry
    try:
        if entry.dialect.format == "parquet":
            return types.convert(array, wanted.type)
        if pa.types.is_string(wanted.type):
            return unquoted(array) if tokens else array
        value = value_of_token(array, held.type) if tokens else value_of(array, held.type)
        return types.convert(value, wanted.type)
    except (Unreadable, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        batch, keys, seen = place
        places = error.places if isinstance(error, Unreadable) else []
        whole = piece.part is None and piece.groups is None
        where = f", row {seen + places[0] + 1}" if places and whole else ""
        shown = [key for key in keys if key in batch.schema.names]
        raise DataError(
            f"column {wanted.name} of {entry.path}{where} holds a value that is no {wanted.describe()}",
            why="its type is declared, or that of the table's other files",
            remedy="correct the value, or declare another type for the column",
            keys=tuple(_key(batch, shown, found, tokens=tokens) for found in places[:KEYS_SHOWN]) if shown else (),
        ) from error


def _key(batch: pa.RecordBatch, keys: Sequence[str], place: int, *, tokens: bool) -> str:
    cells = ((key, batch.column(key).slice(place, 1)) for key in keys)
    texts = ((key, text_of(unquoted(cell) if tokens else cell)[0].as_py()) for key, cell in cells)
    return ", ".join(f"{key}={text}" for key, text in texts)


def _constant(entry: Entry, column: Column, rows: int) -> pa.Array:
    """A column that the file's folders give, or that it does not have."""
    text = dict(entry.folders).get(column.name)
    if text is None:
        return pa.nulls(rows, column.type)
    try:
        value = value_of(pa.array([text]), column.type)
    except Unreadable as error:
        raise DataError(
            f"the folder of {entry.path} holds a value of {column.name} that is no {column.describe()}",
            remedy="rename the folder, or declare another type for the column",
        ) from error
    return pa.concat_arrays([value]).take(pa.array([0] * rows, pa.int32())) if rows else value.slice(0, 0)


@dataclass(frozen=True, slots=True)
class FilesPartition(Partition):
    """Pieces that one task reads, one after the other."""

    pieces: tuple[Piece, ...]
    columns: tuple[Column, ...]
    run: RunContext
    keys: tuple[str, ...] = ()
    window: Window | None = None
    cursor: Column | None = None
    limit: int | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        left, first = self.limit, True
        for batch in _sized(self._selected(), self.run):
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
            if first:
                first = False
                failpoint("read.batch")
            if left == 0:
                return

    def _selected(self) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.columns]
        for piece in self.pieces:
            if self.window is None or self.cursor is None:
                yield from piece.read(self.columns, self.keys, self.run)
                continue
            asked = [*self.columns, self.cursor] if self.cursor.name not in names else list(self.columns)
            typed = [self.cursor if column.name == self.cursor.name else column for column in asked]
            for batch in piece.read(typed, self.keys, self.run):
                kept = batch.filter(inside(self.window, batch.column(self.cursor.name)))
                yield _as_asked(kept, self.columns)


def _as_asked(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    arrays = [types.convert(batch.column(column.name), column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))


def _sized(batches: Iterator[pa.RecordBatch], run: RunContext) -> Iterator[pa.RecordBatch]:
    """Batches joined up to the run's batch size, and cut where they are larger."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _cut(batch, run):
            if kept and (rows + piece.num_rows > run.batch_rows or size + piece.nbytes > run.batch_bytes):
                yield pa.concat_batches(kept)
                kept, rows, size = [], 0, 0
            kept.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if kept:
        yield pa.concat_batches(kept)


def _cut(batch: pa.RecordBatch, run: RunContext) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or (batch.num_rows <= run.batch_rows and batch.nbytes <= run.batch_bytes):
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half), run)
    yield from _cut(batch.slice(half), run)


# ---------------------------------------------------------------- the source


class FilesSource(Source):
    """A table of files, as it is when the source is opened."""

    def __init__(self, config: FilesConfig, request: ReadRequest, run: RunContext) -> None:
        if request.table is None:
            raise SourceError("files are read by table, not by query", remedy="name a `table`")
        self._request = request
        self._run = run
        self._now = datetime.now(UTC)
        self._without_cursor: tuple[str, ...] = ()
        self.place = locate(config, request.table, exists=True)
        self.listing = Listing.of(config, self.place, run)

    @property
    def formats(self) -> frozenset[str]:
        """Of the files that there are."""
        return frozenset(entry.dialect.format for entry in self.listing.entries)

    def schema(self) -> Schema:
        return Schema.of(self.listing.columns)

    def primary_key(self) -> tuple[str, ...]:
        return ()

    def rows(self) -> int | None:
        counted = [entry.rows for entry in self.listing.entries]
        return sum(rows for rows in counted if rows is not None) if None not in counted else None

    def size(self) -> int:
        values = (self.rows() or 0) * len(self.listing.columns)
        return max(UNPACKED * sum(entry.mark.size for entry in self.listing.entries), VALUE_BYTES * values)

    def notes(self) -> tuple[str, ...]:
        return (*self.listing.notes, *self._without_cursor)

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.file(self.place.root),)

    # ------------------------------------------------------------ windows

    def upper(self, cursor: Cursor) -> str:
        return upper_bound(cursor, self._column(cursor.column), self._values(cursor.column), self._now)

    def _values(self, name: str) -> Iterator[pa.Array]:
        column = self._column(name)
        for entry in self.listing.entries:
            for batch in Piece(entry).read([column], (), self._run):
                yield batch.column(0)

    def _column(self, name: str) -> Column:
        for column in self.listing.columns:
            if column.name == name:
                return column
        names = ", ".join(column.name for column in self.listing.columns)
        raise SourceError(f"the source has no column {name!r}", remedy=f"its columns: {names}")

    def _check_nulls(self, window: Window) -> None:
        count = null_count(self._values(window.column))
        if not count or window.on_null != "error":
            self._without_cursor = null_note(window, count)
            return
        raise DataError(
            f"{count} rows have no value in the cursor column {window.column!r}",
            why="they belong to no window, so an incremental run would never load them",
            kept="nothing was committed",
            remedy='on_null_cursor = "include" or "skip"',
            place=self.place.shown,
            keys=self._null_keys(window.column),
        )

    def _null_keys(self, name: str) -> tuple[str, ...]:
        keys = [self._column(key) for key in self._request.keys if any(c.name == key for c in self.listing.columns)]
        if not keys:
            return ()
        found: list[str] = []
        for entry in self.listing.entries:
            for batch in Piece(entry).read([*keys, self._column(name)], (), self._run):
                for place in pa.compute.indices_nonzero(batch.column(name).is_null()).to_pylist():
                    if len(found) < KEYS_SHOWN:
                        found.append(_key(batch, [key.name for key in keys], place, tokens=False))
        return tuple(found)

    # ------------------------------------------------------------ how it is split

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        cursor = None
        if window is not None:
            self._check_nulls(window)
            cursor = self._column(window.column)
        parts, reason = share(self.listing.entries, 1 if self._request.limit is not None else max(want, 1))
        if self._request.partition_on is not None:
            reason += "; partition_on is for queries, files are split as they lie"
        made = [
            FilesPartition(pieces, tuple(columns), self._run, self._request.keys, window, cursor, self._request.limit)
            for pieces in parts
        ]
        return Split(tuple(made), reason)


def share(entries: Sequence[Entry], want: int) -> tuple[list[tuple[Piece, ...]], str]:
    """The files in at most `want` parts of about the same size."""
    total = sum(entry.mark.size for entry in entries)
    parts = max(1, min(want, total // MIN_PART_BYTES))
    if parts == 1:
        whole = tuple(Piece(entry) for entry in entries)
        return [whole] if whole else [], f"one partition: {len(entries)} files, {total:,} bytes"
    goal = total / parts
    shares: list[list[Piece]] = [[]]
    filled = 0.0
    for entry in entries:
        for piece, size in _units(entry, goal):
            if shares[-1] and filled + size / 2 > goal * len(shares) and len(shares) < parts:
                shares.append([])
            shares[-1].append(piece)
            filled += size
    made = [tuple(_merged(pieces)) for pieces in shares]
    return made, f"{len(made)} parts of {len(entries)} files, {total:,} bytes"


def _units(entry: Entry, goal: float) -> list[tuple[Piece, float]]:
    """The smallest pieces that a file may be cut into, with about their bytes."""
    size, dialect = entry.mark.size, entry.dialect
    whole: list[tuple[Piece, float]] = [(Piece(entry), float(size))]
    if size <= goal or (dialect.compression and dialect.format != "parquet"):
        return whole
    path = entry.path if entry.path.exists() else entry.staged or entry.path
    if dialect.format == "parquet":
        groups = parquet.row_groups(path)
        unpacked = sum(weight for _, weight in groups) or 1
        return [
            (Piece(entry, (number,)), size * weight / unpacked) for number, (_, weight) in enumerate(groups)
        ] or whole
    if dialect.format == "csv":
        free = entry.lines if entry.lines is not None else not csv.has_quoted_lines(path, dialect)
        if not free:
            return whole
    cuts = csv.cuts(path, size, max(2, round(size / MIN_PART_BYTES)))
    return [(Piece(entry, part=cut), float(cut[1] - cut[0])) for cut in cuts]


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbouring pieces of one file as one."""
    kept: Piece | None = None
    for piece in pieces:
        if kept is not None and kept.entry is piece.entry:
            if kept.groups is not None and piece.groups is not None:
                kept = replace(kept, groups=(*kept.groups, *piece.groups))
                continue
            if kept.part is not None and piece.part is not None:
                kept = replace(kept, part=(kept.part[0], piece.part[1]))
                continue
        if kept is not None:
            yield kept
        kept = piece
    if kept is not None:
        yield kept


# ---------------------------------------------------------------- what a table is


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table and its columns, at one moment."""

    entries: tuple[Entry, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    chain: Chain
    foreign: tuple[Found, ...]  # files of others that are data

    @staticmethod
    def of(config: FilesConfig, place: Place, run: RunContext) -> Listing:
        chain = Chain(place) if place.kind == "pattern" else Chain.read(place)
        own = _own_entries(chain)
        foreign = _foreign(place, chain)
        if chain.last is None and not foreign:
            raise SourceError(
                f"there is no data in {place.shown}",
                why="no file matches" if place.kind == "pattern" else "it holds no file",
                remedy="correct the name; names that begin with _ or . are not data",
            )
        others: list[Entry] = []
        # A table's one file that others have replaced is theirs as a whole.
        known = chain.last is not None and not (foreign and place.kind == "file")
        columns: tuple[Column, ...] = chain.last.columns if chain.last and known else ()
        notes: tuple[str, ...] = ()
        if foreign:
            others, columns, notes = _foreign_entries(config, place, foreign, columns, run)
            foreign = [file for file in foreign if any(file.path == entry.path for entry in others)]
        counted = f"{len(own)} files by {'manifests' if chain.last else 'no manifest'}, {len(others)} files of others"
        return Listing((*own, *others), columns, (counted, *notes), chain, tuple(foreign))


def _own_entries(chain: Chain) -> list[Entry]:
    entries = []
    for group in chain.groups:
        for file in group.files:
            final, staged = chain.paths(group, file)
            if chain.place.kind == "file" and not staged.exists() and not _still_ours(final, file.size, file.modified):
                continue
            entries.append(
                Entry(
                    final,
                    staged,
                    _mark_of(chain, final, staged, file.size),
                    group.dialect,
                    tuple(c for c in group.columns if c.name not in dict(file.folders)),
                    file.folders,
                    file.rows,
                    own=True,
                    lines=file.lines,
                )
            )
    return entries


def _still_ours(path: Path, size: int, modified: int) -> bool:
    """Whether a table's one file is the one that the manifest tells of: others may have replaced it."""
    try:
        mark = Mark.of(path)
    except FileNotFoundError:
        return False
    return (mark.size, mark.modified) == (size, modified)


def _mark_of(chain: Chain, final: Path, staged: Path, size: int) -> Mark:
    for path in (staged, final, staged, final):
        try:
            mark = Mark.of(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if mark.size != size:
            break
        return mark
    raise SourceError(
        f"{final} is not the file that its manifest tells of",
        why="it was removed, or changed since it was written",
        remedy=f"restore it; {chain.place.meta} tells which load it is of",
    )


def _foreign(place: Place, chain: Chain) -> list[Found]:
    """The files that no load of ours has written."""
    files = found_files(place)
    if place.kind == "pattern":
        ours = [file for file in files if OWN_NAME.fullmatch(file.path.name)]
        if ours:
            raise PlanRefused(
                f"{place.shown} matches files that Penstock has written",
                why=f"{ours[0].name} counts only if a manifest names it",
                remedy="name the table that they are of, not its files",
            )
        return files
    if place.kind == "file":
        known = [file for group in chain.groups for file in group.files]
        staged = any(chain.paths(group, file)[1].exists() for group in chain.groups for file in group.files)
        ours = [f for f in files if any((f.mark.size, f.mark.modified) == (k.size, k.modified) for k in known)]
        return [] if staged or ours else files
    return [
        file for file in files if not OWN_NAME.fullmatch(file.path.name) and chain.removed.get(file.name) != file.mark
    ]


def _foreign_entries(
    config: FilesConfig, place: Place, files: Sequence[Found], table: tuple[Column, ...], run: RunContext
) -> tuple[list[Entry], tuple[Column, ...], tuple[str, ...]]:
    """The files of others, and the table's columns: those that are known, or what the files tell."""
    wanted_format, data = agreed_format(place, config, list(files))
    notes: list[str] = []
    if len(data) < len(files):
        notes.append(f"{len(files) - len(data)} files are not {wanted_format} and left out")
    declared = {name: parse(text).column(name) for name, text in config.table(place.table).columns.items()}
    entries = []
    for file in data:
        dialect = config.dialect(place.table, wanted_format, format_of(file.name)[1])
        if wanted_format in ("csv", "jsonl") and format_of(file.name)[1] is None:
            dialect = replace(dialect, compression="")  # the option is about what is written
        columns = tuple(_columns_of(file, dialect, declared))
        folders = folder_values(file.name)
        clash = [name for name, _ in folders if any(column.name == name for column in columns)]
        if clash:
            raise PlanRefused(f"{file.path} has column {clash[0]} in itself and in its folder", remedy="rename one")
        rows = sum(rows for rows, _ in parquet.row_groups(file.path)) if wanted_format == "parquet" else None
        entries.append(Entry(file.path, None, file.mark, dialect, columns, folders, rows))
    known = tuple(table) or tuple(_unified(entries, declared))
    _require_columns(entries, known, declared, table)
    if not table and config.infers(place.table):
        open_ = {c.name for c in known if c.name not in declared and pa.types.is_string(c.type) and not c.logical}
        if wanted_format in ("csv", "jsonl") or any(entry.folders for entry in entries):
            known, told = _inferred(entries, known, open_, run)
            notes += told
    typed = {column.name: column for column in known}
    if wanted_format != "parquet":
        entries = [replace(e, columns=tuple(typed[c.name] for c in e.columns)) for e in entries]
    return entries, known, tuple(notes)


def _columns_of(file: Found, dialect: Dialect, declared: dict[str, Column]) -> list[Column]:
    if dialect.format == "parquet":
        return parquet.columns_of(file.path, declared)
    if dialect.format == "csv":
        if not dialect.header:
            if not declared:
                raise PlanRefused(
                    f"the columns of {file.path} have no names",
                    why="header = false, and none are declared",
                    remedy='declare the table\'s columns in their order: columns = { id = "bigint", … }',
                )
            names = list(declared)
        else:
            names = csv.header(file.path, dialect)
    elif dialect.format == "jsonl":
        names = list(declared) or jsonl.keys(file.path, dialect)
    elif declared:
        names = list(declared)
    else:
        raise PlanRefused(
            f"the columns of {file.path} are not known",
            why="ORC is read by Spark alone, which is not asked at planning",
            remedy='declare them: [connections.….tables.…] columns = { id = "bigint", … }',
        )
    return [declared.get(name, Column(name, pa.string())) for name in names]


def _unified(entries: Sequence[Entry], declared: dict[str, Column]) -> list[Column]:
    """The columns of all files: types that differ are widened where every value fits, otherwise told."""
    found: dict[str, tuple[Column, Entry]] = {}
    for entry in entries:
        for column in (*entry.columns, *(Column(name, pa.string()) for name, _ in entry.folders)):
            wanted = declared.get(column.name, column)
            if column.name not in found:
                found[column.name] = (wanted, entry)
                continue
            before, first = found[column.name]
            type_ = types.wider(before.type, wanted.type)
            if type_ is None or before.logical != wanted.logical:
                raise SourceError(
                    f"{first.path} and {entry.path} have different types of column {column.name}",
                    why=f"{before.describe()} and {wanted.describe()}",
                    remedy=f'declare it: columns = {{ "{column.name}" = "text" }}, or read the files apart',
                )
            nullable = before.nullable or wanted.nullable
            found[column.name] = (replace(before, type=type_, nullable=nullable), first)
    return [column for column, _ in found.values()]


def _require_columns(
    entries: Sequence[Entry], known: Sequence[Column], declared: dict[str, Column], table: Sequence[Column]
) -> None:
    """Every file has every column: one that lacks some would silently read as NULL."""
    names = {column.name for column in known}
    for entry in entries:
        have = {column.name for column in entry.columns} | {name for name, _ in entry.folders}
        lost, more = sorted((names | set(declared)) - have), sorted(have - names)
        if entry.dialect.format == "jsonl":
            lost = []  # a member that is missing is NULL
        if not lost and not more:
            continue
        other = "the table's manifest" if table else next((str(e.path) for e in entries if e is not entry), "`columns`")
        raise SourceError(
            f"{entry.path} and {other} have different columns",
            why=f"{', '.join(lost)} is missing in the file" if lost else f"only the file has {', '.join(more)}",
            remedy="read the files apart, each by its name, or write them with the same columns",
        )


def _inferred(
    entries: Sequence[Entry], known: tuple[Column, ...], open_: set[str], run: RunContext
) -> tuple[tuple[Column, ...], list[str]]:
    asked = [column for column in known if column.name in open_]
    if not asked:
        return known, []
    batches = (batch for entry in entries for batch in Piece(entry).read(asked, (), run))
    found = inferred(batches, [column.name for column in asked])
    made = tuple(replace(column, type=found.get(column.name, column.type)) for column in known)
    told = ", ".join(f"{column.name} {column.type}" for column in made if column.name in found)
    return made, [f"types inferred from every value: {told or 'none, all stay text'}"]
