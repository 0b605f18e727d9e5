"""A piece of a Postgres source as a worker reads it: under the holder's snapshot, guarded.

A worker that cannot prove that it sees the same moment and the same files as the others reads
nothing: it raises `SourceMoved`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_manager._reader import AdbcRecordBatchReader

from penstock.backends.base import Partition
from penstock.backends.postgres.ahead import ReadAhead
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import Identity, identifier, literal, reading_session
from penstock.backends.postgres.decode import decode_batch
from penstock.backends.postgres.errors import DRIVER_ERRORS, refused, sqlstate
from penstock.backends.postgres.snapshot import Moment
from penstock.backends.postgres.types import SHAPE_MARK
from penstock.errors import BeyondArrow, PenstockError, SourceError, SourceMoved
from penstock.observe.failpoints import failpoint
from penstock.schema import Column

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc

_SHAPE = re.compile(SHAPE_MARK + r":(\d+):(.*?)\"", re.DOTALL)
SNAPSHOT_GONE = frozenset({"22023", "42704", "0A000"})
BATCH_BYTES_OPTION = "adbc.postgresql.batch_size_hint_bytes"
COPY_OPTION = "adbc.postgresql.use_copy"
# A query has no NOWAIT: who holds a relation longer than this is changing its form.
MOVED_AFTER = "100ms"
# What a lock that is not to be had, a table that is gone and a column that is gone end in.
FORM_CHANGES = frozenset({"55P03", "42P01", "42703"})


@dataclass(frozen=True, slots=True)
class Guard:
    """A relation as the snapshot knows it; a worker compares this with what is there now."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[int, str], ...]  # attnum and name
    lockable: bool = True  # by LOCK TABLE, which wants a grant on the whole table

    @property
    def sql(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"


@dataclass(frozen=True, slots=True)
class PostgresPartition(Partition):
    """One statement, and all that must be true for it to be a piece of the whole."""

    conninfo: Conninfo
    application: str
    moment: Moment
    sql: str = field(repr=False)
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    guards: tuple[Guard, ...]
    place: str  # for errors: the table's name, or "query"
    batch_bytes: int
    batch_rows: int
    explained: bool = False  # the guards came from the plan of `sql`, not from a list of tables

    def read(self) -> Iterator[pa.RecordBatch]:
        try:
            with reading_session(self.conninfo, self.application) as connection:
                self._enter(connection)
                with connection.cursor() as cursor:
                    cursor.adbc_statement.set_options(**{BATCH_BYTES_OPTION: str(self.batch_bytes)})
                    failpoint("read.open")
                    cursor.execute(self.sql)
                    # ADBC's own reader: pyarrow's would turn an error of the stream into bare text.
                    stream = cursor.fetch_arrow()
                    reader = AdbcRecordBatchReader._import_from_c(stream.address)
                    first = True
                    for batch in ReadAhead(self._batches(reader), _canceller(cursor)):
                        if first:
                            failpoint("read.batch")
                            first = False
                        yield batch
        except DRIVER_ERRORS as error:
            raise self._mapped(error) from None

    def _batches(self, reader: AdbcRecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            for start in range(0, batch.num_rows, self.batch_rows):
                yield decode_batch(batch.slice(start, self.batch_rows), self.columns, self.keys)

    # ------------------------------------------------------------ the same moment, the same files

    def _enter(self, connection: adbc.Connection) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read read only")
            try:
                cursor.execute(f"set transaction snapshot {literal(self.moment.snapshot)}")
            except DRIVER_ERRORS as error:
                if sqlstate(error) in SNAPSHOT_GONE:
                    raise self._moved("the run's snapshot is not there any more, or this is another server") from None
                raise
            if _row(cursor, Identity.QUERY) != _as_row(self.moment.identity):
                raise self._moved("this session reached another server than the run's first one")
            self._lock(cursor)
            for guard in self.guards:
                self._check(cursor, guard)
            if self.explained:
                self._check_plan(cursor)

    def _lock(self, cursor: adbc.Cursor) -> None:
        """Before the comparison: nothing may be rewritten after it.

        Not waited for: who rewrites a table now makes this snapshot useless anyway.
        """
        for guard in self.guards:
            if guard.lockable:
                self._take(cursor, guard.sql, f"lock table only {guard.sql} in access share mode nowait")
        hidden = [guard.sql for guard in self.guards if not guard.lockable]
        if hidden:
            # A materialized view takes no LOCK TABLE, and what lies behind a view or a grant on
            # columns is locked by nothing but the query itself.
            cursor.execute(f"set lock_timeout to {literal(MOVED_AFTER)}")
            self._take(cursor, ", ".join(hidden), f"select from (\n{self.sql}\n) as q limit 0")
            cursor.execute("reset lock_timeout")

    def _take(self, cursor: adbc.Cursor, what: str, statement: str) -> None:
        try:
            cursor.execute(statement)
        except DRIVER_ERRORS as error:
            if sqlstate(error) in FORM_CHANGES:
                raise self._moved(f"{what} is locked, or gone, for a change of its form") from None
            raise

    def _check(self, cursor: adbc.Cursor, guard: Guard) -> None:
        # By functions that look at what is there now, whatever the snapshot says. By oid, because a
        # name may be closed to this user.
        relation = f"{guard.oid}::pg_catalog.oid"
        numbers = ", ".join(str(number) for number, _ in guard.columns)
        names = ", ".join(literal(name) for _, name in guard.columns)
        place = " || '.' || ".join(f"pg_catalog.quote_ident({literal(part)})" for part in (guard.schema, guard.name))
        known = "(pg_catalog.pg_identify_object('pg_catalog.pg_class'::pg_catalog.regclass, {}, {})).identity"
        same_file, same_name, same_columns = _row(
            cursor,
            "select (select relfilenode = 0 or relfilenode = pg_catalog.pg_relation_filenode(oid)"
            f" from pg_catalog.pg_class where oid = {relation}),"
            f" {known.format(relation, 0)} = {place},"
            f" (select coalesce(pg_catalog.bool_and({known.format(relation, 'c.number')} ="
            f" {place} || '.' || pg_catalog.quote_ident(c.name)), true)"
            f" from rows from (pg_catalog.unnest(array[{numbers}]::pg_catalog.int4[]),"
            f" pg_catalog.unnest(array[{names}]::pg_catalog.text[])) as c(number, name))",
        )
        if not (same_file and same_name):
            raise self._moved(f"{guard.sql} was rewritten, truncated or replaced after the run's snapshot")
        if not same_columns:
            raise self._moved(f"columns of {guard.sql} were dropped or renamed after the run's snapshot")

    def _check_plan(self, cursor: adbc.Cursor) -> None:
        """A partition detached since would be left out of the plan without a word."""
        cursor.adbc_statement.set_options(**{COPY_OPTION: "false"})  # EXPLAIN is no query to COPY
        plan = json.loads(_row(cursor, f"explain (verbose, format json) {self.sql}")[0])
        touched = {f"{identifier(schema)}.{identifier(name)}" for schema, name in relations_in(plan)}
        missing = [guard.sql for guard in self.guards if guard.sql not in touched]
        if missing:
            raise self._moved(f"{missing[0]} is not part of the query any more")

    # ------------------------------------------------------------ errors

    def _moved(self, why: str) -> SourceMoved:
        return SourceMoved(
            "the source changed its form under the run's snapshot",
            why=why,
            kept="nothing was committed",
            remedy="run it again",
            place=self.place,
        )

    def _mapped(self, error: BaseException) -> PenstockError:
        shape = _SHAPE.search(str(error))
        if shape is not None and sqlstate(error) in ("22P02", ""):
            name = self.columns[int(shape.group(1))].name
            return BeyondArrow(
                f"column {name!r} holds an array that a list cannot carry",
                why="it has more than one dimension, or its lower bound is not 1",
                remedy=f'columns.{name} = "text"',
                place=self.place,
                keys=(shape.group(2),) if shape.group(2) else (),
                columns=(name,),
            )
        return refused(error, self.conninfo, side=SourceError, place=self.place)


def relations_in(plan: Any) -> list[tuple[str, str]]:
    """`(schema, name)` of every relation in an EXPLAIN (VERBOSE, FORMAT JSON)."""
    found: list[tuple[str, str]] = []
    if isinstance(plan, list):
        for part in plan:
            found += relations_in(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan and "Schema" in plan:
            found.append((plan["Schema"], plan["Relation Name"]))
        for value in plan.values():
            if isinstance(value, (list, dict)):
                found += relations_in(value)
    return list(dict.fromkeys(found))


def _canceller(cursor: adbc.Cursor) -> Any:
    def cancel() -> None:
        try:
            cursor.adbc_cancel()
        except adbc_driver_manager.Error:
            # Nothing was running any more: then there is nothing to wait for either.
            return

    return cancel


def _row(cursor: adbc.Cursor, sql: str) -> tuple[Any, ...]:
    cursor.execute(sql)
    row: tuple[Any, ...] = cursor.fetchone()
    return row


def _as_row(identity: Identity) -> tuple[str, str, str]:
    return identity.started, identity.system, identity.database
