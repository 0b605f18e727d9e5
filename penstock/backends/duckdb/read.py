"""Reading a DuckDB file: a table in ranges of row ids, a query in one piece or by a column.

The driver holds a read-only connection for the whole run. DuckDB admits no writer beside it, so
every worker that opens the file read-only sees the same moment. Only `close` ends that moment.
A database in memory is read by the driver alone, in one transaction, which hands the rows out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot.dialects.dialect import Dialect

from penstock.backends.base import Cursor, Partition, ReadRequest, RunContext, Shared, Source, Split, Window
from penstock.backends.duckdb import types
from penstock.backends.duckdb.config import WORKER_THREADS, DuckDBConfig
from penstock.backends.duckdb.connect import Session, mapped, named, open_file, shift_lines, translate
from penstock.backends.duckdb.dialect import DuckDBDialect, literal, same_name
from penstock.backends.duckdb.window import condition, upper_bound
from penstock.backends.exchange import Exchange
from penstock.backends.sql import KEYS_SHOWN, no_column, recall, remembered, without_cursor
from penstock.backends.staging import StagingArea
from penstock.errors import ConfigError, PlanRefused, SourceError, SourceMoved
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Schema, TableName
from penstock.schema.names import folded

# Below this, starting a task costs more than it saves.
MIN_ROWS = 100_000
# A table of more rows is not looked through to know its size, but guessed at so many bytes for each value.
MEASURED_ROWS = 1_000_000
VALUE_BYTES = 16
# DuckDB's own vector, the least it gives. Pieces are joined, or cut where rows are wide, to `batch_bytes`.
PIECE_ROWS = 2_048
# So many bytes of rows later, a task lets go of what DuckDB has kept of the file. More often would take time.
LET_GO_BYTES = 24 * 1024 * 1024
# Bounds of `partition_on` are quantiles of a sample of this size: even enough, and bounded.
SAMPLE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class FileMark:
    """Which file it was: a worker must read the one that the driver holds."""

    inode: int
    size: int
    modified: int

    @staticmethod
    def of(path: Path) -> FileMark:
        stat = os.stat(path)  # never opened: closing a plain handle would drop DuckDB's lock
        return FileMark(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class DuckDBPartition(Partition):
    """One statement on the file, and the columns it gives."""

    config: DuckDBConfig
    sql: str
    columns: tuple[Column, ...]
    mark: FileMark
    run: RunContext

    def read(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([pa.field(column.name, column.type) for column in self.columns])
        with open_file(self.config, read_only=True, threads=WORKER_THREADS) as session:
            if FileMark.of(self.config.file) != self.mark:
                raise SourceMoved(
                    f"{self.config.file} is not the file that the run began with",
                    why="it was replaced, or the worker sees another file system than the driver",
                    remedy="run it again; with workers on other machines, keep the file on a shared folder",
                )
            failpoint("read.open")
            first = True
            read = 0
            for batch in _joined(_pieces(session, self.sql), schema, self.run):
                yield batch
                if first:
                    first = False
                    failpoint("read.batch")
                read += batch.nbytes
                if read > LET_GO_BYTES:
                    read = 0
                    session.let_go(self.config.memory_limits[0])


def _pieces(session: Session, sql: str) -> Iterator[pa.RecordBatch]:
    with mapped("source", "reading failed"):
        reader = session.connection.sql(sql).to_arrow_reader(PIECE_ROWS)
        try:
            yield from reader
        except OSError as error:
            raise named(error) from error
        finally:
            # An open result keeps the file open after the connection is closed.
            reader.close()
            del reader


def _joined(pieces: Iterator[pa.RecordBatch], schema: pa.Schema, run: RunContext) -> Iterator[pa.RecordBatch]:
    """Pieces in canonical types, joined up to the run's batch size and never far beyond it."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        if kept and (rows + piece.num_rows > run.batch_rows or size + piece.nbytes > run.batch_bytes):
            yield pa.concat_batches(kept)
            kept, rows, size = [], 0, 0
        if piece.nbytes > run.batch_bytes:
            yield from _cut(_canonical(piece, schema), run.batch_bytes)
            continue
        kept.append(_canonical(piece, schema))
        rows += piece.num_rows
        size += piece.nbytes
    if kept:
        yield pa.concat_batches(kept)


