"""Whether a server's log can still be read on behind a position, and why not.

A slot that is asked for a place before its own begins later without a word; a server that was promoted may never
have had what its predecessor sent; a publication that is gone sends nothing from then on. Each of these is found
here, before it looks like a quiet source. Reads only.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.change_source import LogNames, Obstacle
from penstock.backends.changes import Position
from penstock.backends.postgres.connect import DriverSession
from penstock.backends.postgres.replication import publications
from penstock.backends.postgres.stream import ReplicationLink, System, lsn, lsn_text
from penstock.errors import LinkLost

INVALIDATION_REASON = 170_000  # the first version that says why a slot was given up
CONFLICTING = 160_000  # the first version whose standbys have logical slots, and give them up


def obstacle(session: DriverSession, link: ReplicationLink, names: LogNames, after: Position) -> Obstacle | None:
    """The first thing that keeps the log from being read on; None if nothing does."""
    return lineage(link, after) or _slot(session, names.slot, after) or _publications(session, publications(names))


# ---------------------------------------------------------------- the server


def lineage(link: ReplicationLink, after: Position) -> Obstacle | None:
    """Whether this server's log has the position in it: it is the same, or went its own way only behind it."""
    system = link.system()
    if not after.origin or after.origin == system.origin:
        return None
    identifier, _, timeline = after.origin.partition("/")
    if identifier != system.identifier:
        return Obstacle(
            "diverged",
            f"the connection leads to another server: the buffer is of {identifier}, it says {system.identifier}",
            "lead the connection back to the server, or begin anew: `penstock replications remove NAME`",
            healed=False,
        )
    fork = _fork(link, system, int(timeline))
    if fork is None:
        return Obstacle("diverged", f"the server's timeline {system.timeline} does not come from {timeline}")
    if after.end > fork:
        return Obstacle(
            "diverged",
            f"timeline {system.timeline} begins at {lsn_text(fork)}, and the buffer has the log of timeline"
            f" {timeline} up to {lsn_text(after.end)}: the new primary does not have all of it",
        )
    return None


def _fork(link: ReplicationLink, system: System, timeline: int) -> int | None:
    """Where the server's history leaves a timeline; None if it was never on it."""
    if system.timeline <= timeline:
        return None
    [(_, history)] = link.command(f"TIMELINE_HISTORY {system.timeline}")
    for line in history.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == str(timeline):
            return lsn(words[1])
    return None


# ---------------------------------------------------------------- the slot


def _slot(session: DriverSession, slot: str, after: Position) -> Obstacle | None:
    version = session.connection.info.server_version
    why = (
        "coalesce(invalidation_reason, '')"
        if version >= INVALIDATION_REASON
        else "case when conflicting then 'conflict' else '' end"
        if version >= CONFLICTING
        else "''"
    )
    rows = session.query(
        f"select confirmed_flush_lsn::text, coalesce(wal_status, ''), {why} from pg_catalog.pg_replication_slots"
        " where slot_name = %s and database = pg_catalog.current_database()",
        (slot,),
    )
    if not rows:
        return Obstacle("slot lost", f"the server has no slot {slot}: it was dropped, or this is another server")
    [(confirmed, status, reason)] = rows
    if status == "lost" or reason:
        told = f" ({reason})" if reason else ""
        return Obstacle(
            "slot lost",
            f"the server has thrown away the log that the slot {slot} held{told}; max_slot_wal_keep_size limits it",
        )
    if confirmed is None:
        raise LinkLost(f"the slot {slot} is still being made", remedy="try again")
    if lsn(confirmed) > after.end:
        # Asked for an earlier place, the server would begin later without a word.
        return Obstacle(
            "gap",
            f"the slot {slot} was read up to {lsn_text(lsn(confirmed))}, the buffer ends at {lsn_text(after.end)}:"
            " what lies between is nowhere",
        )
    return None


# ---------------------------------------------------------------- the publications


def _publications(session: DriverSession, names: Sequence[str]) -> Obstacle | None:
    known = {name for (name,) in session.query("select pubname::text from pg_catalog.pg_publication")}
    gone = [name for name in names if name not in known]
    if not gone:
        return None
    # From 18 on the server sends nothing of it and says so only in its own log; before, it ends the stream.
    return Obstacle("publication lost", f"the publication {', '.join(gone)} was dropped: its changes are not sent")
