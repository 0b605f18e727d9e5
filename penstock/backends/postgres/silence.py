"""A peer that keeps the line open and says nothing: waited for as long as it is known to work, and no longer.

The kernel's own limits find a machine that is gone. They never find a proxy that has lost its server, or a process
that is stopped: both acknowledge every byte for ever. So after `link_timeout` without a byte the server is asked
through another session whether this one's backend still works on what it was told. One that waits for a client, has
ended, or cannot be asked about will not answer: its answer, or our question, is lost. A long statement is never cut
off while the server is alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready

from penstock.backends.postgres.config import Conninfo

# The answer may be on its way while we ask: so long it may take after the backend is seen to wait.
GRACE_SECONDS = 1.0
LOOK_SECONDS = 0.1  # between two looks at a socket that is silent
PROBE_SUFFIX = ":probe"

# Who works is active and waits for no client. A walsender with nothing to send waits for its log (Activity): it
# was asked for a reply, and would have given one.
_WORKS = (
    "select state = 'active' and coalesce(wait_event_type, '') not in ('Client', 'Activity')"
    " from pg_catalog.pg_stat_activity where pid = %s"
)

Value = TypeVar("Value")


class Silent(psycopg.OperationalError):
    """Nothing was heard from the server, and it does not work on anything of ours."""


class TooLong(psycopg.OperationalError):
    """The server works on it, and longer than it was given."""


class Attention:
    """Of one session: how long it has heard nothing, and whether that is a reason to give it up."""

    def __init__(self, conninfo: Conninfo, application: str, backend: Callable[[], int], *, asks: bool = True) -> None:
        """Without `asks`, silence alone is the reason."""
        self._conninfo = conninfo
        self._application = application
        self._backend = backend
        self._asks = asks
        self._patience = conninfo.patience
        self.heard()

    def heard(self) -> None:
        """A byte came, or room for one; or nobody listened meanwhile."""
        self._since = time.monotonic()
        self._doubted = False

    @property
    def silent(self) -> float:
        return time.monotonic() - self._since

    def doubt(self) -> None:
        """Nothing came: raises `Silent` once that has gone on for too long."""
        limit = min(GRACE_SECONDS, self._patience) if self._doubted else self._patience
        if self.silent < limit:
            return
        if self._doubted or not self._asks:
            raise Silent(f"nothing was heard from the server for {self._patience:.0f} s, and it waits for us")
        if works(self._conninfo, f"{self._application}{PROBE_SUFFIX}", self._backend()):
            self.heard()
            return
        self._since = time.monotonic()
        self._doubted = True


def works(conninfo: Conninfo, application: str, backend: int) -> bool:
    """Whether a backend works on a statement. One that cannot be asked about does not."""
    try:
        with PatientConnection.open(conninfo, application, asks=False) as connection:
            rows = connection.execute(_WORKS, (backend,)).fetchall()
    except psycopg.Error as error:
        # It answers, and has no room for another session: then it lives.
        return (error.sqlstate or "").startswith("53") or "too many" in str(error) or "connection slots" in str(error)
    return bool(rows and rows[0][0])


def attended(gen: PQGen[Value], attention: Attention, limit: float | None = None) -> PQGen[Value]:
    """A wait of psycopg's that ends with `Silent` when the attention does, or with `TooLong` after a limit."""
    attention.heard()
    until = time.monotonic() + limit if limit is not None else None
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready == Ready.NONE:
                if until is not None and time.monotonic() > until:
                    raise TooLong("the time for it is over")
                attention.doubt()
            else:
                attention.heard()
            wanted = gen.send(ready)
    except StopIteration as done:
        value: Value = done.value
        return value


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg session that does not wait for ever."""

    attention: Attention | None = None

    @classmethod
    def open(cls, conninfo: Conninfo, application: str, *, asks: bool = True) -> PatientConnection:
        """In autocommit; raises what psycopg raises."""
        made = cls.connect(
            conninfo.libpq(application_name=application, client_encoding="UTF8"),
            autocommit=True,
            prepare_threshold=None,
        )
        made.attention = Attention(conninfo, application, lambda: made.pgconn.backend_pid, asks=asks)
        return made

    def wait(self, gen: PQGen[Value], interval: float = LOOK_SECONDS, timeout: float | None = None) -> Value:
        if self.attention is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(attended(gen, self.attention), interval, timeout)
        except Silent:
            # Of no more use: whatever comes now is the answer to something else.
            self.pgconn.finish()
            raise
