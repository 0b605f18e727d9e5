"""Run history: a cache for restarts and for people. What must be exact lives in the target.

Importing this package is quick; SQLAlchemy comes with a Postgres store, which needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.state.base import AgentRecord, Command, Event, RunRecord, RunState, Store

if TYPE_CHECKING:
    from penstock.state.medium import Medium

__all__ = ["AgentRecord", "Command", "Event", "RunRecord", "RunState", "Store", "medium_at", "open_store"]

MEMORY = "memory:"


def open_store(url_or_path: str | Path) -> Store:
    """A store: `memory:`, a Postgres URL, or a SQLite file, which is created with its folder."""
    if url_or_path == MEMORY:
        from penstock.state.memory import MemoryStore

        return MemoryStore()
    from penstock.state.sql import SqlStore

    return SqlStore(medium_at(url_or_path))


def medium_at(url_or_path: str | Path) -> Medium:
    """Where a URL or a path leads."""
    given = str(url_or_path)
    if "://" in given and not given.startswith("sqlite://"):
        from penstock.state.postgres import PostgresMedium

        return PostgresMedium(given)
    from penstock.state.sqlite import SqliteMedium

    return SqliteMedium(Path(given.removeprefix("sqlite:///")))
