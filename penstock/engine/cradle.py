"""A process that imports what Python workers need while the JVM starts: Spark's daemon is then a fork of it.

Spark starts its daemon when the first task needs a worker; the imports would keep that task waiting for about a
second, while a core is idle before. What Spark starts hands over its streams (`daemon.hand_over`), and the fork goes
on as PySpark's own daemon. Opens no connection and starts no thread: neither would survive the forks. Ends with the
driver, whose end closes its standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.engine.daemon import HEAD, STREAMS, installed_only, preload_all


@dataclass(frozen=True, slots=True)
class Cradle:
    """The process as its driver sees it."""

    process: subprocess.Popen[bytes]
    socket: Path  # that it will listen at

    @staticmethod
    def start(folder: Path, environ: Mapping[str, str]) -> Cradle:
        """With its socket in a folder that is for this user alone."""
        path = folder / "cradle"
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.engine.cradle", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            process_group=0,
        )
        return Cradle(process, path)


# ---------------------------------------------------------------- the process itself


def main() -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()  # whoever comes before the imports are done, waits
    preload_all()
    sys.argv = ["", "pyspark.worker"]
    importlib.import_module("pyspark.daemon")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([sys.stdin.fileno(), listening.fileno()], [], [])
        if sys.stdin.fileno() in ready:
            return  # the driver is gone
        link, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _become_daemon(link)
            return
        link.close()


def _become_daemon(link: socket.socket) -> None:
    """Take the place of what Spark has started; its link stays open, and tells it of our end."""
    head, streams, _, _ = socket.recv_fds(link, HEAD, STREAMS)
    with link.makefile("rb") as rest:
        text = rest.read(int.from_bytes(head, "big"))
    if not head or len(text) < int.from_bytes(head, "big"):
        return  # it has died while it told: nobody waits for a daemon here
    told = json.loads(text)
    link.sendall(os.getpid().to_bytes(HEAD, "big"))
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv, sys.path[:] = told["argv"], installed_only(told["path"])
    sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    import pyspark.daemon

    # It reads its arguments when it is imported: they say which worker it is to fork.
    importlib.reload(pyspark.daemon).manager()


if __name__ == "__main__":
    main()
