"""In-memory databases by name: they live in this process, from the first use to its end.

One connection per database holds it; everybody works through cursors of it, each with transactions
and temporary tables of its own. No other process can see one: see `exchange`.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from pathlib import Path

import duckdb

_databases: dict[str, duckdb.DuckDBPyConnection] = {}
_making = threading.Lock()


def database(name: str) -> duckdb.DuckDBPyConnection:
    """A cursor on the in-memory database called `name`, made when it is first asked for.

    Whoever asks closes it; the database stays.
    """
    with _making:
        if name not in _databases:
            # Where it spills to if it must; DuckDB's own default is a folder in the working directory.
            folder = Path(tempfile.gettempdir()) / f"penstock-{uuid.uuid4().hex}.tmp"
            _databases[name] = duckdb.connect(":memory:", config={"temp_directory": str(folder)})
        cursor = _databases[name].cursor()
    cursor.execute("set TimeZone = 'UTC'")
    return cursor
