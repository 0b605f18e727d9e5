"""Whom a slot waits for: every transaction that writes, in any database of the server, prepared ones too."""

from __future__ import annotations

from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import DriverSession, open_session
from penstock.backends.postgres.lasting import end_backend
from penstock.errors import LinkLost

NAMED = 5  # of many
# By their locks, which every user sees; how long they are open, only a user who may see it is told.
_WRITERS = """
select l.pid::text, coalesce(a.datname::text, '?'), coalesce(a.usename::text, '?'),
       coalesce(nullif(a.application_name, ''), '?'), coalesce(a.xact_start::timestamptz(0)::text, '?')
from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid is not null
order by a.xact_start nulls last, l.pid
"""
_PREPARED = """
select gid, coalesce(database::text, '?'), coalesce(owner::text, '?'), prepared::timestamptz(0)::text
from pg_catalog.pg_prepared_xacts order by prepared
"""


def waited(conninfo: Conninfo, application: str, backend: int, seconds: float) -> LinkLost:
    """The error that names them. The backend that waits is ended: the slot that it was making goes with it."""
    session = DriverSession(open_session(conninfo, application), conninfo)
    try:
        writers = session.query(_WRITERS)
        prepared = session.query(_PREPARED)
        end_backend(session.connection, conninfo, backend, application)
    finally:
        session.connection.close()
    named = [
        f"pid {pid} (database {database}, user {user}, application {name}, since {since})"
        for pid, database, user, name, since in writers
    ]
    named += [
        f"prepared transaction {gid!r} (database {database}, user {user}, since {since})"
        for gid, database, user, since in prepared
    ]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    why = f"it waits for {', '.join(named[:NAMED])}{more}" if named else "what it waits for has just ended"
    return LinkLost(
        f"no slot could be made within {seconds:.0f} s",
        why=why,
        kept="nothing was touched",
        remedy="let these transactions end, or end them: pg_terminate_backend(PID), COMMIT PREPARED, ROLLBACK PREPARED",
    )
