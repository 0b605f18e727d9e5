"""The one moment of a source: a read-only transaction that the driver keeps open.

Its exported snapshot is what every worker reads. Nothing the driver asks here may keep a lock:
each question runs in a savepoint that is rolled back, or a queued `ALTER TABLE` would block the
application behind our own run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from penstock.backends.postgres.catalog import Described
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import Identity, literal, open_session
from penstock.backends.postgres.errors import Statement, refused
from penstock.errors import SourceError

_OPEN_TRANSACTIONS = """
select least(
         (select min(xact_start) from pg_catalog.pg_stat_activity
          where pid <> pg_catalog.pg_backend_pid() and datname = pg_catalog.current_database()
            and backend_type not in ('autovacuum worker', 'walsender') and xact_start is not null
            and application_name not like 'penstock:%:read'),
         (select min(prepared) from pg_catalog.pg_prepared_xacts where database = pg_catalog.current_database()),
         case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_xact_replay_timestamp() end,
         pg_catalog.clock_timestamp())::pg_catalog.text,
       exists (select from pg_catalog.pg_stat_activity
               where datname = pg_catalog.current_database() and backend_type is null),
       exists (select from pg_catalog.pg_prepared_xacts where database = pg_catalog.current_database()),
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.pg_is_in_recovery() and pg_catalog.pg_last_xact_replay_timestamp() is null
"""


@dataclass(frozen=True, slots=True)
class Clock:
    """What the source's clock says of the rows that may still come."""

    settled: str  # nothing that is seen to be open began before this
    hidden: bool  # other users' transactions are not seen
    prepared: bool  # of a prepared transaction, its beginning is not known
    standby: bool  # what is open on the primary is not seen
    stopped: bool  # a standby that has replayed no transaction: its own clock says nothing

    @property
    def blind(self) -> str:
        """Why a transaction that began before `settled` may still commit, "" if none can."""
        if self.prepared:
            return "the source has prepared transactions, and nobody knows when they began"
        if self.standby:
            return "the source is a standby, which does not see the transactions that are open on its primary"
        if self.hidden:
            return "this user does not see other users' open transactions (grant pg_read_all_stats)"
        return ""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a worker must know to read the holder's moment."""

    snapshot: str
    identity: Identity


class Holder:
    """Owns the connection that keeps the snapshot alive: its own, or one that a slot's creation has exported."""

    def __init__(self, conninfo: Conninfo, application: str, exported: str | None = None) -> None:
        self.conninfo = conninfo
        self.connection = open_session(conninfo, application)
        try:
            # Read before the snapshot is taken: a transaction that is open now may commit rows that
            # the snapshot does not see, and their clock says no later than its start.
            row = self.connection.execute(_OPEN_TRANSACTIONS.encode()).fetchone()
            assert row is not None  # noqa: S101  a select without FROM has one row
            self.clock = Clock(*row)
            self.connection.execute("begin isolation level repeatable read read only")
            if exported is not None:
                self.connection.execute(f"set transaction snapshot {literal(exported)}".encode())
            snapshot = self.connection.execute("select pg_catalog.pg_export_snapshot()").fetchone()
            identity = self.connection.execute(Identity.QUERY.encode()).fetchone()
        except psycopg.Error as error:
            self.connection.close()
            raise refused(error, conninfo, side=SourceError) from error
        assert snapshot is not None  # noqa: S101  as above
        assert identity is not None  # noqa: S101  as above
        self.moment = Moment(snapshot[0], Identity(*identity))

    def ask(self, sql: str, params: Sequence[Any] = (), statement: Statement | None = None) -> list[tuple[Any, ...]]:
        """A small answer under the snapshot, in the user's own search path; no lock stays."""
        try:
            with self.connection.transaction(force_rollback=True):
                return self.connection.execute(sql.encode(), params or None).fetchall()
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=SourceError, statement=statement) from error

    def copied(self, sql: str, most_bytes: int) -> Iterator[pa.Buffer]:
        """The rows of a query under the snapshot, as CSV: so many bytes at a time, each time whole rows; no lock stays.

        The search path is the user's own.
        """
        try:
            with self.connection.transaction(force_rollback=True), self.connection.cursor() as cursor:
                held = pa.BufferOutputStream()
                with cursor.copy(f"copy ({sql}) to stdout (format csv)".encode()) as copy:
                    for row in copy:
                        held.write(row)
                        if held.tell() >= most_bytes:
                            yield held.getvalue()
                            held = pa.BufferOutputStream()
                if held.tell():
                    yield held.getvalue()
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=SourceError) from error

    def catalog(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """As `ask`, with `search_path = pg_catalog`."""
        try:
            with self.connection.transaction(force_rollback=True):
                self.connection.execute("select pg_catalog.set_config('search_path', 'pg_catalog', true)")
                return self.connection.execute(sql.encode(), params or None).fetchall()
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=SourceError) from error

    def describe(self, query: str) -> list[Described]:
        """The columns of a user's query, which is planned but gives no row."""
        head = "select * from (\n"
        try:
            with self.connection.transaction(force_rollback=True):
                cursor = self.connection.execute(f"{head}{query}\n) as q limit 0".encode())
                result = cursor.pgresult
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=SourceError, statement=Statement(query, len(head))) from error
        assert result is not None  # noqa: S101  a select has a result
        return [
            Described((result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i)) for i in range(result.nfields)
        ]

    def close(self) -> None:
        if not self.connection.closed:
            self.connection.close()
