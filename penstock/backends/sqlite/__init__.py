"""SQLite files, and databases in memory, as sources and targets."""

from __future__ import annotations

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext, Source, TableInfo, Target
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.sqlite.capabilities import CAPABILITIES
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import PREFIX, Session, open_source
from penstock.backends.sqlite.inmemory import database
from penstock.backends.sqlite.read import SQLiteSource
from penstock.backends.sqlite.types import quote
from penstock.backends.sqlite.write import SQLiteTarget
from penstock.errors import ConfigError
from penstock.schema import TableName

TABLES = """
    select name, type
    from pragma_table_list
    where schema = 'main' and type <> 'shadow'
    order by 1
"""


class SQLiteBackend(Backend, AppliesChanges):
    capabilities = CAPABILITIES
    config = SQLiteConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        return SQLiteSource(_own(config), request, run)

    def beside(self, opened: Source, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        if not isinstance(opened, SQLiteSource):
            raise ConfigError(f"connection {config.name!r} is not the one that is open")
        return SQLiteSource(_own(config), request, run, opened)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        return SQLiteTarget(_own(config), run)

    def applier(self, config: ConnectionConfig, replication: str) -> Applier:
        from penstock.backends.sqlite.apply import SQLiteApplier

        return SQLiteApplier(_own(config), replication)

    def test(self, config: ConnectionConfig) -> str:
        if not _own(config).in_memory and not _own(config).file.exists():
            return "SQLite, no file yet: the first load makes it"
        with open_source(_own(config)) as session:
            return f"SQLite {session.query('select sqlite_version()')[0][0]}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        with open_source(_own(config)) as session:
            return [
                TableInfo(TableName("main", name), kind, _rows(session, name, kind), None, _key(session, name))
                for name, kind in session.query(TABLES)
                if not name.startswith((PREFIX, "sqlite_"))
            ]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        ours, theirs = _own(a), _own(b)
        if ours.label != theirs.label and not _one_file(ours, theirs):
            return False, f"{ours.label} and {theirs.label} are two databases"
        return True, "both are the same database"


def _one_file(ours: SQLiteConfig, theirs: SQLiteConfig) -> bool:
    """Under two names that are no links to each other: a file may have several."""
    there = not (ours.in_memory or theirs.in_memory) and ours.file.exists() and theirs.file.exists()
    return there and ours.file.samefile(theirs.file)


def _rows(session: Session, name: str, kind: str) -> int | None:
    """SQLite keeps no estimate: the rows are counted, along an index where there is one."""
    if kind != "table":
        return None
    return int(session.query(f"select count(*) from main.{quote(name)}")[0][0])


def _key(session: Session, name: str) -> tuple[str, ...]:
    rows = session.query("select name from pragma_table_xinfo(?, 'main') where pk > 0 order by pk", (name,))
    return tuple(key for (key,) in rows)


def _own(config: ConnectionConfig) -> SQLiteConfig:
    if not isinstance(config, SQLiteConfig):
        raise ConfigError(f"connection {config.name!r} is not a sqlite connection")
    return config


__all__ = ["SQLiteBackend", "SQLiteConfig", "database"]
