"""Who holds a target, and what dead runs have left there.

A run holds one session lock per target table and one for itself; the server frees them when the
session ends, however it ends. The lease row only tells people who it is. A run whose own lock
can be taken is dead, and only then is anything of it removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time

from penstock.backends.base import LoadPlan, Receipt
from penstock.backends.postgres.casts import INPUT_VALID, INPUT_VALID_DDL, INPUT_VALID_SINCE
from penstock.backends.postgres.connect import DriverSession, identifier
from penstock.backends.sql import check_format, ensure_catalog
from penstock.errors import Busy, LinkLost
from penstock.observe.failpoints import failpoint

TABLES = (
    """create table if not exists _penstock.receipts (
         run varchar(32) not null, tbl bigint not null, part bigint not null, rows bigint not null,
         bytes bigint not null, pid bigint not null, primary key (run, tbl, part))""",
    """create table if not exists _penstock.leases (
         run varchar(32) not null, pipeline text not null, target text not null, host text not null,
         pid bigint not null, backend_pid bigint not null,
         started_at timestamp with time zone not null default current_timestamp, primary key (run, target))""",
    """create table if not exists _penstock.kept (run varchar(32) primary key, owner text not null)""",
)
SINK_SUFFIX = ":sink"  # of the application name of sessions that only stage
# The server frees a dead process' locks as soon as it notices; this is how long we let it.
DEAD_HOLDER_SECONDS = 10.0
GONE_SECONDS = 20.0
POLL_SECONDS = 0.05
_STAGING = re.compile(r"s_([0-9a-f]{32})_\d+")


def lock_key(text: str) -> int:
    """A stable 64-bit key of an advisory lock."""
    return int.from_bytes(hashlib.sha256(f"penstock:{text}".encode()).digest()[:8], "big", signed=True)


def staging_name(run_id: str, table: int) -> str:
    """Of fixed length: Postgres cuts longer names with a notice, and two tables become one."""
    return f"s_{run_id}_{table:04d}"


def prepare(session: DriverSession) -> None:
    """Make the `_penstock` tables. Two first loads at once must not make them twice."""
    with session.atomic():
        session.execute("select pg_catalog.pg_advisory_xact_lock(%s)", (lock_key("catalog"),))
        ensure_catalog(session)
        for ddl in TABLES:
            session.execute(ddl)
        if session.connection.info.server_version < INPUT_VALID_SINCE and not _has_input_valid(session):
            session.execute(INPUT_VALID_DDL)
    check_format(session)


def _has_input_valid(session: DriverSession) -> bool:
    """Never replaced: only the user that made it may do that, and any user may load."""
    signature = f"{INPUT_VALID}(pg_catalog.text, pg_catalog.text)"
    return session.query("select pg_catalog.to_regprocedure(%s)", (signature,))[0][0] is not None


def claim(session: DriverSession, plan: LoadPlan) -> None:
    """Take the locks of the run and of every target table, or say who has them."""
    targets = sorted({str(load.table) for load in plan.tables})
    _take(session, f"run:{plan.run.run_id}", f"run {plan.run.run_id}")
    for target in targets:
        _take(session, f"table:{target}", target)


def lease(session: DriverSession, plan: LoadPlan) -> None:
    with session.atomic():
        session.execute("delete from _penstock.leases where run = %s", (plan.run.run_id,))
        for target in sorted({str(load.table) for load in plan.tables}):
            session.execute(
                "insert into _penstock.leases (run, pipeline, target, host, pid, backend_pid)"
                " values (%s, %s, %s, %s, %s, %s)",
                (
                    plan.run.run_id,
                    plan.run.pipeline,
                    target,
                    socket.gethostname(),
                    os.getpid(),
                    session.connection.info.backend_pid,
                ),
            )


def keep(session: DriverSession, plan: LoadPlan) -> None:
    """Note that the run's staging is not to be swept when nobody holds its lock."""
    session.execute(
        "insert into _penstock.kept values (%s, %s) on conflict do nothing", (plan.run.run_id, plan.run.pipeline)
    )


def receipts(session: DriverSession, run: str) -> list[Receipt]:
    rows = session.query("select tbl, part, rows, bytes, pid from _penstock.receipts where run = %s", (run,))
    return [Receipt(table, part, count, size, pid=pid) for table, part, count, size, pid in rows]


