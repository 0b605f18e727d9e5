"""A TCP proxy that does to links what networks do: it cuts them, stalls them, or loses one direction of them.

Whatever it does, its kernel acknowledges every byte: only who looks at what is said can tell.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from tests.conformance.harness import PostgresHarness

Manner = Literal["cut", "stalled", "deaf", "mute"]
MANNERS: tuple[Manner, ...] = ("cut", "stalled", "deaf", "mute")
CHUNK = 65_536
LOOK_SECONDS = 0.05
_RESET = struct.pack("ii", 1, 0)  # a closed socket tells the peer so at once, whatever lies in it


class _Link:
    """A client and the server that it speaks to."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.lost: set[socket.socket] = set()  # what these say is swallowed, for ever
        self.held = b""  # what the client has said and the server has not heard

    def other(self, sock: socket.socket) -> socket.socket:
        return self.server if sock is self.client else self.client

    def reset(self) -> None:
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()


class Links:
    """Between clients and one server, in a thread of its own.

    `cut`: every link is reset, and so is every new one. `stalled`: all stay open, nothing goes through, until it goes
    on where it was. `deaf`: what the server says is swallowed, `mute`: what clients say is; links of that time stay
    so for ever. `heal` lets new links through.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._links: dict[socket.socket, _Link] = {}
        self._turn = threading.Lock()
        self._manner: Manner | None = None
        self._swallow: Callable[[bytes], bool] | None = None
        self._hold: Callable[[bytes], bool] | None = None
        self.swallowed = threading.Event()
        self.tried = 0  # links that were asked for since the trouble began
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)

    def __enter__(self) -> Links:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing = True
        self._thread.join(10)
        with self._turn:
            for link in set(self._links.values()):
                link.reset()
        self._listener.close()

    # ------------------------------------------------------------ what is done to them

    def trouble(self, manner: Manner) -> None:
        with self._turn:
            self._manner = manner
            links = set(self._links.values())
            self.tried = 0
            for link in links:
                self._afflict(link)

    def heal(self) -> None:
        with self._turn:
            self._manner = None

    def swallow_answer(self, question: Callable[[bytes], bool]) -> None:
        """From the next question of this kind on, its link brings nothing back: the server has done what it asks."""
        self.swallowed.clear()
        self._swallow = question

    def hold_question(self, question: Callable[[bytes], bool]) -> None:
        """The next question of this kind, and all behind it on its link, stays here until `let_go`."""
        self._hold = question

    def let_go(self) -> None:
        with self._turn:
            for link in set(self._links.values()):
                if link.held:
                    with contextlib.suppress(OSError):  # the server may have ended it
                        link.server.sendall(link.held)
                    link.held = b""

    def _afflict(self, link: _Link) -> None:
        if self._manner == "cut":
            self._drop(link)
        elif self._manner == "deaf":
            link.lost.add(link.server)
        elif self._manner == "mute":
            link.lost.add(link.client)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closing:
            events = self._selector.select(LOOK_SECONDS)
            with self._turn:
                for key, _ in events:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._forward(key.fileobj)
            if self._manner == "stalled":
                threading.Event().wait(LOOK_SECONDS)  # what is not read is told of again and again

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listener.accept()
            client.setblocking(True)
            self.tried += 1
            link = _Link(client, socket.create_connection(("127.0.0.1", self._upstream)))
            for sock in (link.client, link.server):
                self._links[sock] = link
                self._selector.register(sock, selectors.EVENT_READ)
            self._afflict(link)

    def _forward(self, sock: socket.socket) -> None:
        link = self._links.get(sock)
        if link is None or self._manner == "stalled":
            return
        try:
            data = sock.recv(CHUNK)
        except OSError:
            data = b""
        if not data and not link.lost and not link.held:
            self._drop(link)
            return
        if not data:
            self._selector.unregister(sock)  # the other one is not told: that is what half-open means
            return
        if sock is link.client and self._swallow is not None and self._swallow(data):
            self._swallow = None
            link.lost.add(link.server)
            self.swallowed.set()
        if sock is link.client and (link.held or (self._hold is not None and self._hold(data))):
            self._hold = None
            link.held += data
        elif sock not in link.lost:
            try:
                link.other(sock).sendall(data)
            except OSError:
                self._drop(link)

    def _drop(self, link: _Link) -> None:
        for sock in (link.client, link.server):
            if self._links.pop(sock, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(sock)
        link.reset()


class Linked(PostgresHarness):
    """A database that a replication reaches through links; the test itself goes straight there."""

    def __init__(self, dsn: str, links: Links, link_timeout: str = "1s") -> None:
        super().__init__(dsn)
        self._links = links
        self._link_timeout = link_timeout

    def options(self) -> dict[str, Any]:
        # libpq takes no shorter limit for a connect.
        given = {"port": self._links.port, "link_timeout": self._link_timeout, "options": {"connect_timeout": "2"}}
        return super().options() | given
