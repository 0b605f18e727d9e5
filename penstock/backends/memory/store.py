"""Named stores of Arrow tables in this process.

A stored table never changes: whoever has taken it keeps what it was, and a commit puts another in
its place, under the store's lock. Nothing of a store is ever pickled or seen by another process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.backends.memory.types import canonical_table, column_of
from penstock.errors import ConfigError
from penstock.schema import Column, TableName


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is remembered of a pipeline that loads a table."""

    watermark: str | None
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as it is at one moment, with the pipelines that have loaded it."""

    data: pa.Table  # its fields say what the columns mean
    loaded: Mapping[str, Loaded] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column_of(one) for one in self.data.schema)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tables of a store at one moment: references, since what they point to never changes."""

    name: str
    tables: Mapping[TableName, StoredTable]


class Store(MutableMapping[str, pa.Table]):
    """Tables by name, `items` or `sales.items`, parts quoted as in SQL. Safe to use from several threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self._tables: dict[TableName, StoredTable] = {}

    # ------------------------------------------------------------ for people

    def __getitem__(self, name: str) -> pa.Table:
        found = self.find(TableName.parse(name))
        if found is None:
            raise KeyError(name)
        return found.data

    def __setitem__(self, name: str, table: pa.Table) -> None:
        """Put a table in. It is a new one: what loads have left behind for an older one is forgotten."""
        if not isinstance(table, pa.Table):
            raise ConfigError(
                f"a memory store keeps Arrow tables, not {type(table).__name__}",
                remedy="pa.table(…), pa.Table.from_pandas(…), pa.Table.from_batches(…)",
            )
        self.put({TableName.parse(name): StoredTable(canonical_table(table))})

    def __delitem__(self, name: str) -> None:
        with self.lock:
            try:
                del self._tables[TableName.parse(name)]
            except KeyError:
                raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter([str(name) for name in self.names()])

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        tables = ", ".join(f"{name}: {self.rows(name):,} rows" for name in self.names())
        return f"<memory store {self.name!r}{': ' if tables else ''}{tables}>"

    # ------------------------------------------------------------ for loads

    def snapshot(self) -> Snapshot:
        with self.lock:
            return Snapshot(self.name, dict(self._tables))

    def names(self) -> list[TableName]:
        with self.lock:
            return sorted(self._tables, key=lambda name: name.parts)

    def rows(self, name: TableName) -> int:
        found = self.find(name)
        return found.data.num_rows if found is not None else 0

    def find(self, name: TableName) -> StoredTable | None:
        return self._tables.get(name)

    def put(self, tables: Mapping[TableName, StoredTable]) -> None:
        """All of them in one step: an interrupt finds either none of them there, or every one."""
        with self.lock:
            self._tables = {**self._tables, **tables}


_stores: dict[str, Store] = {}
_making = threading.Lock()


def memory(name: str) -> Store:
    """The store of this name in this process; made when it is first asked for."""
    with _making:
        return _stores.setdefault(name, Store(name))
