"""PostgreSQL as source and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.backends.base import (
    Backend,
    ConnectionConfig,
    ReadRequest,
    RunContext,
    Source,
    TableInfo,
    Target,
)
from penstock.backends.change_source import ChangeSource, LogNames, ReadsChanges, ReadsTexts, TableRequest
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.changes import ChangedColumn, TableVersion
from penstock.backends.postgres.capabilities import CAPABILITIES
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import DriverSession, Identity, literal, open_session
from penstock.backends.postgres.read import READABLE, PostgresSource
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import ConfigError
from penstock.schema import Schema, TableName

WORKER_MODULES = ("adbc_driver_postgresql.dbapi",)

_TABLES = """
select n.nspname::text, c.relname::text, c.relkind::text,
       case when c.reltuples >= 0 then c.reltuples::int8 end,
       -- As last counted: what asks for the size as it is now waits for whoever alters the table.
       (select nullif(sum(p.relpages)::int8, 0) * current_setting('block_size')::int8 from pg_class p
        where p.oid in (c.oid, c.reltoastrelid)
           or p.oid in (select i.indexrelid from pg_index i where i.indrelid in (c.oid, c.reltoastrelid))),
       array(select a.attname::text from pg_index i cross join unnest(i.indkey) with ordinality as k(attnum, ord)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where i.indrelid = c.oid and i.indisprimary order by k.ord)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('information_schema', '_penstock')
  and n.nspname !~ '^pg_' and not c.relispartition
  and has_schema_privilege(n.oid, 'usage')
order by 1, 2
"""
# Two sessions agree on these, or a statement on one may read or print something else than the other.
_READS_ALIKE = (
    ("user", "select session_user::text || '/' || current_user::text"),
    ("search_path", "select current_setting('search_path')"),
    ("role settings", "select coalesce(string_agg(name || '=' || setting, ';' order by name), '') from pg_settings"
     " where name in ('row_security', 'default_transaction_isolation', 'array_nulls', 'xmloption', 'xmlbinary',"
     " 'transform_null_equals')"),
)  # fmt: skip
PROBE = "penstock"
_REMEMBERED = """
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = '_penstock' and c.relname in ('replicated', 'tables')
  and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
"""
# What is remembered of a table that was let go tells that it was ours.
_WRITTEN = {
    "tables": "select target, pipeline from _penstock.tables where pipeline = %s",
    "replicated": "select target, replication from _penstock.replicated order by replication = %s",
}


class PostgresBackend(Backend, ReadsChanges, ReadsTexts, AppliesChanges):
    capabilities = CAPABILITIES
    config = PostgresConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        return PostgresSource(_mine(config), request, run)

    def beside(self, opened: Source, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        if not isinstance(opened, PostgresSource):
            raise ConfigError(f"connection {config.name!r} is not the one that is open")
        return PostgresSource(_mine(config), request, run, opened.holder)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        return PostgresTarget(_mine(config), run)

    def change_source(self, config: ConnectionConfig, names: LogNames, tables: Sequence[TableRequest]) -> ChangeSource:
        from penstock.backends.postgres.change_source import PostgresChangeSource

        return PostgresChangeSource(_mine(config), names, tables)

    def applier(self, config: ConnectionConfig, replication: str) -> Applier:
        from penstock.backends.postgres.apply import PostgresApplier

        return PostgresApplier(_mine(config), replication)

    def written_by(self, config: ConnectionConfig, replication: str) -> Mapping[TableName, str]:
        conninfo = _mine(config).conninfo()
        with open_session(conninfo, PROBE, (("search_path", "pg_catalog"),)) as connection:
            session = DriverSession(connection, conninfo)
            known = {name for (name,) in session.query(_REMEMBERED)}
            rows = [
                row for name, sql in _WRITTEN.items() if name in known for row in session.query(sql, (replication,))
            ]
        return {TableName.parse(target): name for target, name in rows}

    def left_at_source(self, names: LogNames) -> list[str]:
        from penstock.backends.postgres.publications import removal

        return [f"select pg_drop_replication_slot({literal(names.slot)})", *removal(names)]

    def left_at_target(self, replication: str) -> list[str]:
        from penstock.backends.applier import removal

        return removal(literal(replication))

    def text_values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        from penstock.backends.postgres.texts import read_values

        return read_values(version, schema, rows)

    def text_keys(self, column: ChangedColumn, texts: pa.Array) -> pa.Array | None:
        from penstock.backends.postgres.texts import read_keys

        return read_keys(column, texts)

    def test(self, config: ConnectionConfig) -> str:
        with open_session(_mine(config).conninfo(), PROBE) as connection:
            version = connection.info.parameter_status("server_version") or str(connection.info.server_version)
        return f"PostgreSQL {version.split()[0]}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        conninfo = _mine(config).conninfo()
        with open_session(conninfo, PROBE, (("search_path", "pg_catalog"),)) as connection:
            rows = DriverSession(connection, conninfo).query(_TABLES)
        return [
            TableInfo(TableName(schema, name), READABLE[kind], count, size, tuple(key))
            for schema, name, kind, count, size, key in rows
        ]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        first, second = _mine(a).conninfo(), _mine(b).conninfo()
        with open_session(first, PROBE) as one, open_session(second, PROBE) as two:
            left, right = DriverSession(one, first), DriverSession(two, second)
            if left.query(Identity.QUERY) != right.query(Identity.QUERY):
                return False, "source and target are different databases"
            for name, question in _READS_ALIKE:
                if left.query(question) != right.query(question):
                    return False, f"source and target differ in their {name}"
        return True, "source and target are the same database"


def _mine(config: ConnectionConfig) -> PostgresConfig:
    if not isinstance(config, PostgresConfig):
        raise ConfigError(f"connection {config.name!r} is not a postgres connection")
    return config


__all__ = ["PostgresBackend", "PostgresConfig"]
