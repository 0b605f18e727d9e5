"""Options of a SQLite connection: a file or `:memory:`, and how long to wait for whoever holds it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from penstock.backends.base import ConnectionConfig

# A writer keeps others out for the length of its transaction, a reader keeps a commit waiting.
DEFAULT_LOCK_TIMEOUT = 30.0

MEMORY = ":memory:"
INSIDE_STAGING = "penstock-staging"


class SQLiteConfig(ConnectionConfig):
    """A SQLite database file, or a database in the memory of the process that runs the pipelines."""

    path_base: ClassVar[str] = "path"
    schemes: ClassVar[tuple[str, ...]] = ("sqlite3",)

    type: Literal["sqlite"] = "sqlite"
    path: str = Field(
        description="The database file, relative to the project; `:memory:` is a database of this process,"
        " called like the connection or, as `:memory:NAME`, by a name."
    )
    staging: str | None = Field(default=None, description="Where tasks stage; `<path>.penstock` by default.")
    lock_timeout: float = Field(
        default=DEFAULT_LOCK_TIMEOUT, ge=0, description="Seconds to wait for a database that is locked."
    )
    read_only: bool = Field(default=False, description="Refuse to be a target.")

    @field_validator("path")
    @classmethod
    def _a_file(cls, path: str) -> str:
        if not path.strip():
            raise ValueError("the path is empty")
        if path.startswith("file:"):
            raise ValueError("the path is a file's, not a URI")
        return path

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
        """The database file with links followed: its journal lies beside the file, not beside a link."""
        return Path(self.path).expanduser().resolve()

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(self.file.name + ".penstock.lock")

    @property
    def staging_base(self) -> Path | None:
        """The folder that holds a folder per run: beside the file, or one of ours inside the user's.

        None for a database in memory, which stages in the project.
        """
        if self.staging is not None:
            return Path(self.staging).expanduser().resolve() / INSIDE_STAGING
        return None if self.in_memory else self.file.with_name(self.file.name + ".penstock")
