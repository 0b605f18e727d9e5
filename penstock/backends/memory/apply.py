"""Changes into a memory store: worked out by a database in the same process, put into the store flush by flush.

The database has the tables, the watermark and the states, and takes each flush in one transaction. Then every table
that it has changed takes the place of the one in the store, all of them in one step: whoever reads the store sees
whole transactions only. All of it ends with the process; the next one begins anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext
from penstock.backends.change_target import Applied, Applier, AppliesChanges, Flush, TableFlush
from penstock.backends.memory.store import Loaded, Store, StoredTable
from penstock.backends.memory.types import field_of
from penstock.errors import Unsupported
from penstock.schema import TableName

OWN = "_penstock_"  # begins the names of tables that nobody is to see


class MemoryApplier(Applier):
    """One replication into one store, by way of a database that only it uses."""

    lasting = False

    def __init__(self, store: Store, database: Backend, config: ConnectionConfig, replication: str) -> None:
        if not isinstance(database, AppliesChanges):
            raise Unsupported(f"{database.capabilities.title} cannot be the target of a replication")
        self._store = store
        self._database = database
        self._config = config
        self._replication = replication
        self._inner = database.applier(config, replication)

    def claim(self) -> Applied:
        applied = self._inner.claim()
        # What another agent of this process has committed, and perhaps not put into the store any more.
        self._show([state.target for state in applied.tables if state.phase == "streaming"])
        return applied

    def flush(self, flush: Flush) -> None:
        touched: list[TableName] = []
        self._inner.flush(replace(flush, tables=_noting(flush.tables, touched)))
        self._show(touched)

    def known(self) -> Applied | None:
        return self._inner.known()

    def _show(self, tables: Sequence[TableName]) -> None:
        """All of them in one step."""
        visible = [name for name in dict.fromkeys(tables) if not name.table.startswith(OWN)]
        self._store.put({self._known_as(name): self._read(name) for name in visible})

    def _known_as(self, table: TableName) -> TableName:
        """Without the schema that the database gives a table that has none."""
        default = getattr(self._config, "default_schema", None)
        return TableName(None, table.table) if table.schema == default else table

    def _read(self, table: TableName) -> StoredTable:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            run = RunContext.new(self._replication, Path(folder))
            source = self._database.source(self._config, ReadRequest(table), run)
            try:
                columns = list(source.schema())
                split = source.partitions(columns, 1)
                source.hand_out()
                batches = [batch for partition in split.partitions for batch in partition.read()]
            finally:
                source.close()
        schema = pa.schema([field_of(column) for column in columns])
        rows = pa.Table.from_batches(batches) if batches else schema.empty_table()
        names = frozenset(column.name for column in columns)
        return StoredTable(rows.cast(schema), {self._replication: Loaded(None, names)})

    def has_table(self, table: TableName) -> bool:
        return self._inner.has_table(table)

    def remove(self) -> None:
        self._inner.remove()

    def close(self) -> None:
        self._inner.close()


def _noting(tables: Iterable[TableFlush], touched: list[TableName]) -> Iterator[TableFlush]:
    for table in tables:
        touched.append(table.load.table)
        yield table
