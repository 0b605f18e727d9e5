"""A session that outlives its links: opened again when the one before it is gone, never in the middle of something.

The backend of the lost link may not know that it is lost. It holds its locks, and what was sent last, a COMMIT for
one, may still reach it: it is ended before the new session is used.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import DriverSession, open_session
from penstock.backends.postgres.errors import refused
from penstock.errors import LinkLost, NotNow, TargetError

GONE_MS = 10_000  # that a backend is given to end


class LastingSession(DriverSession):
    """One connection at a time, for several threads: a statement or a transaction of one of them at a time.

    What a thread asks while another one's transaction is open would be a part of it, and fail or go with it.
    """

    def __init__(self, conninfo: Conninfo, application: str, settings: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(open_session(conninfo, application, settings), conninfo)
        self._application = application
        self._settings = tuple(settings)
        self._opening = threading.Lock()
        self.turn = threading.RLock()  # whose statement, or transaction, it is
        self._backend = self._connection.info.backend_pid
        self._held = 0  # transactions that are open, and locks: they end with their link
        self._closed = False

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        with self._opening:
            if not self._held and not self._closed and (self._connection.closed or self._was_hung_up()):
                self._connection.close()
                made = open_session(self.conninfo, self._application, self._settings)
                try:
                    end_backend(made, self.conninfo, self._backend, self._application)
                except BaseException:
                    made.close()
                    raise
                self._connection, self._backend = made, made.info.backend_pid
            return self._connection

    def _was_hung_up(self) -> bool:
        """Whether the server, or the network, has ended it while nobody used it: then it has already told us."""
        if not self._connection.lock.acquire(blocking=False):
            return False  # another thread uses it
        try:
            link = self._connection.pgconn
            if link.transaction_status != TransactionStatus.IDLE:
                return False
            waiting = select.poll()
            waiting.register(link.socket, select.POLLIN)
            if waiting.poll(0):
                link.consume_input()
            return link.status != ConnStatus.OK
        except psycopg.Error:
            return True
        finally:
            self._connection.lock.release()

    def keep(self, name: str, value: str) -> None:
        """A setting that this session has from now on, and every one after it."""
        with self.turn:
            self._settings = (*self._settings, (name, value))
            self.query("select pg_catalog.set_config(%s, %s, false)", (name, value))

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        with self.turn:
            return super().execute(sql, params)

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.turn:
            return super().query(sql, params)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        with self.turn, super().atomic(), self.unbroken():
            try:
                yield
            except NotNow:
                # It may have become a standby: the next session may be led to the one that takes changes.
                self._connection.close()
                raise

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Over one link, or not at all: what the session holds, a lock for one, ends with it."""
        with self._opening:
            self._held += 1
        try:
            yield
        finally:
            with self._opening:
                self._held -= 1

    def close(self) -> None:
        self._closed = True
        self._connection.close()


def end_backend(
    connection: psycopg.Connection[tuple[Any, ...]], conninfo: Conninfo, backend: int, application: str
) -> None:
    """End a session of ours whose link is lost, and wait until it is gone; nothing if it is gone already."""
    try:
        ended = connection.execute(
            "select pg_catalog.pg_terminate_backend(pid, %s) from pg_catalog.pg_stat_activity"
            " where pid = %s and application_name = %s and usename = current_user",
            (GONE_MS, backend, application),
        ).fetchall()
    except psycopg.Error as error:
        raise refused(error, conninfo, side=TargetError) from error
    if any(not gone for (gone,) in ended):
        raise LinkLost(
            "the session of a lost link does not end",
            why=f"backend {backend} of the server is asked to, and goes on",
            remedy="it is tried again by itself",
        )
