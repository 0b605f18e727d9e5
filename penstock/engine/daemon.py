"""What Spark starts instead of its own Python daemon: imports first, forks afterwards.

A worker that has to import pyarrow, pandas and the drivers itself is about a second late for its
first task; forked from here it has them. Opens no connection and starts no thread: neither would
survive the fork. A backend's package names what only its workers need in `WORKER_MODULES`.
"""

from __future__ import annotations

import importlib
import os

from penstock.engine import cradle

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


def preload_all() -> None:
    preload([*ALWAYS, *filter(None, os.environ.get(PRELOAD, "").split(","))])


def main() -> None:
    # Where a process has them imported already, a fork of it goes on in our place.
    if (waiting := os.environ.get(cradle.ENV)) and cradle.hand_over(waiting):
        return
    preload_all()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
