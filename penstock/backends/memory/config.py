"""Options of a memory connection: which store of this process it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.backends.base import ConnectionConfig


class MemoryConfig(ConnectionConfig):
    """A store of Arrow tables in the process that runs the pipelines."""

    type: Literal["memory"] = "memory"
    store: str | None = Field(
        default=None, min_length=1, description="The store's name in this process; the connection's by default."
    )

    @property
    def store_name(self) -> str:
        return self.store or self.name

    @property
    def in_process(self) -> bool:
        return True
