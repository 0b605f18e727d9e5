"""In-memory databases by name: they live in this process, from the first use to its end.

They are those of SQLite's own `memdb`: several connections share one, with the locks and transactions
of a file. No other process can see one: see `exchange`.
"""

from __future__ import annotations

import threading
from urllib.parse import quote as percent

from adbc_driver_sqlite import dbapi

_holders: dict[str, dbapi.Connection] = {}
_making = threading.Lock()


def database(name: str) -> dbapi.Connection:
    """A connection to the in-memory database called `name`, made when it is first asked for.

    Whoever asks closes it; the database stays.
    """
    return dbapi.connect(uri(name, "rwc"), autocommit=True)


def uri(name: str, mode: str) -> str:
    """Where SQLite finds it. A database lasts as long as somebody holds it: one connection of ours does."""
    where = f"file:/penstock/{percent(name, safe='')}?vfs=memdb&mode="
    with _making:
        if name not in _holders:
            _holders[name] = dbapi.connect(where + "rwc", autocommit=True)
    return where + mode
