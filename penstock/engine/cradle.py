"""A process that imports what Python workers need while the JVM starts: Spark's daemon is then a fork of it.

Spark starts its daemon when the first task needs a worker; the imports would keep that task waiting for about a
second, while a core is idle before. What Spark starts hands over its streams (`daemon.py`), and the fork goes on as
PySpark's own daemon. Opens no connection and starts no thread: neither would survive the forks. Ends with the driver.
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
from pathlib import Path
from typing import Any

ENV = "PENSTOCK_CRADLE"  # the socket that it listens at
STREAMS = 3
HEAD = 8  # bytes: how long what follows is


def start(folder: Path, environ: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
    """The process, and the socket that it will listen at; the folder is for this user alone."""
    path = folder / "cradle"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.engine.cradle", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        process_group=0,
    )
    return process, path


def end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.kill()
    process.wait()


# ---------------------------------------------------------------- what Spark starts


def hand_over(path: str) -> bool:
    """Give our streams to a fork of the cradle and wait until that ends; False if there is no cradle."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
        told = json.dumps({"argv": sys.argv, "path": sys.path, "environ": dict(os.environ)}).encode()
        socket.send_fds(link, [len(told).to_bytes(HEAD, "big")], list(range(STREAMS)))
        link.sendall(told)
        answer = link.recv(HEAD)
    except OSError:
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


# ---------------------------------------------------------------- the process itself


def main() -> None:
    from penstock.engine.daemon import preload_all

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
        link.close()


def _become_daemon(link: socket.socket) -> None:
    streams, told = _told(link)
    link.sendall(os.getpid().to_bytes(HEAD, "big"))
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv, sys.path[:] = told["argv"], told["path"]
    sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    import pyspark.daemon

    # It reads its arguments when it is imported: they say which worker it is to fork.
    importlib.reload(pyspark.daemon).manager()
    os._exit(0)


def _told(link: socket.socket) -> tuple[list[int], dict[str, Any]]:
    head, streams, _, _ = socket.recv_fds(link, HEAD, STREAMS)
    length = int.from_bytes(head, "big")
    text = b""
    while len(text) < length:
        text += link.recv(length - len(text))
    told: dict[str, Any] = json.loads(text)
    return streams, told


if __name__ == "__main__":
    main()
