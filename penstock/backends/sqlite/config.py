"""Options of a SQLite connection: a file or `:memory:`, and how long to wait for whoever holds it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from penstock.backends.database_file import DatabaseFile

# A writer keeps others out for the length of its transaction, a reader keeps a commit waiting.
DEFAULT_LOCK_TIMEOUT = 30.0


class SQLiteConfig(DatabaseFile):
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
