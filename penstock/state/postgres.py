"""The store's tables in a Postgres that several machines share, in a schema of their own.

Text of driver errors is shown only after the URL's secrets have been taken out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from penstock.errors import DriverMissing, StateError
from penstock.observe import redact
from penstock.state.medium import BUSY_SECONDS, Medium, Transaction, first_line

SCHEMA = "penstock_state"
DRIVERS = ("postgresql", "postgres", "postgresql+psycopg")
# An advisory lock that only Penstock's migrations take: "penstock" in ASCII.
MIGRATION_LOCK = 0x70656E73746F636B


class PostgresTransaction(Transaction):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Mapping[str, Any] | None = None) -> int:
        return self._connection.execute(text(sql), dict(values or {})).rowcount

    def query(self, sql: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(text(sql), dict(values or {})).mappings()]


class PostgresMedium(Medium):
    prefix = f"{SCHEMA}."
    moment_type = "timestamp with time zone"
    serial_type = "bigint generated always as identity"
    remedy = f"check that the server answers and that the user may create the schema {SCHEMA}"

    def __init__(self, given: str) -> None:
        redact.register_fields({"url": given})
        url = _url(given)
        super().__init__(url.set(query={}).render_as_string(hide_password=True))
        self._engine = _engine(url)

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[Transaction]:  # noqa: ARG002  both are alike here
        try:
            with self._engine.begin() as connection:
                yield PostgresTransaction(connection)
        except IntegrityError as error:
            raise self.known_already(error.orig) from error
        except SQLAlchemyError as error:
            raise self.unusable(first_line(getattr(error, "orig", None) or error)) from error

    def has_table(self, transaction: Transaction, name: str) -> bool:
        found = transaction.query("select to_regclass(:name) is not null as found", {"name": self.prefix + name})
        return bool(found[0]["found"])

    def claim(self, transaction: Transaction) -> None:
        transaction.query("select pg_advisory_xact_lock(:key)", {"key": MIGRATION_LOCK})
        transaction.execute(f"create schema if not exists {SCHEMA}")

    def stored(self, moment: datetime) -> Any:
        return moment

    def moment(self, stored: Any) -> datetime:
        found: datetime = stored
        return found.astimezone(UTC)

    def close(self) -> None:
        self._engine.dispose()


def _url(given: str) -> URL:
    try:
        url: URL | None = make_url(given)
    except (ArgumentError, ValueError):
        # The cause is dropped: a password with a slash in it is read as a port, and shown.
        url = None
    if url is None:
        raise StateError("the state store's URL cannot be read", remedy="like postgresql://user@host/db")
    if url.drivername not in DRIVERS:
        raise StateError(
            f"a state store cannot be a {url.drivername!r}", remedy="a file, memory:, or postgresql://user@host/db"
        )
    return url


def _engine(url: URL) -> Engine:
    try:
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=1,
            pool_pre_ping=True,
            connect_args={"application_name": "penstock:state", "connect_timeout": int(BUSY_SECONDS)},
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise DriverMissing(
            "the driver of the Postgres state store is not installed",
            why=str(error),
            remedy="pip install 'penstock[postgres]'",
        ) from error
