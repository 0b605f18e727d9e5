"""Changes into DuckDB: the file is open for the flush alone, and Arrow tables are read where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.backends.applier import SqlApplier
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import Session, open_file
from penstock.backends.duckdb.dialect import same_name
from penstock.backends.sql import SqlSession, ensure_catalog
from penstock.backends.steps import TableLoad
from penstock.schema import TableName


class DuckDBApplier(SqlApplier):
    """Opens the file for each flush: while it is open, nobody else can read it."""

    def __init__(self, config: DuckDBConfig, replication: str) -> None:
        super().__init__(replication)
        self._config = config

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        with open_file(self._config, read_only=False) as session:
            session.execute("begin")
            ensure_catalog(session)
            yield session
            # If we die before this, the file has nothing of the flush; after it, all.
            session.execute("commit")

    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None:  # noqa: ARG002
        assert isinstance(session, Session)  # noqa: S101  its own
        session.connection.register(name, rows)

    def unstage(self, session: SqlSession, name: str) -> None:
        assert isinstance(session, Session)  # noqa: S101  its own
        session.connection.unregister(name)

    def exists(self, session: SqlSession, table: TableName) -> bool:
        found = session.query(
            "select 1 from duckdb_tables() where database_name = current_database()"
            f" and {same_name('schema_name')} and {same_name('table_name')}",
            (table.schema or self._config.default_schema, table.table),
        )
        return bool(found)

    def close(self) -> None:
        """Nothing is open between two flushes."""
