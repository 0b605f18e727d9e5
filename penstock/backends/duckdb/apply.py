"""Changes into DuckDB: the file is open for the flush alone, and Arrow tables are read where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.backends.applier import SqlApplier
from penstock.backends.change_target import TableFailed
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import OutOfMemory, Session, open_file
from penstock.backends.duckdb.dialect import same_name
from penstock.backends.sql import SqlSession, ensure_catalog
from penstock.backends.steps import TableLoad
from penstock.errors import NOT_COMMITTED, NotNow
from penstock.schema import TableName


class _Lent:
    """Rows that DuckDB reads by a name, as long as it is said that it may.

    It keeps what was registered in a transaction until that ends: of a large one, all rounds at once.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows: pa.Table | None = rows

    def take_back(self) -> None:
        self._rows = None

    def __arrow_c_schema__(self) -> object:
        assert self._rows is not None  # noqa: S101  nobody reads it any more
        return self._rows.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Each time it is read."""
        assert self._rows is not None  # noqa: S101  as above
        return self._rows.__arrow_c_stream__(requested_schema)


class DuckDBApplier(SqlApplier):
    """Opens the file for each flush: while it is open, nobody else can read it."""

    def __init__(self, config: DuckDBConfig, replication: str) -> None:
        super().__init__(replication)
        self._config = config
        self._limits = list(config.memory_limits)
        self._lent: dict[str, _Lent] = {}

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        try:
            with open_file(self._config, read_only=False, memory_limit=self._limits[0]) as session:
                session.execute("begin")
                ensure_catalog(session)
                yield session
                # If we die before this, the file has nothing of the flush; after it, all.
                session.execute("commit")
        except (OutOfMemory, TableFailed) as error:
            found = error.error if isinstance(error, TableFailed) else error
            if not isinstance(found, OutOfMemory) or len(self._limits) == 1:
                raise
            # What cannot spill, the index of a large key for one, needs as much the next time.
            self._limits.pop(0)
            raise NotNow(
                "a flush needs more memory",
                why=f"DuckDB cannot do with its memory_limit, not even by spilling; {self._limits[0]} are next",
                kept=NOT_COMMITTED,
                remedy="it is tried again by itself",
            ) from error

    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None:  # noqa: ARG002  Arrow has its types
        assert isinstance(session, Session)  # noqa: S101  its own
        self._lent[name] = _Lent(rows)
        session.connection.register(name, self._lent[name])

    def unstage(self, session: SqlSession, name: str) -> None:
        assert isinstance(session, Session)  # noqa: S101  its own
        session.connection.unregister(name)
        self._lent.pop(name).take_back()

    def exists(self, session: SqlSession, table: TableName) -> bool:
        found = session.query(
            "select 1 from duckdb_tables() where database_name = current_database()"
            f" and {same_name('schema_name')} and {same_name('table_name')}",
            (table.schema or self._config.default_schema, table.table),
        )
        return bool(found)

    def close(self) -> None:
        """Nothing is open between two flushes."""
