"""How the server tells the rows of a table apart, and when it would refuse an application's own UPDATE.

A published table whose replica identity does not do makes every UPDATE and DELETE of it fail, whoever runs them. The
server looks only when one is run, so all that it would object to is found here first. Reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from penstock.backends.change_source import Finding
from penstock.backends.postgres.connect import DriverSession, identifier
from penstock.backends.postgres.dialect import qualified

if TYPE_CHECKING:
    from penstock.backends.postgres.replication import PublishedTable

KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}

# A deferrable key tells rows apart at the end of a transaction only: the server takes none for an identity.
_MEMBERS = """
with recursive family as (
  select o.oid as root, o.oid as oid from unnest(%s::oid[]) as o(oid)
  union select f.root, i.inhrelid from family f join pg_class p on p.oid = f.oid and p.relkind = 'p'
        join pg_inherits i on i.inhparent = p.oid)
select f.root::int8, c.oid::int8, n.nspname::text || '.' || c.relname::text, c.relkind::text, c.relreplident::text,
       c.relpersistence::text,
       array(select a.attname::text from pg_index i cross join unnest(i.indkey) with ordinality as k(attnum, ord)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where i.indrelid = c.oid and i.indimmediate and i.indisvalid
               and case when c.relreplident = 'i' then i.indisreplident else i.indisprimary end order by k.ord),
       exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and not i.indimmediate),
       array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and not a.attisdropped
               and a.attgenerated <> '' order by a.attnum),
       exists (select from pg_attribute a where a.attrelid = c.oid and not a.attisdropped and a.attgenerated = 'v')
from family f join pg_class c on c.oid = f.oid join pg_namespace n on n.oid = c.relnamespace
order by f.root, f.oid <> f.root, 3
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one table, or of a leaf."""

    oid: int
    name: str
    kind: str
    identity: str
    persistence: str
    key: tuple[str, ...]  # of the index that the server takes
    deferred: bool  # it has a key that can be deferred
    generated: tuple[str, ...]
    virtual: bool

    @property
    def trouble(self) -> str:
        """Why an UPDATE of it would fail if it were published; "" if none would."""
        if self.identity == "n":
            return "its replica identity is NOTHING"
        if self.identity == "i" and not self.key:
            return "the index of its replica identity is gone"
        if self.identity == "f" and self.virtual:
            return "its replica identity is FULL and has virtual generated columns"
        if self.identity == "d" and not self.key:
            return "its primary key can be deferred" if self.deferred else "it has no key"
        return ""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a table that is asked for."""

    key: tuple[str, ...]
    trouble: str = ""  # its updates and deletes cannot be sent
    unsent: str = ""  # nothing of it can be sent


def identities(session: DriverSession, tables: Sequence[int], *, generated: bool) -> dict[int, Told]:
    """By the tables' numbers; with `generated`, the log has stored generated columns."""
    found: dict[int, list[Identity]] = {}
    for root, oid, name, kind, identity, persistence, key, deferred, columns, virtual in session.query(
        _MEMBERS, (list(tables),)
    ):
        one = Identity(oid, name, kind, identity, persistence, tuple(key), deferred, tuple(columns), virtual)
        found.setdefault(root, []).append(one)
    return {root: _told(members, generated=generated) for root, members in found.items()}


def _told(members: Sequence[Identity], *, generated: bool) -> Told:
    root, leaves = members[0], [one for one in members[1:] if one.kind != "p"]
    unsent = f"it is {KINDS[root.kind]}" if root.kind in KINDS else ""
    unlogged = [one for one in (root, *leaves) if one.persistence != "p"]
    if unlogged and not unsent:
        unsent = "it is not logged" if unlogged[0] is root else f"{unlogged[0].name} of it is not logged"
    trouble = root.trouble
    for leaf in leaves:
        if leaf.trouble:
            trouble = trouble or f"of its partition {leaf.name}, {leaf.trouble}"
        elif leaf.identity != "f" and (root.identity == "f" or not set(root.key) <= set(leaf.key)):
            # The log would name a whole old row, or a key, that the leaf's own identity does not have.
            trouble = trouble or f"its partition {leaf.name} has another replica identity"
    key = () if root.trouble else root.key
    if not generated and set(root.key) & set(root.generated):
        key, trouble = (), trouble or "its key is a generated column, which the log does not have"
    return Told(key, trouble, unsent)


# ---------------------------------------------------------------- what is asked of a table


def option_findings(session: DriverSession, tables: Sequence[PublishedTable]) -> list[Finding]:
    """Columns and rows that cannot be chosen: the server would refuse the application's UPDATEs."""
    found = []
    for table in tables:
        if not table.changes:
            continue  # what is only added may be chosen in any way
        if table.chosen and table.identity == "f":
            found.append(
                Finding(
                    f"of {table.name} no columns can be chosen: its replica identity is FULL, and its UPDATEs would"
                    " fail",
                    f"leave include and exclude out, or: alter table {qualified(table.name)} replica identity default,"
                    " where it has a primary key",
                )
            )
        if table.where and table.identity != "f":
            found += _of_filter(session, table)
    return found


def _of_filter(session: DriverSession, table: PublishedTable) -> list[Finding]:
    try:
        used = _columns_of(session, table)
    except psycopg.errors.InsufficientPrivilege:
        return []  # told by itself
    except psycopg.Error as error:
        why = (error.diag.message_primary or "").strip()
        return [Finding(f"the filter of {table.name} cannot be used: {why}", "correct `where` in the table's options")]
    lacking = [name for name in used if name not in table.key]
    if not lacking:
        return []
    return [
        Finding(
            f"the filter of {table.name} uses {', '.join(lacking)}, which is no part of its key:"
            " its UPDATEs would fail if they were published so",
            f"filter by {', '.join(table.key)}, or: alter table {qualified(table.name)} replica identity full",
        )
    ]


def _columns_of(session: DriverSession, table: PublishedTable) -> list[str]:
    """The columns that a filter reads, by the server's own word: of a view that is never seen by anybody."""
    connection = session.connection
    if connection.execute("select pg_catalog.pg_is_in_recovery()").fetchall()[0][0]:
        return []  # publications are made on its primary
    view = identifier("_penstock_filter")
    with connection.transaction(force_rollback=True):
        connection.execute("set local search_path to pg_catalog")
        rows_of = f"select 1 as n from only {qualified(table.name)} where ({table.where})"
        connection.execute(f"create temporary view {view} as {rows_of}".encode())
        rows = connection.execute(
            "select a.attname::text from pg_depend d join pg_rewrite r on r.oid = d.objid"
            " join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid"
            f" where d.classid = 'pg_rewrite'::regclass and r.ev_class = 'pg_temp.{view}'::regclass"
            " and d.refobjid = %s order by a.attnum",
            (table.oid,),
        ).fetchall()
    return [name for (name,) in rows]
