"""What a server keeps of its log for a slot, and how near it is to throwing it away. Reads only.

With `max_slot_wal_keep_size` a slot that nobody reads is lost one day, and without it the disk is full one day; both
are told before.
"""

from __future__ import annotations

from penstock.backends.change_source import Finding, HeldLog
from penstock.backends.postgres.connect import DriverSession, identifier

LITTLE = 0.25  # of max_slot_wal_keep_size: with less than that left, it is time to do something
FAILOVER = 170_000  # the first version whose standbys can have the slots of their primary

_HELD = """
select coalesce(wal_status, ''), safe_wal_size,
       coalesce(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                                     else pg_current_wal_lsn() end, restart_lsn), 0)::int8,
       current_setting('max_slot_wal_keep_size'), current_setting('max_wal_size'),
       (select setting::int8 * 1048576 from pg_settings where name = 'max_slot_wal_keep_size')
from pg_replication_slots where slot_name = %s
"""
_HAS_STANDBY = """
select current_setting('server_version_num')::int >= %s and not pg_is_in_recovery() and
       (exists (select from pg_replication_slots where slot_type = 'physical' and not temporary)
        or exists (select from pg_stat_replication r where not exists (
            select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')))
"""


def held(session: DriverSession, slot: str) -> HeldLog | None:
    """None if there is no slot."""
    rows = session.query(_HELD, (slot,))
    if not rows:
        return None
    [(state, safe, kept, limit, usual, limit_bytes)] = rows
    left = max(0, safe) if safe is not None else None
    return HeldLog(max(0, kept), state, left, _warning(slot, state, left, limit, usual, limit_bytes))


def _warning(slot: str, state: str, left: int | None, limit: str, usual: str, limit_bytes: int) -> Finding | None:
    if state == "unreserved":
        return Finding(
            f"the next checkpoint may throw away the log that the slot {slot} holds: it is more than"
            f" max_slot_wal_keep_size ({limit})",
            "let the capture go on now, and raise max_slot_wal_keep_size at the source",
        )
    if left is not None and left <= LITTLE * limit_bytes:
        return Finding(
            f"the log that the slot {slot} holds comes near to max_slot_wal_keep_size ({limit}): {left} bytes more,"
            " and it is thrown away",
            "let the capture go on, or raise max_slot_wal_keep_size at the source",
        )
    if state != "extended":
        return None
    if left is not None:
        return Finding(
            f"the slot {slot} holds more log than max_wal_size ({usual}): it is thrown away at"
            f" max_slot_wal_keep_size ({limit})",
            "let the capture go on, or raise max_slot_wal_keep_size at the source",
        )
    return Finding(
        f"the slot {slot} holds more log than max_wal_size ({usual}), and no max_slot_wal_keep_size limits it:"
        " it may fill the disk of the source",
        "let the capture go on; max_slot_wal_keep_size saves the disk, and gives up the slot instead",
    )


def advice(session: DriverSession, slot: str) -> list[Finding]:
    """Of a server with standbys that could carry the slot over: without it, a failover ends in a copy of all."""
    if not session.query(_HAS_STANDBY, (FAILOVER,))[0][0]:
        return []
    rows = session.query("select failover from pg_replication_slots where slot_name = %s", (slot,))
    if rows and rows[0][0]:
        return []
    return [
        Finding(
            f"the slot {slot} is not carried over to the standbys: after a failover every table is copied again",
            f"once it is there and its agent is stopped, in a session with replication=database:"
            f" ALTER_REPLICATION_SLOT {identifier(slot)} (FAILOVER true); and on the standby: sync_replication_slots ="
            " on, hot_standby_feedback = on, primary_slot_name, and a dbname in primary_conninfo",
        )
    ]
