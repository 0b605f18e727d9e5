"""What Spark starts instead of its own Python daemon: imports first, forks afterwards.

A worker that has to import pyarrow, pandas and the drivers itself is about a second late for its
first task; forked from here it has them. Opens no connection and starts no thread: neither would
survive the fork. A backend's package names what only its workers need in `WORKER_MODULES`.
"""

from __future__ import annotations

import importlib
import os

PRELOAD = "PENSTOCK_PRELOAD"  # modules to import before the first fork, separated by commas

ALWAYS = ("numpy", "pandas", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "penstock.engine.task")


def preload(names: list[str]) -> list[str]:
    """Import what can be imported; what cannot is returned, and fails by name in the task that needs it."""
    missing = []
    for name in names:
        try:
            module = importlib.import_module(name)
            missing += preload(list(getattr(module, "WORKER_MODULES", ())))
        except ImportError:
            missing.append(name)
    return missing


def main() -> None:
    preload([*ALWAYS, *filter(None, os.environ.get(PRELOAD, "").split(","))])
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
