"""Copying from a standby: its own snapshots, at places of the primary's log.

Snapshots do not cross servers. One that is taken on a standby has all that was replayed before it, and perhaps some
of what was replayed while it was taken: rows are of the place before, and exact from the place after on. A row with
a key takes a change twice without harm; one without a key does not, and is read from the primary.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import DriverSession, open_session
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.stream import ReplicationLink, lsn, lsn_text
from penstock.errors import LinkLost, PlanRefused

REPLAY_SECONDS = 300.0  # that a standby may be behind before a copy from it is given up for now
LOOK_SECONDS = 0.1


class StandbySnapshot:
    """A snapshot of a standby that has replayed the primary's log beyond a place."""

    def __init__(self, conninfo: Conninfo, application: str, system: str, beyond: int) -> None:
        self._session = DriverSession(open_session(conninfo, application), conninfo)
        try:
            self._require_standby(conninfo, application, system)
            self._await_replay(beyond, conninfo)
            self.low = self._replayed()
            self.holder = Holder(conninfo, f"{application}:read")
        except BaseException:
            self._session.connection.close()
            raise
        self.high = self._replayed()
        self.at = datetime.now(UTC)

    def _require_standby(self, conninfo: Conninfo, application: str, system: str) -> None:
        link = ReplicationLink(conninfo, application)
        try:
            found = link.system().identifier
        finally:
            link.close()
        [(standby,)] = self._session.query("select pg_catalog.pg_is_in_recovery()")
        if found != system or not standby:
            raise PlanRefused(
                f"connection {conninfo.name!r} is no standby of the source",
                why="it is not in recovery" if found == system else f"it is of the system {found}, not {system}",
                remedy="correct copy_from, or leave it out",
            )

    def _await_replay(self, beyond: int, conninfo: Conninfo) -> None:
        deadline = time.monotonic() + REPLAY_SECONDS
        while (there := self._replayed()) < beyond:
            if time.monotonic() > deadline:
                raise LinkLost(
                    f"the standby {conninfo.name!r} is behind",
                    why=f"it has replayed up to {lsn_text(there)}, the copy begins at {lsn_text(beyond)}",
                    remedy="wait for it, or leave copy_from out",
                )
            time.sleep(LOOK_SECONDS)

    def _replayed(self) -> int:
        [(place,)] = self._session.query("select coalesce(pg_catalog.pg_last_wal_replay_lsn()::text, '0/0')")
        return lsn(place)

    def close(self) -> None:
        self.holder.close()
        self._session.connection.close()
