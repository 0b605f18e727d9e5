"""Changes into SQLite: one immediate transaction per flush, staged in temporary tables of its connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from penstock.backends.applier import SqlApplier, staged_as
from penstock.backends.sql import SqlSession, ensure_catalog
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session, open_target
from penstock.backends.sqlite.encode import stored
from penstock.backends.sqlite.write import Cells
from penstock.backends.steps import TableLoad
from penstock.schema import TableName


class SQLiteApplier(SqlApplier):
    """Keeps one connection: other processes may read and write between two flushes."""

    def __init__(self, config: SQLiteConfig, replication: str) -> None:
        super().__init__(replication)
        self._session = open_target(config, create=True)
        if not config.in_memory:
            # Readers go on reading during a flush, and a flush that was committed outlives a power cut.
            self._session.query("pragma journal_mode = wal")
            self._session.execute("pragma synchronous = full")

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        # The right to write is taken at once: a flush that had read first could lose it to another.
        self._session.execute("begin immediate")
        try:
            ensure_catalog(self._session)
            yield self._session
            self._session.execute("commit")
        except BaseException:  # Ctrl-C too: no transaction stays open
            self._session.execute("rollback")
            raise

    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None:
        assert isinstance(session, Session)  # noqa: S101  its own
        found = [(name, staged_as(load, name)) for name in rows.column_names]
        own = tuple(replace(one, column=one.column.renamed(name)) for name, one in found if one is not None)
        cells = Cells(own, tuple(staged.column.name for staged in own[:1]), str(load.table))
        batches = []
        for batch in rows.combine_chunks().to_batches():
            made = cells.stored(batch)
            for field in batch.schema:
                if field.name not in made.schema.names:
                    made = made.append_column(field.name, stored(batch.column(field.name)))
            batches.append(made)
        session.ingest(name, pa.Table.from_batches(batches).to_reader())

    def unstage(self, session: SqlSession, name: str) -> None:
        session.execute(f"drop table temp.{name}")

    def exists(self, session: SqlSession, table: TableName) -> bool:
        found = session.query(
            "select 1 from main.sqlite_schema where type = 'table' and name = ? collate nocase", (table.table,)
        )
        return bool(found)

    def close(self) -> None:
        self._session.close()
