"""Of the options of a connection to a database that is one file: where it is, and what lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends.base import ConnectionConfig

MEMORY = ":memory:"
INSIDE_STAGING = "penstock-staging"


class DatabaseFile(ConnectionConfig):
    """A database file, or a database in the memory of the process that runs the pipelines."""

    if TYPE_CHECKING:  # each backend says itself what they are to its users
        path: str
        staging: str | None
        read_only: bool

    @property
    def in_memory(self) -> bool:
        return self.path.startswith(MEMORY)

    @property
    def in_process(self) -> bool:
        return self.in_memory

    @property
    def memory_name(self) -> str:
        """What a database in memory is called in this process: `:memory:scratch`, or after its connection."""
        return self.path.removeprefix(MEMORY) or self.name

    @property
    def label(self) -> str:
        """The database for people."""
        return f"the in-memory database {self.memory_name!r}" if self.in_memory else str(self.file)

    @property
    def file(self) -> Path:
        """The database file with links followed: one file has one name, and its journal lies beside it."""
        return Path(self.path).expanduser().resolve()

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(self.file.name + ".penstock.lock")

    @property
    def staging_base(self) -> Path | None:
        """The folder that holds a folder per run; None for a database in memory, which stages in the project.

        It lies beside the file, not in the project: the file's disk is the one that must have
        room for the load anyway, and every project that writes to the file finds and sweeps the
        same leftovers. With workers on other machines, `staging` names a folder they share: ours
        is one inside it, because the folder itself, and what else is in it, is the user's.
        """
        if self.staging is not None:
            return Path(self.staging).expanduser().resolve() / INSIDE_STAGING
        return None if self.in_memory else self.file.with_name(self.file.name + ".penstock")