def _try_lock(session: DriverSession, name: str) -> bool:
    return bool(session.query("select pg_catalog.pg_try_advisory_lock(%s)", (lock_key(name),))[0][0])


def await_lock(session: DriverSession, name: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(session, name):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def release(session: DriverSession, name: str) -> None:
    session.query("select pg_catalog.pg_advisory_unlock(%s)", (lock_key(name),))


def holders(session: DriverSession, name: str) -> list[int]:
    """The backends that hold a lock."""
    rows = session.query(
        "select pid from pg_catalog.pg_locks where locktype = 'advisory' and granted and objsubid = 1"
        " and (classid::int8 << 32 | objid::int8) = %s and database = (select oid from pg_catalog.pg_database"
        " where datname = pg_catalog.current_database())",
        (lock_key(name),),
    )
    return [pid for (pid,) in rows]


def _take(session: DriverSession, name: str, target: str) -> None:
    if _try_lock(session, name):
        return
    holder = session.query(
        "select run, pipeline, host, pid from _penstock.leases where target = %s or run = %s"
        " order by started_at desc limit 1",
        (target, target.removeprefix("run ")),
    )
    if holder and _died_here(holder[0][2], int(holder[0][3])) and await_lock(session, name, DEAD_HOLDER_SECONDS):
        return
    who = (
        f"run {holder[0][0]} of pipeline {holder[0][1]!r} (host {holder[0][2]}, pid {holder[0][3]})"
        if holder
        else "a run that has not signed in yet"
    )
    raise Busy(
        f"{target} is being loaded by another run",
        why=f"{who} holds it",
        kept="nothing was touched",
        remedy="wait for it to end, or cancel it",
        place=target,
    )


def _died_here(host: str, pid: int) -> bool:
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def sweep(session: DriverSession, own_run: str) -> list[str]:
    """Remove what dead runs left; the runs that were swept. A live run is never touched."""
    swept = []
    for run in _leftovers(session):
        if run == own_run or not _try_lock(session, f"run:{run}"):
            continue
        failpoint("sweep.begin")
        # Its workers may outlive its driver; one that commits now would leave a receipt behind.
        end_sessions(session, f"penstock:{run}")
        remove(session, run)
        session.query("select pg_catalog.pg_advisory_unlock(%s)", (lock_key(f"run:{run}"),))
        swept.append(run)
    if swept:
        failpoint("sweep.done")
    return swept


def _leftovers(session: DriverSession) -> list[str]:
    known = {
        run for (run,) in session.query("select run from _penstock.leases union select run from _penstock.receipts")
    }
    for name in _staging_tables(session):
        found = _STAGING.fullmatch(name)
        if found:
            known.add(found.group(1))
    return sorted(known - {run for (run,) in session.query("select run from _penstock.kept")})


def _staging_tables(session: DriverSession) -> list[str]:
    rows = session.query(
        "select c.relname::text from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = '_penstock' and c.relkind = 'r'"
    )
    return [name for (name,) in rows]


def remove(session: DriverSession, run: str) -> None:
    """The run's staging tables, receipts and leases."""
    for name in _staging_tables(session):
        if name.startswith(f"s_{run}_"):
            session.execute(f"drop table if exists _penstock.{identifier(name)} cascade")
    # The lease last: as long as it is there, a later sweep looks for the rest.
    session.execute("delete from _penstock.receipts where run = %s", (run,))
    session.execute("delete from _penstock.leases where run = %s", (run,))
    session.execute("delete from _penstock.kept where run = %s", (run,))


def end_sessions(session: DriverSession, application: str) -> None:
    """End the sessions called so, or so with a suffix, and wait until they are gone."""
    deadline = time.monotonic() + GONE_SECONDS
    condition = (
        "(application_name = %s or pg_catalog.starts_with(application_name, %s))"
        " and pid <> pg_catalog.pg_backend_pid() and datname = pg_catalog.current_database()"
    )
    params = (application, f"{application}:")
    while session.query(
        f"select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity where {condition}", params
    ):
        if time.monotonic() > deadline:
            raise LinkLost(
                "sessions of a dead run do not end",
                why=f"{application} still has sessions on the server",
                remedy="end them with pg_terminate_backend, then run again",
            )
        time.sleep(POLL_SECONDS)
