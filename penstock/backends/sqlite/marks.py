"""Which file, and which tables in it: whoever reads must read what was planned."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from penstock.backends.base import Check
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session
from penstock.backends.sqlite.types import literal
from penstock.errors import SourceMoved

VERSION = "(select schema_version from pragma_schema_version)"
DEFINED = (
    "(select group_concat(type || ' ' || name || ' ' || coalesce(sql, ''), char(10) order by type, name)"
    " from main.sqlite_schema)"
)


@dataclass(frozen=True, slots=True)
class FileMark:
    """A file and the state of its schema."""

    device: int
    inode: int
    schema: int  # SQLite's own count of changes to the schema
    tables: str  # a digest of what they are defined as: of a file overwritten in place, the count may be the same

    @staticmethod
    def of(config: SQLiteConfig, session: Session) -> FileMark:
        return FileMark._of(config, session)[0]

    @staticmethod
    def _of(config: SQLiteConfig, session: Session) -> tuple[FileMark, str]:
        [(schema, defined)] = session.query(f"select {VERSION}, coalesce({DEFINED}, '')")
        tables = hashlib.sha256(defined.encode()).hexdigest()
        if config.in_memory:
            return FileMark(0, 0, schema, tables), defined
        stat = os.stat(config.file)  # never opened: closing a plain handle would drop SQLite's locks
        return FileMark(stat.st_dev, stat.st_ino, schema, tables), defined

    def require(self, config: SQLiteConfig, session: Session) -> str:
        """What the tables are defined as; raises if it is another file, or has other tables."""
        now, defined = FileMark._of(config, session)
        if now != self:
            raise SourceMoved(
                f"{config.label} is not as the run began with it",
                why="it was replaced, a table was altered, or the worker sees another file system than the driver",
                remedy="run it again; with workers on other machines, keep the file on a shared folder",
            )
        return defined

    def check(self, config: SQLiteConfig, session: Session) -> Check:
        """The same for a transaction on the file that is not of this session."""
        defined = literal(self.require(config, session))
        return Check(
            f"select 1 where {VERSION} <> {self.schema} or coalesce({DEFINED}, '') <> {defined}",
            f"{config.label} is not as the run began with it",
            why="it was replaced, or a table was altered, since the load was planned",
            moved=True,
        )
