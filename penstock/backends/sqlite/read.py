"""Reading a SQLite file: one statement, one read transaction, in the worker that reads.

A read transaction of the driver would pin nothing for another process. So a table or query is one
partition, and what was planned is proved again in the worker's own transaction: the same file, the
same schema, every cell of the class that its column was planned with. More than one partition is
read only from a copy (see copies.py), which nobody changes. A database in memory is read in the same
way by the driver, which hands the rows out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import Check, Cursor, Partition, ReadRequest, RunContext, Shared, Source, Split, Window
from penstock.backends.exchange import Exchange
from penstock.backends.sql import KEYS_SHOWN, no_column, remembered, without_cursor
from penstock.backends.sqlite import types
from penstock.backends.sqlite.classes import class_check, class_error, value_error, wrong_cells
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import PREFIX, Session, bare, open_copy, open_source, plainly_named
from penstock.backends.sqlite.copies import LEAST_BYTES, LEAST_SHARE, MIN_ROWS, Copy
from penstock.backends.sqlite.decode import Wrong, as_text, canonical
from penstock.backends.sqlite.dialect import MAIN, SQLiteDialect, key_text
from penstock.backends.sqlite.encode import ARROW, class_of
from penstock.backends.sqlite.marks import FileMark
from penstock.backends.sqlite.types import StoredColumn, cell, quote
from penstock.backends.sqlite.window import astray, clock, condition, upper_bound
from penstock.backends.staging import StagingArea, check_token
from penstock.errors import ConfigError, DataError, PlanRefused, SourceError
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Schema, TableName
from penstock.schema.names import folded

# What the driver gathers before it gives it: no more rows, and no more bytes. Pieces are joined to `batch_bytes`.
PIECE_ROWS = 1_024
PIECE_BYTES = 16 * 1024 * 1024
# ADBC takes a column's type from its first values: the first row is ours, and dropped.
SENTINEL = {"INTEGER": "0", "REAL": "0.5", "TEXT": "''", "BLOB": "x''"}

SAMPLE_ROWS = 1_000
SCANNED_COLUMNS = 300  # at once, with five figures for each: a result has 2,000 columns at most
ROW_BYTES = 8  # of a row beside its cells
ONE_MOMENT = "a read transaction of SQLite is one connection's own"
CELLS = ("integer", "real", "text", "blob")  # as `typeof` names them, NULL aside
_AGAIN = re.compile(r":\d+$")


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of row ids of a copy: the `number`-th of so many."""

    copy: Path
    rowid: str  # how the row ids are called in this table
    number: int
    of: int

    def where(self, session: Session, relation: str) -> str:
        """Its bounds, from the copy itself: making it may have numbered the rows anew."""
        if self.of == 1:
            return ""
        low, high = session.query(f"select min({self.rowid}), max({self.rowid}) from {relation}")[0]
        if low is None:
            return ""
        edges = [low + (high - low + 1) * number // self.of for number in (self.number, self.number + 1)]
        tests = [f"{self.rowid} >= {edges[0]}"] if self.number else []
        tests += [f"{self.rowid} < {edges[1]}"] if self.number + 1 < self.of else []
        return " and ".join(tests)


@dataclass(frozen=True, slots=True)
class SQLitePartition(Partition):
    """One statement on the file, what its columns hold, and what they are asked for as."""

    config: SQLiteConfig
    mark: FileMark
    relation: str
    where: str
    limit: int | None
    columns: tuple[tuple[Column, StoredColumn], ...]
    keys: tuple[str, ...]
    run: RunContext
    place: str
    piece: Piece | None = None  # of a copy; the whole of the file itself otherwise

    def read(self) -> Iterator[pa.RecordBatch]:
        with self._open() as session:
            session.execute("begin")  # the checks and the rows are of one moment
            # Nothing is locked, and no moment fixed, before the first question.
            part = self
            if self.piece is None:
                self.mark.require(self.config, session)
            elif bounds := self.piece.where(session, self.relation):
                link = f"{self.where}\n  and" if self.where else "\nwhere"
                part = replace(self, where=f"{link} ({bounds})")
            failpoint("read.open")
            width = part._look(session)
            first = True
            with session.stream(part._sql(), max(1, min(PIECE_ROWS, PIECE_BYTES // width))) as reader:
                for batch in _joined(part._pieces(session, reader), self.run):
                    yield batch
                    if first:
                        first = False
                        failpoint("read.batch")

    def _open(self) -> Session:
        if self.piece is None:
            return open_source(self.config)
        folder = self.piece.copy.parent
        check_token(folder, folder.name)
        return open_copy(self.config, self.piece.copy)

    def _look(self, session: Session) -> int:
        """Check the class of every cell, in one scan that also tells how wide a row is at most.

        The driver gathers rows by their number alone: so many wide ones would not fit into memory.
        """
        tests = _wrong_tests(stored for _, stored in self.columns)
        wide = [f"coalesce(octet_length({s.cell}), 0)" for _, s in self.columns if s.kind in ("TEXT", "BLOB")]
        fixed = 16 * len(self.columns) + 1
        if not tests and not wide:
            return fixed
        [(wrong, width)] = session.query(
            f"select max({types.joined(list(tests.values()), 'or') or 'false'}), max({types.joined(wide, '+') or '0'})"
            f" from {self.relation} as source{self.where}"
        )
        if wrong:
            self._raise_wrong(session, tests)
        return fixed + int(width or 0)

    def _sql(self) -> str:
        first = ", ".join(SENTINEL[stored.kind] for _, stored in self.columns)
        selected = ", ".join(stored.sql() for _, stored in self.columns)
        rows = f"select {selected}\nfrom {self.relation} as source{self.where}"
        if self.limit is not None:
            rows = f"select * from ({rows}\nlimit {self.limit})"
        return f"select {first}\nunion all\n{rows}"

    def _raise_wrong(self, session: Session, tests: Mapping[str, str]) -> None:
        rows = session.query(wrong_cells(tests, f"{self.relation} as source", self.where, shown_keys(self.keys)))
        if rows:
            name = rows[0][0]
            stored = next(stored for _, stored in self.columns if stored.name == name)
            raise class_error(stored, tuple(key for label, key in rows if label == name and key), self.place)

    def _pieces(self, session: Session, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        skip = 1
        for piece in reader:
            rows = piece.slice(skip)
            skip = 0
            if rows.num_rows:
                yield self._decoded(session, rows)

    def _decoded(self, session: Session, piece: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for array, (column, stored) in zip(piece.columns, self.columns, strict=True):
            if array.type != ARROW[stored.kind]:
                raise class_error(stored, (), self.place)
            try:
                if stored.kind == "TEXT":
                    array.validate(full=True)  # SQLite keeps any bytes in a text
                made = as_text(array, stored.column.type) if wants_text(column, stored) else None
                arrays.append(made if made is not None else canonical(array, column.type))
            except pa.ArrowInvalid as error:
                raise self._not_utf8(session, stored, array) from error
            except Wrong as wrong:
                raise self._wrong(session, stored, wrong) from wrong
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column, _ in self.columns])

    def _wrong(self, session: Session, stored: StoredColumn, wrong: Wrong) -> DataError:
        return value_error(stored, self._keys_where(session, f"{stored.cell} is ?", wrong.cell.as_py()), self.place)

    def _not_utf8(self, session: Session, stored: StoredColumn, array: pa.Array) -> DataError:
        octets = array.cast(pa.binary())[_first_invalid(array)].as_py()
        return DataError(
            f"column {stored.name!r} holds a text that is not UTF-8",
            why="SQLite keeps any bytes in a TEXT cell",
            keys=self._keys_where(session, f"cast({stored.cell} as blob) is ?", octets),
            remedy=f"read it as bytes in a query: cast({stored.name} as blob)",
            place=self.place,
        )

    def _keys_where(self, session: Session, test: str, value: object) -> tuple[str, ...]:
        if not self.keys:
            return ()
        link = "\nwhere" if not self.where else f"{self.where}\n  and"
        rows = session.query(
            f"select {shown_keys(self.keys)} from {self.relation} as source{link} {test}\nlimit {KEYS_SHOWN}", (value,)
        )
        return tuple(row[0] for row in rows)


def _first_invalid(array: pa.Array) -> int:
    """Found by halves: a batch is looked through a few dozen times at most."""
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            array.slice(start, middle - start).validate(full=True)
            start = middle
        except pa.ArrowInvalid:
            end = middle
    return start


def shown_keys(keys: Sequence[str]) -> str:
    return key_text(keys, cell) if keys else "''"


def _wrong_tests(columns: Iterable[StoredColumn]) -> dict[str, str]:
    return {stored.name: test for stored in columns if (test := stored.wrong())}


def wants_text(column: Column, stored: StoredColumn) -> bool:
    return pa.types.is_string(column.type) and not pa.types.is_string(stored.column.type)


def _joined(pieces: Iterator[pa.RecordBatch], run: RunContext) -> Iterator[pa.RecordBatch]:
    """Pieces joined up to the run's batch size and never far beyond it."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        if kept and (rows + piece.num_rows > run.batch_rows or size + piece.nbytes > run.batch_bytes):
            yield pa.concat_batches(kept)
            kept, rows, size = [], 0, 0
        kept.append(piece)
        rows += piece.num_rows
        size += piece.nbytes
    if kept:
        yield pa.concat_batches(kept)


class SQLiteSource(Source):
    """A table or query of a file. The driver's session asks, and holds no moment between two questions."""

    def __init__(
        self, config: SQLiteConfig, request: ReadRequest, run: RunContext, beside: SQLiteSource | None = None
    ) -> None:
        self._config = config
        self._request = request
        self._run = run
        self._without_cursor: tuple[str, ...] = ()
        self._now = clock()
        self._exchange = Exchange(run)
        self._session = open_source(config)
        try:
            self._mark = FileMark.of(config, self._session)
            # Two transactions have two moments: tables that belong together are read from one copy.
            self._copy: Copy = Copy(config, self._mark, run) if beside is None else beside._copy.share(self._mark)
            self._strict = self._base_table = self._with_rowid = False
            self._table = self._find(request.table) if request.table is not None else None
            self._relation = self._table_sql() if self._table is not None else self._query_sql()
            self._columns = {stored.name: stored for stored in self._describe()}
        except BaseException:  # Ctrl-C too
            self._session.close()
            raise

    # ------------------------------------------------------------ what it is

    def _find(self, name: TableName) -> TableName:
        require_main(name)
        rows = self._session.query(
            "select name, type, strict, wr from pragma_table_list where schema = 'main' and name = ? collate nocase",
            (name.table,),
        )
        if not rows:
            raise SourceError(
                f"there is no table {name.table} in {self._config.label}",
                remedy=f"see what there is: penstock tables list {self._config.name}",
            )
        table, kind, strict, without_rowid = rows[0]
        self._base_table = kind == "table"
        self._with_rowid = self._base_table and not without_rowid
        self._strict = bool(strict)
        return TableName(MAIN, table)

    def _table_sql(self) -> str:
        return SQLiteDialect().relation(self._table) if self._table is not None else ""

    def _query_sql(self) -> str:
        if self._request.query is None:
            raise ConfigError("a source needs a table or a query")
        query = bare(self._request.query)
        names = self._session.names(f"select * from (\n{query}\n) as source limit 0")
        self._refuse_texts_as_names(query)
        known = {folded(name) for name in names}
        # Around a query that gives `a` twice, SQLite calls the second one `a:1`.
        counted = Counter(own if (own := folded(_AGAIN.sub("", name))) in known else folded(name) for name in names)
        twice = sorted(name for name, count in counted.items() if count > 1)
        if twice:
            raise PlanRefused(
                "the query gives a name more than once",
                why=f"{', '.join(twice)} (SQLite does not tell upper from lower case)",
                remedy="name the columns apart with AS",
            )
        return f"(\n{query}\n)"

    def _refuse_texts_as_names(self, query: str) -> None:
        """A misspelled column in double quotes would be its own name in every row."""
        try:
            self._session.names(f"select * from (\n{plainly_named(query)}\n) as source limit 0")
        except SourceError as error:
            raise PlanRefused(
                "the query names a column that is not there",
                why=f"{error.why}; SQLite would take a name in double quotes that is no column for a text",
                remedy="correct the name; a text stands in single quotes",
            ) from error

    def _describe(self) -> list[StoredColumn]:
        if self._table is None:
            names = self._session.names(f"select * from {self._relation} as source limit 0")
            return self._by_content([(name, "", True) for name in names])
        declared = [
            (str(name), str(type_), not required)
            for name, type_, required in self._session.query(
                "select name, type, \"notnull\" from pragma_table_xinfo(?, 'main') where hidden <> 1 order by cid",
                (self._table.table,),
            )
        ]
        if not self._base_table:
            return self._by_content(declared)
        memory = remembered(self._session, self._table) if self._session.knows("columns") else {}
        made: dict[str, StoredColumn] = {}
        loose: list[tuple[str, str, bool]] = []
        for name, type_, nullable in declared:
            known = types.remembered_column(name, type_, memory, nullable=nullable)
            kind = types.affinity(type_)
            sure = self._strict and type_.upper() != "ANY"
            if known is not None:
                made[name] = StoredColumn(known, class_of(known.type), sure)
            elif kind in ("INTEGER", "REAL", "TEXT") or sure:
                plain = "BLOB" if kind == "BLOB" else kind
                made[name] = StoredColumn(types.plain_column(name, plain, type_, nullable=nullable), plain, sure)  # type: ignore[arg-type]  # one of the classes
            else:
                loose.append((name, type_, nullable))
        made |= {stored.name: stored for stored in self._by_content(loose)}
        return [made[name] for name, _, _ in declared]

    def _by_content(self, columns: Sequence[tuple[str, str, bool]]) -> list[StoredColumn]:
        """Columns whose declaration says nothing: one scan over what they hold."""
        if len(columns) > SCANNED_COLUMNS:
            return self._by_content(columns[:SCANNED_COLUMNS]) + self._by_content(columns[SCANNED_COLUMNS:])
        if not columns:
            return []
        counts = ", ".join(
            f"{', '.join(_counted(name, kind) for kind in CELLS)},"
            f" total(typeof({cell(name)}) = 'integer' and {cell(name)} not between"
            f" -{types.LARGEST_IN_DOUBLE} and {types.LARGEST_IN_DOUBLE})"
            for name, _, _ in columns
        )
        [row] = self._session.query(f"select {counts} from {self._relation} as source")
        made, width = [], len(CELLS) + 1
        for number, (name, declared, nullable) in enumerate(columns):
            *cells, large = row[number * width : (number + 1) * width]
            seen = dict(zip(CELLS, cells, strict=True))
            found = types.by_content(seen, exact=not large)
            if found is None:
                mix = ", ".join(f"{int(count)} {kind}" for kind, count in seen.items() if count)
                raise PlanRefused(
                    f"column {name!r} holds cells of several storage classes",
                    why=f"{mix}; no type has all of them",
                    remedy=f"say in a query what they are: cast({name} as text) as {name}",
                )
            kind, mixed = found
            column = types.plain_column(name, kind, declared, nullable=nullable)
            made.append(StoredColumn(column, kind, sure=False, mixed=mixed))
        return made

    def schema(self) -> Schema:
        return Schema.of([stored.column for stored in self._columns.values()])

    def primary_key(self) -> tuple[str, ...]:
        if not self._base_table or self._table is None:
            return ()
        rows = self._session.query(
            "select name from pragma_table_xinfo(?, 'main') where pk > 0 order by pk", (self._table.table,)
        )
        return tuple(name for (name,) in rows)

    def rows(self) -> int | None:
        if not self._base_table:
            return None
        return int(self._session.query(f"select count(*) from {self._relation}")[0][0])

    def upper(self, cursor: Cursor) -> str:
        stored = self._stored(cursor.column)
        bound = upper_bound(self._session, self._relation, cursor, stored, self._now)
        if test := astray(stored):
            place, shown = str(self._table or "query"), shown_keys(self._keys())
            found = f"select {shown} from {self._relation} as source where {test} limit {KEYS_SHOWN}"
            if rows := self._session.query(found):
                raise value_error(stored, tuple(key for (key,) in rows if key), place)
        return bound

    def _stored(self, column: str) -> StoredColumn:
        try:
            return self._columns[column]
        except KeyError:
            raise no_column(column, self._columns) from None

    # ------------------------------------------------------------ how it is read

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        whole = SQLitePartition(
            self._config,
            self._mark,
            self._relation,
            self._inside(window),
            self._request.limit,
            tuple((column, self._stored(column.name)) for column in columns),
            self._keys(),
            self._run,
            str(self._table or "query"),
        )
        pieces, reason = self._pieces(want)
        if self._copy.shared:
            pieces, reason = max(pieces, 1), "from the copy that all tables of this connection are read from"
        elif self._config.in_memory:
            return Split((self._exchange.partition(columns, whole.read),), f"one partition: {ONE_MOMENT}")
        elif pieces <= 1:
            return Split((whole,), f"one partition: {reason}")
        self._copy.wanted = True
        parts = [replace(whole, piece=Piece(self._copy.file, self._rowid(), n, pieces)) for n in range(pieces)]
        return Split(tuple(parts), f"{f'{pieces} ranges of row ids' if pieces > 1 else 'one partition'}, {reason}")

    def _pieces(self, want: int) -> tuple[int, str]:
        """How many partitions, and why. More than one are read from a copy."""
        one = self._config.in_memory or not self._base_table or self._request.limit is not None
        if one or want <= 1 or not self._rowid():
            return 1, ONE_MOMENT
        size = self._config.file.stat().st_size
        if size < LEAST_BYTES:
            return 1, f"{ONE_MOMENT}, and a file of {size // 2**20} MB is read before it is copied"
        rows = self.rows() or 0
        if rows * self._row_bytes() < LEAST_SHARE * size:
            return 1, f"{ONE_MOMENT}, and the table is too small a part of its file to copy that"
        return min(want, rows // MIN_ROWS), f"{ONE_MOMENT}, so they read a copy of the file ({size // 2**20} MB)"

    def _rowid(self) -> str:
        """What the row ids are called: a column may have taken their name; "" of a table without them."""
        if not self._with_rowid:
            return ""
        taken = {folded(name) for name in self._columns}
        return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), "")

    def _row_bytes(self) -> float:
        """About how wide a row is, by the first ones."""
        sample = f"select {self._octets()} as n from {self._relation} as source limit {SAMPLE_ROWS}"
        return ROW_BYTES + float(self._session.query(f"select coalesce(avg(n), 0) from ({sample})")[0][0])

    def size(self) -> int | None:
        if not self._base_table:
            return None
        return int(self._session.query(f"select total({self._octets()}) from {self._relation} as source")[0][0])

    def _octets(self) -> str:
        """The length of a row, for which SQLite does not read what is in it."""
        return types.joined([f"coalesce(octet_length({cell(name)}), 0)" for name in self._columns], "+")

    def hand_out(self) -> None:
        self._exchange.write()
        self._copy.make()

    def select_sql(self, columns: Sequence[tuple[Column, str]], window: Window | None = None) -> str:
        selected = ", ".join(f"{self._expression(column)} as {quote(name)}" for column, name in columns)
        sql = f"select {selected}\nfrom {self._relation} as source{self._inside(window)}"
        return sql if self._request.limit is None else f"{sql}\nlimit {int(self._request.limit)}"

    def unselectable(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """SQLite prints no float in the fewest digits that say it, which the text of a float is on every other path."""
        stored = [(column, self._stored(column.name)) for column in columns]
        return tuple(column.name for column, kept in stored if wants_text(column, kept) and kept.kind == "REAL")

    def select_checks(self, columns: Sequence[Column], window: Window | None = None) -> tuple[Check, ...]:
        tests = _wrong_tests(self._stored(column.name) for column in columns)
        rows = f"{self._relation} as source"
        return (
            self._mark.check(self._config, self._session),
            *class_check(tests, rows, self._within(window), shown_keys(self._keys())),
        )

    def _expression(self, column: Column) -> str:
        stored = self._stored(column.name)
        if not wants_text(column, stored) or stored.kind == "TEXT":
            return stored.sql()
        if pa.types.is_boolean(stored.column.type):
            return _boolean_text(stored.sql())
        if stored.kind == "BLOB":
            return f"iif({stored.sql()} is null, null, '\\x' || lower(hex({stored.sql()})))"  # of NULL, hex is ''
        return f"cast({stored.sql()} as text)"

    def _inside(self, window: Window | None) -> str:
        if window is not None:
            self._check_nulls(window)
        return self._within(window)

    def _within(self, window: Window | None) -> str:
        return f"\nwhere ({condition(window, self._stored(window.column))})" if window is not None else ""

    def _keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._request.keys or self.primary_key() if key in self._columns)

    def _check_nulls(self, window: Window) -> None:
        where = f"from {self._relation} as source where {cell(window.column)} is null"
        count = int(self._session.query(f"select count(*) {where}")[0][0])

        def keys() -> tuple[str, ...]:
            rows = self._session.query(f"select {shown_keys(self._keys())} {where} limit {KEYS_SHOWN}")
            return tuple(row[0] for row in rows if row[0])

        self._without_cursor = without_cursor(window, count, str(self._table or "query"), keys)

    def notes(self) -> tuple[str, ...]:
        loose = [name for name, stored in self._columns.items() if not stored.sure]
        checked = (f"every cell of {', '.join(loose)} is checked to be of one storage class",) if loose else ()
        held = ("it is in memory: the driver reads it and hands its rows out to tasks",)
        return (*(held if self._config.in_memory else ()), *checked, *self._without_cursor)

    def shared(self) -> tuple[Shared, ...]:
        if self._config.in_memory:
            return (Shared.project(StagingArea.base_of(self._run)),)
        if self._copy.wanted:
            return (Shared.project(StagingArea.base_of(self._run)),)
        return (Shared.file(self._config.file),)

    def close(self) -> None:
        with ExitStack() as stack:  # from the last to the first, each whatever becomes of the others
            stack.callback(self._session.close)
            stack.callback(self._copy.close)
            stack.callback(self._exchange.close)


def _counted(name: str, kind: str) -> str:
    return f"total(typeof({cell(name)}) = '{kind}')"


def _boolean_text(value: str) -> str:
    return f"case {value} when 1 then 'true' when 0 then 'false' end"


def require_main(name: TableName) -> None:
    """SQLite has no schemas: a file's own tables are in `main`."""
    if name.schema is not None and folded(name.schema) != MAIN:
        raise PlanRefused(
            f"SQLite has no schema {name.schema!r}",
            why="a file holds one set of tables, which SQLite calls main",
            remedy=f"name the table {name.table}, or main.{name.table}",
        )
    if folded(name.table).startswith((PREFIX, "sqlite_")):
        raise PlanRefused(f"{name.table} is a table of {'Penstock' if PREFIX in name.table else 'SQLite'} itself")
