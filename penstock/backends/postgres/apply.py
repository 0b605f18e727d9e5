"""Changes into Postgres: staged as text by COPY in the flush's own transaction, cast by the server itself.

The texts are those that a Postgres has printed: this one reads each as the value that it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pyarrow.csv

from penstock.backends.applier import SqlApplier
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import DriverSession, identifier, open_session
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.errors import refused
from penstock.backends.postgres.native import staging_type
from penstock.backends.postgres.types import BACKEND
from penstock.backends.sql import SqlSession, ensure_catalog
from penstock.backends.steps import TableLoad
from penstock.errors import TargetError
from penstock.schema import TableName

_TYPES = {pa.bool_(): "boolean", pa.int64(): "bigint", pa.timestamp("us", "UTC"): "timestamptz"}
_OPTIONS = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")


class PostgresApplier(SqlApplier):
    """Keeps one session for all flushes."""

    texts_of = BACKEND

    def __init__(self, config: PostgresConfig, replication: str) -> None:
        super().__init__(replication)
        self._conninfo = config.conninfo()
        connection = open_session(
            self._conninfo, f"penstock:{replication}:apply", (("lock_timeout", config.lock_timeout),)
        )
        self._session = DriverSession(connection, self._conninfo)
        with self._session.atomic():
            ensure_catalog(self._session)

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        with self._session.atomic():
            yield self._session

    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None:
        known = {staged.column.name: staging_type(staged.column, staged.native) for staged in load.columns}
        columns = ", ".join(
            f"{identifier(f.name)} {known.get(f.name) or _TYPES.get(f.type, 'text')}" for f in rows.schema
        )
        session.execute(f"create temp table {name} ({columns}) on commit drop")
        text = pa.BufferOutputStream()
        # NULL is an empty field, an empty text is "": as COPY reads them.
        pyarrow.csv.write_csv(rows, text, _OPTIONS)
        try:
            with self._session.connection.cursor().copy(f"copy {name} from stdin (format csv)".encode()) as copy:
                copy.write(memoryview(text.getvalue()))
        except psycopg.Error as error:
            raise refused(error, self._conninfo, side=TargetError) from error

    def unstage(self, session: SqlSession, name: str) -> None:
        session.execute(f"drop table {name}")

    def exists(self, session: SqlSession, table: TableName) -> bool:
        found = session.query("select pg_catalog.to_regclass(%s) is not null", (qualified(table),))
        return bool(found[0][0])

    def close(self) -> None:
        self._session.connection.close()
