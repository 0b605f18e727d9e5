"""A Postgres table or query as a source: one moment, described by the catalog, cut into partitions.

All sessions are read only. The driver's transaction stays open until `close()`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from penstock.backends.base import Cursor, ReadRequest, RunContext, Sessions, Source, Split, Window
from penstock.backends.postgres import catalog, split
from penstock.backends.postgres.catalog import Described, Relation
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import identifier
from penstock.backends.postgres.partition import PostgresPartition
from penstock.backends.postgres.query import splittable, trimmed
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.split import Piece, Reading
from penstock.backends.postgres.types import PgType, canonical, read_expression, shape_error
from penstock.backends.postgres.window import check_nulls, upper_bound, window_condition
from penstock.backends.sql import recall
from penstock.errors import PenstockError, PlanRefused, SourceError, SourceMoved
from penstock.schema import Column, Logical, Schema, TableName

TEXT = "text"
READ_SUFFIX = ":read"  # of the application name of sessions that only read
READABLE = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}


class PostgresSource(Source):
    """Holds the run's snapshot on the driver: its own, or that of another source of the run."""

    def __init__(
        self, config: PostgresConfig, request: ReadRequest, run: RunContext, holder: Holder | None = None
    ) -> None:
        if (request.table is None) == (request.query is None):
            raise PlanRefused("a source is a table or a query", why="both or neither are given")
        self._request = request
        self._run = run
        self._conninfo = config.conninfo()
        self._max_connections = config.max_connections
        self._bounded = False  # a window's end was asked for
        self._without_cursor: tuple[str, ...] = ()
        self._query = trimmed(request.query) if request.query is not None else None
        self._shares = holder is not None
        self._holder = holder or Holder(self._conninfo, f"{run.application_name}{READ_SUFFIX}")
        try:
            self._relation = self._find(request.table) if request.table is not None else None
            self._described = self._describe()
            self._types = dict(
                zip(
                    [column.name for column in self._described],
                    catalog.types(self._holder.catalog, [(c.oid, c.typmod) for c in self._described]),
                    strict=True,
                )
            )
        except PenstockError:
            self.close()
            raise

    @property
    def holder(self) -> Holder:
        """The moment, for another source of the run."""
        return self._holder

    # ------------------------------------------------------------ what is there

    def schema(self) -> Schema:
        return self._schema

    @cached_property
    def _schema(self) -> Schema:
        columns = [
            canonical(column.name, self._types[column.name], dims=column.dims, nullable=column.nullable)
            for column in self._described
        ]
        memory = self._memory()
        return Schema.of([recall(c, memory, TEXT) if self._types[c.name].spelling == TEXT else c for c in columns])

    def primary_key(self) -> tuple[str, ...]:
        return () if self._relation is None else catalog.primary_key(self._holder.catalog, self._relation.oid)

    def rows(self) -> int | None:
        return None if self._relation is None else catalog.estimated_rows(self._holder.catalog, self._relation.oid)

    def size(self) -> int | None:
        return None if self._relation is None else catalog.stored_bytes(self._holder.catalog, self._relation.oid)

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        """What errors name a row by."""
        return tuple(name for name in self._request.keys or self.primary_key() if name in self._types)

    def notes(self) -> tuple[str, ...]:
        clock, notes = self._holder.clock, []
        if clock.standby:
            notes.append("the source is a standby: its clock is that of the last transaction it has replayed")
        if clock.blind and self._bounded:
            notes.append(f"the window is kept safe by `lag` alone: {clock.blind}")
        return (*notes, *self._without_cursor)

    def sessions(self) -> Sessions:
        return Sessions(self._holder.moment.identity.started, self._max_connections, driver=0 if self._shares else 1)

    def close(self) -> None:
        self._holder.close()

    # ------------------------------------------------------------ how it is read

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        pieces, reason = self._pieces(self._reading(columns, window), want)
        return Split(tuple(self.partition(piece, columns) for piece in pieces), reason)

    def partition(self, piece: Piece, columns: Sequence[Column]) -> PostgresPartition:
        return PostgresPartition(
            conninfo=self._conninfo,
            application=f"{self._run.application_name}{READ_SUFFIX}",
            moment=self._holder.moment,
            sql=piece.sql,
            columns=tuple(columns),
            keys=self._keys,
            guards=piece.guards,
            place=str(self._request.table) if self._request.table is not None else "query",
            batch_bytes=self._run.batch_bytes,
            batch_rows=self._run.batch_rows,
            explained=piece.explained,
        )

    def range(self, columns: Sequence[Column], oid: int, low: int, high: int | None, where: str) -> PostgresPartition:
        """Blocks of a table of the family, only the rows for which `where` is true."""
        member = catalog.relation_of(self._holder.catalog, oid)
        if member is None:
            raise SourceMoved("a part of the table is gone", place=str(self._request.table), remedy="copy it again")
        reading = replace(self._reading(columns, None), condition=where)
        return self.partition(split.one_range(reading, member, low, high), columns)

    def select_sql(self, columns: Sequence[tuple[Column, str]], window: Window | None = None) -> str:
        select = ", ".join(f"{self._native(column)} as {identifier(name)}" for column, name in columns)
        return self._inside(select, window).sql(limit=self._request.limit)

    def _native(self, column: Column) -> str:
        own, value = self.schema()[column.name], f"q.{identifier(column.name)}"
        type_ = self._type_of(column.name, "columns")
        if type_.built_in and type_.name == "bpchar":
            # A cast to text would cut the padding, which every other path keeps.
            return f"pg_catalog.textin(pg_catalog.bpcharout({value}))"
        if (column.type, column.logical) == (own.type, own.logical):
            return value
        return read_expression(type_, column, value, "''")

    def upper(self, cursor: Cursor) -> str:
        type_ = self._type_of(cursor.column, "incremental")
        self._bounded = True
        return upper_bound(self._holder, self._reading((), None).source, cursor, type_)

    def _reading(self, columns: Sequence[Column], window: Window | None) -> Reading:
        """The columns in the forms asked for."""
        shown = [(name, f"q.{identifier(name)}") for name in self._keys]
        select = ", ".join(
            read_expression(
                self._type_of(column.name, "columns"),
                column,
                f"q.{identifier(column.name)}",
                shape_error(number, shown),
            )
            + f" as {identifier(column.name)}"
            for number, column in enumerate(columns)
        )
        return self._inside(select, window)

    def _inside(self, select: str, window: Window | None) -> Reading:
        reading = Reading(self._holder, select, relation=self._relation, query=self._query)
        if window is None:
            return reading
        type_ = self._type_of(window.column, "incremental")
        if any(column.name == window.column and column.nullable for column in self._described):
            self._without_cursor = check_nulls(self._holder, reading.source, window, self._keys)
        return Reading(self._holder, select, window_condition(window, type_), self._relation, self._query)

    def _pieces(self, reading: Reading, want: int) -> tuple[list[Piece], str]:
        request = self._request
        if request.limit is not None:
            return [split.one_piece(reading, request.limit)], "a limit is read in one piece"
        if request.partition_on is not None:
            type_ = self._type_of(request.partition_on, "partition_on")
            return split.by_column(reading, request.partition_on, type_.spelling, want)
        if want <= 1 and self._relation is None:
            return [split.one_piece(reading)], "one partition is asked for"
        if self._query is None:
            return split.table_by_ctid(reading, want)
        query, why = splittable(self._query)
        if query is None:
            return [split.one_piece(reading)], f"the query is read in one piece: {why}"
        return split.query_by_ctid(reading, query, want)

    # ------------------------------------------------------------ the catalog

    def _find(self, table: TableName) -> Relation:
        name = ".".join(identifier(part) for part in table.parts)
        oid = self._holder.ask("select pg_catalog.to_regclass(%s)::pg_catalog.oid::pg_catalog.int8", (name,))[0][0]
        found = catalog.relation_of(self._holder.catalog, oid) if oid is not None else None
        if found is None:
            raise SourceError(
                f"there is no table {table}",
                why=f"connection {self._conninfo.name!r} does not see it",
                remedy="`penstock tables list` shows what is there",
            )
        if found.kind not in READABLE:
            raise PlanRefused(f"{table} cannot be read", why="it is neither a table nor a view")
        return found

    def _describe(self) -> list[Described]:
        if self._relation is not None:
            return catalog.table_columns(self._holder.catalog, self._relation.oid)
        described = self._holder.describe(self._query or "")
        twice = [name for name, count in Counter(c.name for c in described).items() if count > 1]
        if twice:
            raise PlanRefused(
                f"the query has more than one column called {twice[0]!r}",
                why="columns are matched by name",
                remedy='give one of them another name: `select … as "other"`',
            )
        return described

    def _type_of(self, name: str, option: str) -> PgType:
        if name not in self._types:
            raise PlanRefused(
                f"{option}: the source has no column {name!r}",
                why=f"it has {', '.join(self._types)}"
                if len(self._types) <= 20
                else f"it has {len(self._types)} others",
                place=str(self._request.table or "query"),
            )
        return self._types[name]

    def _memory(self) -> dict[str, tuple[str, str, Logical | None]]:
        """What Penstock remembers about a table it has filled itself."""
        if self._relation is None:
            return {}
        return remembered_types(self._holder, TableName(self._relation.schema, self._relation.name))


def remembered_types(holder: Holder, table: TableName) -> dict[str, tuple[str, str, Logical | None]]:
    known = holder.catalog(
        "select coalesce(bool_and(has_schema_privilege(c.relnamespace, 'usage')"
        " and has_table_privilege(c.oid, 'select')), false) from pg_class c"
        " where c.oid = to_regclass('_penstock.columns')"
    )
    if not known[0][0]:
        return {}
    rows = holder.catalog(
        "select name, type_sql, native, logical from _penstock.columns where target = %s", (str(table),)
    )
    return {
        name: (type_sql, native, Logical.from_record(json.loads(logical)))
        for name, type_sql, native, logical in rows
        if logical is not None
    }
