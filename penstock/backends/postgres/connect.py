"""Sessions on a Postgres server: ADBC where rows are read, psycopg for everything else.

Every session prints values the same way whatever the server's defaults are, so that a text form
read by one is what another takes in. Nothing here retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg import sql

from penstock.backends.postgres import watchman
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.errors import DRIVER_ERRORS, Statement, connecting, refused
from penstock.backends.postgres.silence import PatientConnection
from penstock.backends.sql import SqlSession
from penstock.errors import PenstockError, PlanRefused, TargetError

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc

OLDEST_SERVER = 140_000

# How values are printed and read; and no time-out of the server's may end a long copy.
SETTINGS: tuple[tuple[str, str], ...] = (
    # First of all: a user's short time-out runs from the moment of the login.
    ("idle_session_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("statement_timeout", "0"),
    # A policy would hide rows in silence: a read that misses them, a merge that inserts them again.
    ("row_security", "off"),
    ("timezone", "UTC"),
    ("datestyle", "ISO, YMD"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("standard_conforming_strings", "on"),
    # A server learns only by this that the client of a running statement has died,
    ("client_connection_check_interval", "1000"),
    # and by these that a whole machine has: its sessions would hold their locks for two hours.
    ("tcp_keepalives_idle", "20"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "4"),
)


def literal(value: str) -> str:
    """A string constant, for statements that take no parameters (COPY, EXPLAIN, views)."""
    return "'" + value.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def open_session(conninfo: Conninfo, application: str, extra: Sequence[tuple[str, str]] = ()) -> PatientConnection:
    """A psycopg session in autocommit, with all settings made."""
    try:
        connection = PatientConnection.open(conninfo, application)
    except psycopg.Error as error:
        raise connecting(error, conninfo) from None
    try:
        server = connection.info.server_version
        if server < OLDEST_SERVER:
            raise PlanRefused(
                f"the server of connection {conninfo.name!r} is too old",
                why=f"it is version {server // 10000}, the oldest supported is {OLDEST_SERVER // 10000}",
            )
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            raise PlanRefused(
                f"the database of connection {conninfo.name!r} has no encoding (SQL_ASCII)",
                why="its texts may be any bytes, so they cannot be moved as text",
                remedy="copy the database into one with an encoding",
            )
        calls = [
            sql.SQL("pg_catalog.set_config({}, {}, false)").format(name, value) for name, value in (*SETTINGS, *extra)
        ]
        connection.execute(sql.SQL("select ") + sql.SQL(", ").join(calls))
    except psycopg.Error as error:
        connection.close()
        raise refused(error, conninfo, side=PlanRefused) from error
    except PenstockError:
        connection.close()
        raise
    return connection


@contextmanager
def reading_session(conninfo: Conninfo, application: str) -> Iterator[adbc.Connection]:
    """An ADBC session inside a transaction, rolled back and closed on the way out.

    Settings are made by SET, which takes no snapshot: `set transaction …` may still follow.
    A statement over a link that has broken may end the process inside the driver: only workers, which
    Spark starts again, have such sessions.
    """
    import adbc_driver_postgresql.dbapi as adbc  # brings pandas, which the driver has no use for

    before = watchman.sockets()
    try:
        # A question that nobody acknowledges: the kernel would send it again for a quarter of an hour. Not where rows
        # are written: it would also cut off a server that takes none for a while.
        lost = f"{conninfo.patience * 1000:.0f}"
        text = conninfo.libpq(application_name=application, client_encoding="UTF8", tcp_user_timeout=lost)
        connection = adbc.connect(text)
    except DRIVER_ERRORS as error:
        raise connecting(error, conninfo) from None
    try:
        link = watchman.opened_since(before)
        with connection.cursor() as cursor:
            cursor.execute("select pg_catalog.pg_backend_pid()")
            [backend] = cursor.fetchone()
        connection.commit()  # that was a transaction with a snapshot of its own
        with watchman.watched(link, conninfo, application, backend):
            with connection.cursor() as cursor:
                for name, value in SETTINGS:
                    cursor.execute(f"set {name} to {literal(value)}")
            yield connection
    finally:
        # Closing ends the transaction; a rollback on a broken link would hide the first error.
        connection.close()


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server and database a session has reached: a balancer may lead elsewhere."""

    started: str
    system: str  # "" where the user may not see it
    database: str

    QUERY: ClassVar[str] = (
        "select pg_catalog.pg_postmaster_start_time()::pg_catalog.text,"
        " case when pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'execute')"
        " then (select system_identifier::pg_catalog.text from pg_catalog.pg_control_system()) else '' end,"
        " pg_catalog.current_database()::pg_catalog.text"
    )


class DriverSession(SqlSession):
    """A psycopg connection as the shared steps of a load see it."""

    placeholder = "%s"

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], conninfo: Conninfo) -> None:
        self._connection = connection
        self.conninfo = conninfo
        self.side: type[PenstockError] = TargetError

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        return self._connection

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        try:
            # Without parameters psycopg leaves `%` alone, and the text may be several statements.
            cursor = self.connection.execute(sql.encode(), params or None)
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=self.side, statement=Statement(sql)) from error
        return max(cursor.rowcount, 0)

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self.connection.execute(sql.encode(), params or None).fetchall()
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=self.side, statement=Statement(sql)) from error

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction of its own; an error of its COMMIT is mapped like any other."""
        try:
            with self.connection.transaction():
                yield
        except psycopg.Error as error:
            raise refused(error, self.conninfo, side=self.side) from error

    def transaction(self) -> str:
        return str(self.query("select pg_catalog.txid_current()")[0][0])

    def savepoint(self) -> None:
        self.execute("savepoint _penstock")

    def rollback_to_savepoint(self) -> None:
        self.execute("rollback to savepoint _penstock")
