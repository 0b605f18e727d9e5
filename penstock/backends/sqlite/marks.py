"""Which file, and which tables in it: whoever reads must read what was planned."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session
from penstock.errors import SourceMoved


@dataclass(frozen=True, slots=True)
class FileMark:
    """A file and the state of its schema."""

    device: int
    inode: int
    schema: int  # SQLite's own count of changes to the schema

    @staticmethod
    def of(config: SQLiteConfig, session: Session) -> FileMark:
        schema = int(session.query("pragma schema_version")[0][0])
        if config.in_memory:
            return FileMark(0, 0, schema)
        stat = os.stat(config.file)  # never opened: closing a plain handle would drop SQLite's locks
        return FileMark(stat.st_dev, stat.st_ino, schema)

    def require(self, config: SQLiteConfig, session: Session) -> None:
        """Raise if it is another file, or has other tables."""
        if FileMark.of(config, session) != self:
            raise SourceMoved(
                f"{config.label} is not as the run began with it",
                why="it was replaced, a table was altered, or the worker sees another file system than the driver",
                remedy="run it again; with workers on other machines, keep the file on a shared folder",
            )
