"""Options of a DuckDB connection: a file or `:memory:`, and how much of the machine its sessions may take."""

from __future__ import annotations

import os
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from penstock.backends.database_file import DatabaseFile

# A session sorts and hashes whole loads and queries, and spills to `temp_directory` beyond its limit.
# DuckDB takes what it may: with a generous limit the memory of a run would grow with its rows, and
# DuckDB's own default is 80 % of the machine, which the JVM beside it would have to pay for. Only
# what cannot spill, such as the index of a large key, needs more.
FIRST_MEMORY_LIMIT = 192 * 2**20
GROWTH = 4  # of the limit, when DuckDB says that it is not enough
SHARE_OF_MACHINE = 0.5
WORKER_THREADS = 1  # there are as many workers as tasks
# Another process may hold the file for the length of a short load or a dashboard's query.
DEFAULT_LOCK_TIMEOUT = 30.0


class DuckDBConfig(DatabaseFile):
    """A DuckDB database file, or a database in the memory of the process that runs the pipelines."""

    path_base: ClassVar[str] = "path"

    type: Literal["duckdb"] = "duckdb"
    path: str = Field(
        description="The database file, relative to the project; `:memory:` is a database of this process,"
        " called like the connection or, as `:memory:NAME`, by a name."
    )
    default_schema: str = Field(default="main", alias="schema", description="Where target tables without a schema go.")
    memory_limit: str | None = Field(
        default=None,
        description="Of each session, which spills beyond it; by default 192 MB, and more for a load"
        " that cannot do with it, up to half of the machine.",
    )
    temp_directory: str | None = Field(default=None, description="Where it spills to; `<path>.tmp` by default.")
    staging: str | None = Field(default=None, description="Where tasks stage; `<path>.penstock` by default.")
    threads: int | None = Field(default=None, ge=1, description="Of the driver's session; one per core by default.")
    lock_timeout: float = Field(
        default=DEFAULT_LOCK_TIMEOUT, ge=0, description="Seconds to wait for a file that another process holds."
    )
    read_only: bool = Field(default=False, description="Refuse to be a target.")

    model_config = DatabaseFile.model_config | {"populate_by_name": True}

    @field_validator("path")
    @classmethod
    def _a_file(cls, path: str) -> str:
        if not path.strip():
            raise ValueError("the path is empty")
        if path.startswith(("md:", "motherduck:")):
            raise ValueError("this backend opens files, not MotherDuck databases")
        return path

    @property
    def memory_limits(self) -> tuple[str, ...]:
        """What a load may take: the first, and the next where DuckDB cannot do with it."""
        if self.memory_limit is not None:
            return (self.memory_limit,)
        most = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * SHARE_OF_MACHINE)
        # What is in memory only must find room there: its tables are a part of what the limit counts.
        limits = [most if self.in_memory else FIRST_MEMORY_LIMIT]
        while limits[-1] < most:
            limits.append(min(limits[-1] * GROWTH, most))
        return tuple(f"{limit}B" for limit in limits)

    @property
    def database(self) -> str:
        """What DuckDB itself calls it."""
        return "memory" if self.in_memory else self.file.stem
