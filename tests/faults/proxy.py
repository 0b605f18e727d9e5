"""A TCP proxy that cuts a link at a chosen moment: before or after a statement reaches the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal


@dataclass
class Cut:
    """When to cut: the client sends `trigger` on a connection that has sent `armed_by` before."""

    trigger: bytes
    armed_by: bytes
    when: Literal["before", "after"]  # the server gets the statement, or does not
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    def __init__(self, port: int, cut: Cut | None = None) -> None:
        self.upstream = port
        self.cut = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for sock in (self._listener, *self._sockets):
            _close(sock)
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]  # any callable with its arguments
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
                self._sockets += [client, server]
                self._start(self._forward, client, server)
                self._start(self._back, server, client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        armed = False
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                cut = self.cut
                if cut is not None and not cut.done.is_set():
                    armed = armed or cut.armed_by in data
                    if armed and cut.trigger in data:
                        cut.done.set()
                        _close(client)  # the answer can no longer reach the client
                        if cut.when == "after":
                            server.sendall(data)
                            server.settimeout(2)
                            with contextlib.suppress(OSError):
                                server.recv(65536)  # the server has answered: it has done it
                        _close(server)
                        return
                server.sendall(data)
        _close(server)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        _close(client)


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
