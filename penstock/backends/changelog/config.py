"""Options of a changelog connection: where the log is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from penstock.backends.base import ConnectionConfig


class ChangelogConfig(ConnectionConfig):
    """A log of changes that a replication has written: its files target, or its buffer."""

    path_base: ClassVar[str] = "path"

    type: Literal["changelog"] = "changelog"
    path: str = Field(min_length=1, description="The folder with the log's segments.")

    @property
    def folder(self) -> Path:
        return Path(self.path).expanduser().resolve()
