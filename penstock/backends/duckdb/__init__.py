"""DuckDB files, and databases in memory, as sources and targets."""

from __future__ import annotations

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext, Source, TableInfo, Target
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.duckdb.capabilities import CAPABILITIES
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import open_file
from penstock.backends.duckdb.inmemory import database
from penstock.backends.duckdb.read import DuckDBSource
from penstock.backends.duckdb.write import DuckDBTarget
from penstock.errors import ConfigError
from penstock.schema import TableName

TABLES = """
    select t.schema_name, t.table_name, 'table', t.estimated_size,
           coalesce((select constraint_column_names from duckdb_constraints() c
                     where c.table_oid = t.table_oid and c.database_name = t.database_name
                       and c.constraint_type = 'PRIMARY KEY' limit 1), [])
    from duckdb_tables() t
    where t.database_name = current_database() and not t.internal and t.schema_name <> '_penstock'
    union all
    select schema_name, view_name, 'view', null, []
    from duckdb_views()
    where database_name = current_database() and not internal and schema_name <> '_penstock'
    order by 1, 2
"""


class DuckDBBackend(Backend, AppliesChanges):
    capabilities = CAPABILITIES
    config = DuckDBConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        return DuckDBSource(_own(config), request, run)

    def beside(self, opened: Source, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        if not isinstance(opened, DuckDBSource):
            raise ConfigError(f"connection {config.name!r} is not the one that is open")
        return opened.beside(request, run)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        return DuckDBTarget(_own(config), run)

    def applier(self, config: ConnectionConfig, replication: str) -> Applier:
        from penstock.backends.duckdb.apply import DuckDBApplier

        return DuckDBApplier(_own(config), replication)

    def test(self, config: ConnectionConfig) -> str:
        if not _own(config).in_memory and not _own(config).file.exists():
            return "DuckDB, no file yet: the first load makes it"
        with open_file(_own(config), read_only=True) as session:
            return f"DuckDB {session.query('select version()')[0][0].removeprefix('v')}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        with open_file(_own(config), read_only=True) as session:
            return [
                TableInfo(TableName(schema, table), kind, rows, None, tuple(key))
                for schema, table, kind, rows, key in session.query(TABLES)
            ]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        ours, theirs = _own(a), _own(b)
        if ours.in_memory and theirs.in_memory:
            if ours.memory_name != theirs.memory_name:
                return False, f"{ours.label} and {theirs.label} are two"
        elif ours.in_memory or theirs.in_memory or ours.file != theirs.file:
            return False, f"{ours.label} and {theirs.label} are two databases"
        if ours.default_schema != theirs.default_schema:
            return False, "the two connections have different default schemas"
        return True, "both are the same database"


def _own(config: ConnectionConfig) -> DuckDBConfig:
    if not isinstance(config, DuckDBConfig):
        raise ConfigError(f"connection {config.name!r} is not a duckdb connection")
    return config


__all__ = ["DuckDBBackend", "DuckDBConfig", "database"]
