"""What Spark starts instead of its own Python daemon: imports first, forks afterwards.

A worker that has to import pyarrow, pandas and the drivers itself is about a second late for its
first task; forked from here it has them. Where a process has them already (`cradle.py`), a fork of that
goes on in our place. Opens no connection and starts no thread: neither would survive the fork. A backend's
package names what only its workers need in `WORKER_MODULES`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

PRELOAD = "PENSTOCK_PRELOAD"  # modules to import before the first fork, separated by commas
CRADLE = "PENSTOCK_CRADLE"  # the socket of a process that has imported them
STREAMS = 3  # that are handed over: standard input, output and error
HEAD = 8  # bytes that say how long what follows is, or who has answered

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
    # A worker collects garbage after each task. What is imported is none, and to walk it writes to every page of it,
    # which then is this worker's own and no more the one that all of them share.
    gc.collect()
    gc.freeze()


def installed_only(path: Sequence[str]) -> list[str]:
    """The entries of a path without the archives that an installed PySpark brings along, and that nothing came from.

    Python lists an archive's files anew for each task (`importlib.invalidate_caches`), which takes 25 ms for Spark's
    jar, in which no module is.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    came_from = tuple(file for module in sys.modules.values() if (file := getattr(module, "__file__", None)))
    left_out = [
        entry
        for entry in path
        if Path(entry).is_relative_to(home) and not any(file.startswith(entry + os.sep) for file in came_from)
    ]
    for entry in left_out:
        sys.path_importer_cache.pop(entry, None)
    return [entry for entry in path if entry not in left_out]


def hand_over(path: str) -> bool:
    """Give our streams to a fork of the cradle and wait until that ends; False if there is no cradle."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
        told = json.dumps({"argv": sys.argv, "path": sys.path, "environ": dict(os.environ)}).encode()
        socket.send_fds(link, [len(told).to_bytes(HEAD, "big")], list(range(STREAMS)))
        link.sendall(told)
        answer = link.recv(HEAD)
    except OSError:  # it has died, or is dying: then we do its work
        return False
    if len(answer) < HEAD:
        return False
    pid = int.from_bytes(answer, "big")
    # Spark ends its daemon so.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    for stream in range(2):
        os.close(stream)
    while link.recv(1):
        pass
    return True


def main() -> None:
    waiting = os.environ.get(CRADLE)
    if waiting is not None and hand_over(waiting):
        return
    preload_all()
    from pyspark.daemon import manager

    sys.path[:] = installed_only(sys.path)
    manager()


if __name__ == "__main__":
    main()
