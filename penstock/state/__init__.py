"""Run history: a cache for restarts and for people. What must be exact lives in the target.

Importing this package is quick; SQLAlchemy comes with the first store that needs it.
"""

from pathlib import Path

from penstock.state.base import Event, RunRecord, RunState, Store

__all__ = ["Event", "RunRecord", "RunState", "Store", "open_store"]

MEMORY = "memory:"


def open_store(url_or_path: str | Path) -> Store:
    """A store: `memory:`, a Postgres URL, or a SQLite file, which is created with its folder."""
    if url_or_path == MEMORY:
        from penstock.state.memory import MemoryStore

        return MemoryStore()
    from penstock.state.sql import SqlStore

    return SqlStore(url_or_path)
