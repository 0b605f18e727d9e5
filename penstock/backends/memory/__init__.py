"""Arrow tables in this process, by name, as sources and targets.

ps.memory("scratch")["items"] = pa.table({"id": [1, 2]})     # read by type = "memory" connections
ps.memory("scratch")["items"]                                # what a load has left there
"""

from __future__ import annotations

import pyarrow as pa

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext, Source, TableInfo, Target
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.memory.capabilities import CAPABILITIES
from penstock.backends.memory.config import MemoryConfig
from penstock.backends.memory.read import MemorySource
from penstock.backends.memory.store import Store, memory
from penstock.backends.memory.write import MemoryTarget
from penstock.backends.registry import backend
from penstock.errors import ConfigError


class MemoryBackend(Backend, AppliesChanges):
    capabilities = CAPABILITIES
    config = MemoryConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        return MemorySource(_store(config).snapshot(), request, run)

    def beside(self, opened: Source, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        if not isinstance(opened, MemorySource):
            raise ConfigError(f"connection {config.name!r} is not the one that is open")
        return MemorySource(opened.snapshot, request, run)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        return MemoryTarget(_store(config), run)

    def applier(self, config: ConnectionConfig, replication: str) -> Applier:
        from penstock.backends.memory.apply import MemoryApplier

        database = self.works_in(config)
        return MemoryApplier(_store(config), backend(database.type), database, replication)

    def works_in(self, config: ConnectionConfig) -> ConnectionConfig:
        """A DuckDB in memory: changes need keys, casts and transactions, and a store has none of them."""
        return backend("duckdb").config.model_validate(
            {"type": "duckdb", "name": config.name, "path": f":memory:_penstock_{_store(config).name}"}
        )

    def test(self, config: ConnectionConfig) -> str:
        return f"{len(_store(config))} Arrow tables in this process, pyarrow {pa.__version__}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        store = _store(config)
        found = [(name, table) for name in store.names() if (table := store.find(name)) is not None]
        return [TableInfo(name, "table", table.data.num_rows, table.data.nbytes) for name, table in found]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        return False, f"{_store(a).name!r} and {_store(b).name!r} run no statement"


def _store(config: ConnectionConfig) -> Store:
    if not isinstance(config, MemoryConfig):
        raise ConfigError(f"connection {config.name!r} is not a memory connection")
    return memory(config.store_name)


__all__ = ["MemoryBackend", "MemoryConfig", "Store", "memory"]
