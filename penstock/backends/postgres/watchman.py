"""A watch over sessions of ADBC, which waits inside libpq where no limit of ours reaches.

Its socket is found among those of the process, and shut down when the server is silent and does not work on anything
of ours: the driver then ends with an error, as of any link that breaks.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.silence import GRACE_SECONDS, PROBE_SUFFIX, works

_LAST_DATA = struct.Struct("=52xI")  # of Linux' tcp_info: milliseconds since something was received
LOOK_SECONDS = 1.0


def sockets() -> frozenset[int]:
    """The inodes of this process' sockets; none where the system does not tell."""
    with suppress(OSError):
        return frozenset(inode for _, inode in _open_sockets())
    return frozenset()


def _open_sockets() -> list[tuple[int, int]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            known = os.stat(int(name))
            if stat.S_ISSOCK(known.st_mode):
                found.append((int(name), known.st_ino))
    return found


def opened_since(before: frozenset[int]) -> socket.socket | None:
    """The one TCP socket that was opened since, as a handle of our own; None if it is not known which it is."""
    made: list[socket.socket] = []
    with suppress(OSError):
        for number, inode in _open_sockets():
            if inode not in before:
                made.append(socket.socket(fileno=os.dup(number)))
    found = [sock for sock in made if sock.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(sock)]
    for sock in made:
        if len(found) != 1 or sock is not found[0]:
            sock.close()
    return found[0] if len(found) == 1 else None


def _is_connected(sock: socket.socket) -> bool:
    with suppress(OSError):
        sock.getpeername()
        return True
    return False


@contextmanager
def watched(sock: socket.socket | None, conninfo: Conninfo, application: str, backend: int) -> Iterator[None]:
    """Nobody waits on this socket longer than the server's silence may last. The handle is closed on the way out."""
    if sock is None:
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(sock, conninfo, application, backend, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        sock.close()


def _watch(sock: socket.socket, conninfo: Conninfo, application: str, backend: int, over: threading.Event) -> None:
    while not over.wait(min(LOOK_SECONDS, conninfo.patience / 2)):
        if not _is_silent(sock, conninfo.patience) or works(conninfo, f"{application}{PROBE_SUFFIX}", backend):
            continue
        # The answer may be on its way.
        if over.wait(min(GRACE_SECONDS, conninfo.patience)) or not _is_silent(sock, conninfo.patience):
            continue
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        return


def _is_silent(sock: socket.socket, limit: float) -> bool:
    """Whether nothing has come for so long, and nothing lies there that only nobody has read."""
    try:
        (millis,) = _LAST_DATA.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size))
        (unread,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return False  # it is closed
    return bool(unread == 0 and millis >= limit * 1000)