def _cut(piece: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """A piece of wide rows in halves until each is small enough, or one row."""
    if piece.nbytes <= batch_bytes or piece.num_rows <= 1:
        # A slice alone would go on holding the whole piece, and be staged with all of it.
        yield pa.concat_batches([piece])
        return
    half = piece.num_rows // 2
    yield from _cut(piece.slice(0, half), batch_bytes)
    yield from _cut(piece.slice(half), batch_bytes)


def _canonical(piece: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        array if array.type.equals(field.type) else array.cast(field.type)
        for array, field in zip(piece.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class DuckDBSource(Source):
    """A table or query of a file, held open."""

    def __init__(
        self, config: DuckDBConfig, request: ReadRequest, run: RunContext, session: Session | None = None
    ) -> None:
        self._config = config
        self._request = request
        self._run = run
        self._without_cursor: tuple[str, ...] = ()
        self._exchange = Exchange(run)
        self._session = session or open_file(config, read_only=True)
        try:
            self._mark = None if config.in_memory else FileMark.of(config.file)
            self._now = str(self._session.query("select cast(now() as varchar)")[0][0])
            self._base_table = False
            self._table = self._find(request.table) if request.table is not None else None
            self._relation = self._table_sql() if self._table is not None else self._query_sql()
            self._types = self._describe()
        except BaseException:  # Ctrl-C too: an open file keeps others out
            self._session.close()
            raise

    def beside(self, request: ReadRequest, run: RunContext) -> DuckDBSource:
        """Another read at this one's moment: of a file nobody can write, of a database in memory one transaction."""
        return DuckDBSource(self._config, request, run, self._session if self._config.in_memory else None)

    # ------------------------------------------------------------ what it is

    def _find(self, name: TableName) -> TableName:
        schema = name.schema or self._config.default_schema
        rows = self._session.query(
            "select schema_name, table_name, 'table' from duckdb_tables() where database_name = current_database()"
            f" and {same_name('schema_name')} and {same_name('table_name')}"
            " union all select schema_name, view_name, 'view' from duckdb_views()"
            " where database_name = current_database()"
            f" and {same_name('schema_name')} and {same_name('view_name')}",
            (schema, name.table) * 2,
        )
        if not rows:
            raise SourceError(
                f"there is no table {TableName(schema, name.table)} in {self._config.label}",
                remedy=f"see what there is: penstock tables list {self._config.name}",
            )
        self._base_table = rows[0][2] == "table"
        return TableName(rows[0][0], rows[0][1])

    def _table_sql(self) -> str:
        assert self._table is not None  # noqa: S101  the caller has looked
        catalog = self._session.query("select current_database()")[0][0]
        return ".".join(types.quote(part) for part in (catalog, *self._table.parts))

    def _query_sql(self) -> str:
        query = self._request.query
        if query is None:
            raise ConfigError("a source needs a table or a query")
        try:
            statements = self._session.connection.extract_statements(query)
        except duckdb.Error as error:
            raise translate(error, "source", "the query was refused") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "no statement"
            raise SourceError("a query must be one SELECT", why=f"found {kinds}")
        bare = _bare(statements[0].query)
        try:
            # EXPLAIN binds the query as the user wrote it: the place it points at is the user's.
            self._session.connection.execute(f"explain\n{bare}").fetchall()
        except duckdb.Error as error:
            made = translate(error, "source", "the query was refused")
            made.why = shift_lines(made.why, 1)
            raise made from error
        return f"(\n{bare}\n)"

    def _describe(self) -> dict[str, str]:
        with mapped("source", "the source was refused"):
            relation = self._session.connection.sql(f"select * from {self._relation} as source limit 0")
            if self._table is None:
                # The wrapped form renames what comes twice; the query itself does not.
                relation = self._session.connection.sql(self._relation[1:-1])
            names = list(relation.columns)
            spelled = [str(type_) for type_ in relation.types]
            del relation
        counted = Counter(folded(name) for name in names)
        twice = sorted({name for name in names if counted[folded(name)] > 1})
        if twice:
            raise PlanRefused(
                "the query gives a name more than once",
                why=f"{', '.join(twice)} (DuckDB does not tell upper from lower case)",
                remedy="name the columns apart with AS",
            )
        return dict(zip(names, spelled, strict=True))

    def schema(self) -> Schema:
        required = self._required()
        columns = [types.canonical(name, sql, nullable=name not in required) for name, sql in self._types.items()]
        if self._base_table and self._table is not None and self._session.has_schema("_penstock"):
            memory = remembered(self._session, self._table)
            columns = [self._recalled(column, memory) for column in columns]
        return Schema.of(columns)

    def _recalled(self, column: Column, memory: dict[str, Any]) -> Column:
        """What is only text here, with the meaning it came with."""
        spelling = self._types[column.name]
        return recall(column, memory, spelling) if spelling in {"VARCHAR", "VARCHAR[]"} else column

    def _required(self) -> set[str]:
        return {row[0] for row in self._catalog("not is_nullable")} if self._base_table else set()

    def _catalog(self, condition_: str) -> list[tuple[Any, ...]]:
        assert self._table is not None  # noqa: S101  only asked of tables
        return self._session.query(
            "select column_name from duckdb_columns() where database_name = current_database()"
            f" and schema_name = ? and table_name = ? and {condition_}",
            self._table.parts,
        )

    def primary_key(self) -> tuple[str, ...]:
        if not self._base_table or self._table is None:
            return ()
        rows = self._session.query(
            "select constraint_column_names from duckdb_constraints() where database_name = current_database()"
            " and schema_name = ? and table_name = ? and constraint_type = 'PRIMARY KEY'",
            self._table.parts,
        )
        return tuple(rows[0][0]) if rows else ()

    def rows(self) -> int | None:
        if not self._base_table or self._table is None:
            return None
        found = self._session.query(
            "select estimated_size from duckdb_tables() where database_name = current_database()"
            " and schema_name = ? and table_name = ?",
            self._table.parts,
        )
        return int(found[0][0])

    def size(self) -> int | None:
        rows = self.rows()
        if rows is None or rows > MEASURED_ROWS:
            return None if rows is None else rows * len(self._types) * VALUE_BYTES
        texts = [f"coalesce(sum(strlen(cast({types.quote(name)} as varchar))), 0)" for name in self._types]
        return int(self._session.query(f"select {' + '.join(texts)} from {self._relation} as source")[0][0])

    def upper(self, cursor: Cursor) -> str:
        return upper_bound(self._session, self._relation, cursor, self._spelling(cursor.column), self._now)

    def _spelling(self, column: str) -> str:
        try:
            return self._types[column]
        except KeyError:
            raise no_column(column, self._types) from None

    # ------------------------------------------------------------ how it is split

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        selected = ", ".join(
            f"{types.select(column, self._spelling(column.name))} as {types.quote(column.name)}" for column in columns
        )
        where = self._inside(window)
        ranges, reason = self._ranges(max(want, 1), where)
        statements = [self._statement(selected, [*where, range_] if range_ else where) for range_ in ranges]
        return Split(tuple(self._partition(sql, tuple(columns)) for sql in statements), reason)

    def _partition(self, sql: str, columns: tuple[Column, ...]) -> Partition:
        if self._mark is not None:
            return DuckDBPartition(self._config, sql, columns, self._mark, self._run)
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        return self._exchange.partition(columns, lambda: _joined(_pieces(self._session, sql), schema, self._run))

    def hand_out(self) -> None:
        self._exchange.write()

    def select_sql(self, columns: Sequence[tuple[Column, str]], window: Window | None = None) -> str:
        own = self.schema()
        selected = ", ".join(
            (
                types.quote(column.name)
                if (column.type, column.logical) == (own[column.name].type, own[column.name].logical)
                else types.select(column, self._spelling(column.name))
            )
            + f" as {types.quote(name)}"
            for column, name in columns
        )
        return self._statement(selected, self._inside(window))

    def _inside(self, window: Window | None) -> list[str]:
        if window is None:
            return []
        self._check_nulls(window)
        return [condition(window, self._spelling(window.column))]

    def _statement(self, selected: str, where: Sequence[str]) -> str:
        sql = f"select {selected or 'null'}\nfrom {self._relation} as source"
        if where:
            sql += "\nwhere " + "\n  and ".join(f"({test})" for test in where)
        if self._request.limit is not None:
            sql += f"\nlimit {int(self._request.limit)}"
        return sql

    def _ranges(self, want: int, where: Sequence[str]) -> tuple[list[str], str]:
        if self._request.limit is not None:
            return [""], "one partition: a limit is asked for"
        if self._request.partition_on is not None:
            return self._by_column(self._request.partition_on, want, where)
        if self._table is None:
            return [""], "one partition: a query runs once; partition_on would split it"
        if not self._base_table:
            return [""], "one partition: a view has no row ids; partition_on would split it"
        if any(folded(name) == "rowid" for name in self._types):
            # It hides the row ids: ranges of its values would leave out NULLs.
            return [""], "one partition: a column called rowid hides the row ids; partition_on would split it"
        return self._by_rowid(want)

    def _by_rowid(self, want: int) -> tuple[list[str], str]:
        rows, last = self._session.query(f"select count(*), max(rowid) from {self._relation}")[0]
        pieces = min(want, rows // MIN_ROWS)
        if pieces <= 1:
            return [""], f"one partition: {rows:,} rows"
        steps = [number / pieces for number in range(1, pieces)]
        if last + 1 == rows:
            bounds = sorted({int(rows * step) for step in steps})
        else:  # deleted rows have left gaps
            found = self._session.query(f"select approx_quantile(rowid, {steps}) from {self._relation}")[0][0]
            bounds = sorted(set(found))
        edges = [f"rowid < {bounds[0]}"]
        edges += [f"rowid >= {low} and rowid < {high}" for low, high in pairwise(bounds)]
        edges.append(f"rowid >= {bounds[-1]}")
        return edges, f"{len(edges)} ranges of row ids over {rows:,} rows"

    def _by_column(self, name: str, want: int, where: Sequence[str]) -> tuple[list[str], str]:
        spelling, column = self._spelling(name), types.quote(name)
        if types.form_of(spelling).wire.endswith(("[]", ")")) and not spelling.startswith("DECIMAL"):
            raise PlanRefused(f"partition_on cannot be {name!r}", why=f"{spelling} has no order to split by")
        if want <= 1:
            return [""], "one partition: one task"
        tests = " and ".join([f"{column} is not null", *(f"({test})" for test in where)])
        sample = f"select {column} as k from {self._relation} as source where {tests} using sample {SAMPLE_ROWS} rows"
        steps = [number / want for number in range(1, want)]
        found = self._session.query(
            f"select distinct on (b) cast(b as varchar) from"
            f" (select unnest(quantile_disc(k, {steps})) as b from ({sample})) order by b"
        )
        bounds = [f"cast({literal(row[0])} as {spelling})" for row in found if row[0] is not None]
        if not bounds:
            return [""], f"one partition: {name} holds no value to split by"
        # NULL is below the first bound and NaN above the last: no value is outside all ranges,
        # and half-open ranges leave none in two.
        edges = [f"{column} < {bounds[0]} or {column} is null"]
        edges += [f"{column} >= {low} and {column} < {high}" for low, high in pairwise(bounds)]
        edges.append(f"{column} >= {bounds[-1]}")
        runs = "" if self._table is not None else f"; the query runs {len(edges)} times"
        return edges, f"{len(edges)} ranges of {name}{runs}"

    # ------------------------------------------------------------ the rest

    def _check_nulls(self, window: Window) -> None:
        where = f"from {self._relation} as source where {types.quote(window.column)} is null"
        count = self._session.query(f"select count(*) {where}")[0][0]

        def keys() -> tuple[str, ...]:
            known = [key for key in self._request.keys or self.primary_key() if key in self._types]
            shown = DuckDBDialect().key_text(known) if known else "''"
            rows = self._session.query(f"select {shown} {where} limit {KEYS_SHOWN}")
            return tuple(row[0] for row in rows if row[0])

        self._without_cursor = without_cursor(window, count, str(self._table or "query"), keys)

    def notes(self) -> tuple[str, ...]:
        lossy = [f"{name} {sql}" for name, sql in self._types.items() if types.form_of(sql).lossy]
        held = f"{self._config.file} is held read-only for the whole run: no other process can write to it"
        if self._config.in_memory:
            held = "it is in memory: the driver reads it and hands its rows out to tasks"
        return (held, *self._without_cursor, *(f"the text of {column} says less than its value" for column in lossy))

    def shared(self) -> tuple[Shared, ...]:
        if self._config.in_memory:
            return (Shared.project(StagingArea.base_of(self._run)),)
        return (Shared.file(self._config.file),)

    def close(self) -> None:
        try:
            self._exchange.close()
        finally:
            self._session.close()


def _bare(query: str) -> str:
    """The query without semicolons at its end; comments may stay, our own text follows on a new line."""
    tokens = Dialect.get_or_raise("duckdb").tokenize(query)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return query[: tokens[-1].end + 1] if tokens else query
