"""What the rows of a table hang on without the log telling of it.

Under a publication by the partitions' root, a leaf that is truncated, dropped, detached, or attached with rows in it
sends nothing; nor does a table say that it was taken out of a publication for a while. Each of these changes the
outline. Reads only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from penstock.backends.change_source import Finding
from penstock.backends.postgres.connect import DriverSession
from penstock.backends.postgres.publications import members
from penstock.backends.postgres.replication import PublishedTable
from penstock.schema import TableName

UNPUBLISHED = "-"

_LEAVES = """
with recursive family as (
  select o.oid as root, i.inhrelid as oid from unnest(%s::oid[]) as o(oid) join pg_inherits i on i.inhparent = o.oid
  union select f.root, i.inhrelid from family f join pg_inherits i on i.inhparent = f.oid
  where not i.inhdetachpending)
select f.root::int8, string_agg(c.oid::text || ':' || c.relfilenode::text, ',' order by c.oid)
from family f join pg_class c on c.oid = f.oid where c.relkind <> 'p' group by 1
"""


def outlines(session: DriverSession, names: Sequence[str], tables: Sequence[PublishedTable]) -> dict[TableName, str]:
    """Each table's own number, that of its entry in a publication, and its leaves with their files."""
    entries = members(session, names)
    leaves: dict[int, str] = dict(session.query(_LEAVES, ([table.oid for table in tables],)))
    return {
        table.name: ":".join(
            (
                str(table.oid),
                str(entries.get(table.name, UNPUBLISHED)),
                hashlib.sha256(leaves.get(table.oid, "").encode()).hexdigest()[:16],
            )
        )
        for table in tables
    }


def successor(session: DriverSession, outline: str) -> TableName | None:
    rows = session.query(
        "select n.nspname::text, c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = %s::oid",
        (outline.partition(":")[0] or "0",),
    )
    return TableName(*rows[0]) if rows else None


# ---------------------------------------------------------------- generated columns


def unsent_columns(
    session: DriverSession, tables: Sequence[PublishedTable], *, stored: bool
) -> dict[TableName, tuple[str, ...]]:
    """Generated columns that the stream does not have; `stored` says whether it has those that are stored."""
    rows = session.query(
        "select a.attrelid::int8, a.attname::text from pg_attribute a where a.attrelid = any(%s::oid[])"
        " and a.attnum > 0 and not a.attisdropped and a.attgenerated <> '' and not (%s and a.attgenerated = 's')"
        " order by a.attrelid, a.attnum",
        ([table.oid for table in tables], stored),
    )
    names = {table.oid: table.name for table in tables}
    found: dict[TableName, tuple[str, ...]] = {}
    for oid, column in rows:
        found[names[oid]] = (*found.get(names[oid], ()), column)
    return found


def told(unsent: Mapping[TableName, Sequence[str]], *, stored: bool) -> list[Finding]:
    why = "virtual" if stored else "generated"
    return [
        Finding(
            f"of {table}, {', '.join(columns)} is left out: the log does not have {why} columns",
            "compute it in the target, for instance in a view",
        )
        for table, columns in unsent.items()
    ]
