"""What must be put right on a server before a replication starts, all at once; and the SQL that puts it right.

The SQL is for whoever may: it gives the connection's user what a replication needs, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.backends.change_source import Finding, LogNames
from penstock.backends.postgres import publications
from penstock.backends.postgres.connect import DriverSession, identifier
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.identity import option_findings
from penstock.backends.postgres.replication import PublishedTable

SENDERS = 2  # one for the log, one that keeps the moment of a copy
STANDBY = 160_000  # the first version whose standbys decode their log

_SERVER = """
select current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (select count(*) from pg_replication_slots)::int, current_setting('max_wal_senders')::int,
       (select count(*) from pg_stat_replication)::int,
       (select rolreplication or rolsuper
            or coalesce((select pg_has_role(oid, 'member') from pg_roles where rolname = 'rds_replication'), false)
        from pg_roles where rolname = current_user),
       (select rolsuper from pg_roles where rolname = current_user), current_user::text,
       has_database_privilege(current_database(), 'create'), current_setting('server_version_num')::int,
       pg_is_in_recovery(), exists (select from pg_replication_slots where slot_name = %s)
"""


@dataclass(frozen=True, slots=True)
class _Server:
    level: str
    slots: int
    used: int
    senders: int
    sending: int
    may_replicate: bool
    superuser: bool
    user: str
    may_create: bool
    version: int
    standby: bool
    has_slot: bool


@dataclass(frozen=True, slots=True)
class _Rights:
    """Of the user on one table."""

    table: PublishedTable
    schema: bool
    select: bool
    owner: bool
    hidden: bool  # by a policy, of its own or of a partition's: their rows are read one by one


def findings(session: DriverSession, names: LogNames, tables: Sequence[PublishedTable]) -> list[Finding]:
    """All that stands in the way, at once, each with its remedy."""
    server = _Server(*session.query(_SERVER, (names.slot,))[0])
    found = [*_of_the_server(server), *_of_the_tables(session, tables), *option_findings(session, tables)]
    if names.own:
        return found + publications.own_findings(session, names.publication, tables)
    return found + _of_the_publications(session, server, names, tables)


def _of_the_server(server: _Server) -> list[Finding]:
    found = []
    if server.level != "logical":
        found.append(
            Finding(
                f"wal_level is {server.level}, not logical",
                "alter system set wal_level = logical, then restart the server (on managed servers a parameter,"
                " such as rds.logical_replication = 1)",
            )
        )
    if server.standby and server.version < STANDBY:
        found.append(
            Finding(
                f"the server is a standby of version {server.version // 10_000}: its log cannot be read there",
                "read from the primary, and copy from the standby: copy_from; from 16 on a standby may be the source",
            )
        )
    if not server.may_replicate:
        found.append(
            Finding(
                f"the user {server.user} may not replicate",
                f"alter role {identifier(server.user)} with replication (managed: grant rds_replication)",
            )
        )
    if not server.has_slot and server.used >= server.slots:
        found.append(
            Finding(
                f"all {server.slots} replication slots are taken",
                "drop one that nobody uses (pg_replication_slots says which), or raise max_replication_slots",
            )
        )
    if server.sending + SENDERS > server.senders:
        found.append(
            Finding(
                f"{server.sending} of {server.senders} WAL senders are taken, and a replication needs {SENDERS}",
                "raise max_wal_senders, or end a standby or a replication that nobody needs",
            )
        )
    return found


def _of_the_tables(session: DriverSession, tables: Sequence[PublishedTable]) -> list[Finding]:
    found = []
    for one in _rights(session, tables):
        if not one.schema:
            schema = identifier(one.table.name.schema or "")
            found.append(Finding(f"the schema of {one.table.name} cannot be used", f"grant usage on schema {schema}"))
        if not one.select:
            found.append(
                Finding(f"table {one.table.name} cannot be read", f"grant select on {qualified(one.table.name)}")
            )
    return found + policy_findings(session, tables)


def policy_findings(session: DriverSession, tables: Sequence[PublishedTable]) -> list[Finding]:
    """Tables whose rows the user sees only as a policy lets it: the log has all of them, the copy would not."""
    hidden = [str(one.table.name) for one in _rights(session, tables) if one.hidden]
    if not hidden:
        return []
    [(user,)] = session.query("select current_user::text")
    return [
        Finding(
            f"row security hides rows of {', '.join(hidden)} from the user {user}",
            f"alter role {identifier(user)} with bypassrls; or read as the tables' owner, where it is not forced on it",
        )
    ]


def _of_the_publications(
    session: DriverSession, server: _Server, names: LogNames, tables: Sequence[PublishedTable]
) -> list[Finding]:
    missing = publications.statements(session, names, tables)
    if not missing:
        return []
    if server.standby:
        return [Finding("publications cannot be made on a standby", f"on its primary: {'; '.join(missing)}")]
    if server.superuser:
        return []
    foreign = [str(one.table.name) for one in _rights(session, tables) if not one.owner]
    why = f"it does not own {', '.join(foreign)}" if foreign else ""
    why = why or ("" if server.may_create else "it may create nothing in the database")
    if not why:
        return []
    return [
        Finding(
            f"the user {server.user} may not make the publication {names.publication}: {why}",
            "let somebody who may run what `penstock replications prepare NAME --print` prints",
        )
    ]


def _rights(session: DriverSession, tables: Sequence[PublishedTable]) -> list[_Rights]:
    rows = session.query(
        "select o.oid::int8, has_schema_privilege(c.relnamespace, 'usage'), has_table_privilege(c.oid, 'select'),"
        " pg_has_role(c.relowner, 'usage'), row_security_active(c.oid)"
        " or exists (select from pg_partition_tree(c.oid) as p where row_security_active(p.relid))"
        " from unnest(%s::oid[]) as o(oid) join pg_class c on c.oid = o.oid",
        ([table.oid for table in tables],),
    )
    by_oid = {oid: rights for oid, *rights in rows}
    return [_Rights(table, *by_oid[table.oid]) for table in tables if table.oid in by_oid]


def statements(session: DriverSession, names: LogNames, tables: Sequence[PublishedTable]) -> list[str]:
    """What a DBA runs by hand: the least that lets this user replicate these tables. Only what is missing."""
    server = _Server(*session.query(_SERVER, (names.slot,))[0])
    user = identifier(server.user)
    made = [f"alter role {user} with replication"] if not server.may_replicate else []
    rights = _rights(session, tables)
    if any(one.hidden for one in rights):
        made.append(f"alter role {user} with bypassrls")
    schemas = sorted({one.table.name.schema or "" for one in rights if not one.schema})
    made += [f"grant usage on schema {identifier(schema)} to {user}" for schema in schemas]
    made += [f"grant select on table {qualified(one.table.name)} to {user}" for one in rights if not one.select]
    return made + publications.statements(session, names, tables)
