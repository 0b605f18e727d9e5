"""A copy of a whole database, for several tasks or tables: nobody changes it, so all of them read one moment.

Made by SQLite itself (VACUUM INTO, inside one read transaction, while others go on writing) when rows
are about to move: while planning, only for a function that may look at them. It lies in the project's
staging and goes with the source.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote as percent

from penstock.backends.base import RunContext
from penstock.backends.exchange import FOLDER
from penstock.backends.locks import BY_PROJECT, cannot_write
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import open_source
from penstock.backends.sqlite.marks import FileMark
from penstock.backends.sqlite.types import literal
from penstock.backends.staging import StagingArea, sweep
from penstock.errors import SourceMoved

# Of a smaller file, one task has read all before a copy is made and a second task has begun.
LEAST_BYTES = 64 * 1024 * 1024
# Below this, starting a task costs more than it saves.
MIN_ROWS = 100_000
# A copy is of the whole file: it pays for a table that is a good part of it.
LEAST_SHARE = 0.25


class Copy:
    """The copy of one database in one run."""

    def __init__(self, config: SQLiteConfig, mark: FileMark, run: RunContext) -> None:
        self._config = config
        self._mark = mark
        self._run = replace(run, run_id=uuid.uuid4().hex)  # a run may have several sources
        self._base = run.staging.parent / FOLDER
        self._area: StagingArea | None = None
        self._made = False
        self.wanted = False
        self.shared = False  # by several sources, all of which read it

    def share(self, mark: FileMark) -> Copy:
        """For another source of the same database, which must be as it was."""
        if mark != self._mark:
            raise SourceMoved(f"{self._config.label} was changed while its tables were opened")
        self.shared = self.wanted = True
        return self

    @property
    def file(self) -> Path:
        return self._base / self._run.run_id / "copy.db"

    def make(self) -> None:
        """Copy the file if a partition reads from the copy. Safe twice: what was not copied whole is made again."""
        if not self.wanted or self._made:
            return
        try:
            self._base.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(error, self._base.parent, BY_PROJECT) from error
        sweep(self._base)
        self._area = StagingArea.create(self._base, self._run, elsewhere=BY_PROJECT)
        try:
            with open_source(self._config) as session:
                # On disk, also where the database is in memory, which is a file system of its own to SQLite.
                session.execute(f"vacuum into {literal(f'file:{percent(str(self.file))}?vfs=unix')}")
                # Afterwards: the count of changes only rises, so the copy too has the tables that were planned.
                self._mark.require(self._config, session)
        except BaseException:  # Ctrl-C too: half a copy, or one of other tables, must not be read
            self.close()
            raise
        self._made = True

    def close(self) -> None:
        """Remove it. Safe twice."""
        self._made = False
        if self._area is not None:
            area, self._area = self._area, None
            area.close()
