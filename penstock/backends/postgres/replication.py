"""What a replication needs of a server: publications, a slot, exact snapshots, and the words for a DBA.

Publications first, then the slot: a slot that is older than its publication ends the stream. A table without a
key is never published for updates: the application's own UPDATE would fail. Nothing here writes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.backends.change_source import LogNames, TableRequest
from penstock.backends.postgres import blockers, catalog
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import DriverSession, identifier
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.identity import identities
from penstock.backends.postgres.silence import TooLong
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.stream import ReplicationLink, lsn
from penstock.errors import LinkLost, PlanRefused
from penstock.schema import TableName

# How long a slot may wait for transactions that write, before they are named.
SLOT_SECONDS = 60.0
INSERTS = "_inserts"  # of the publication for tables without a key


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that is asked for, as the catalog has it."""

    name: TableName
    oid: int
    kind: str  # r, p
    key: tuple[str, ...]
    identity: str  # relreplident
    columns: tuple[str, ...] = ()  # asked for; all where none are named
    where: str = ""
    literal: bool = True  # named letter by letter
    chosen: bool = False  # `columns` are not all of them
    trouble: str = ""  # why its UPDATEs would fail if they were published
    unsent: str = ""  # why the log has nothing of it

    @property
    def changes(self) -> bool:
        """Whether its updates and deletes can be sent at all."""
        return not self.trouble

    @property
    def sql(self) -> str:
        # A partitioned table is one with its leaves. What only inherits from a table is another one: published with
        # it, but without a key, its own UPDATEs would fail.
        only = "" if self.kind == "p" else "only "
        columns = f" ({', '.join(identifier(name) for name in self.columns)})" if self.columns else ""
        return f"{only}{qualified(self.name)}{columns}{f' where ({self.where})' if self.where else ''}"


def publications(names: LogNames) -> tuple[str, ...]:
    """Of tables whose every change is sent, and of those without a key: only what is added to them.

    One of the user's own is the only one.
    """
    return (names.publication,) if names.own else (names.publication, names.publication + INSERTS)


class SlotSnapshot:
    """The moment of a slot's creation: every transaction that commits before `point`, and no other.

    The link that made it stays silent until `close`: any command on it would end the snapshot.
    """

    def __init__(self, conninfo: Conninfo, application: str, slot: str, *, temporary: bool) -> None:
        self.link = ReplicationLink(conninfo, application)
        try:
            self.origin = self.link.system().origin
            self.point, exported = self._created(slot, conninfo, application, temporary=temporary)
            self.holder = Holder(conninfo, f"{application}:read", exported)
        except BaseException:
            self.link.close()
            raise

    def _created(self, slot: str, conninfo: Conninfo, application: str, *, temporary: bool) -> tuple[int, str]:
        try:
            return self.link.create_slot(slot, SLOT_SECONDS, temporary=temporary)
        except TooLong:
            raise blockers.waited(conninfo, application, self.link.pgconn.backend_pid, SLOT_SECONDS) from None

    def close(self) -> None:
        self.holder.close()
        self.link.close()


# ---------------------------------------------------------------- what is there


def published(session: DriverSession, tables: Sequence[TableRequest], *, generated: bool) -> list[PublishedTable]:
    """The tables that are asked for and there; with `generated`, the log has stored generated columns."""
    wanted = {table.name: table for table in tables}
    rows = session.query(
        "select n.nspname::text, c.relname::text, c.oid::int8, c.relkind::text, c.relreplident::text"
        " from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
        " where (n.nspname::text, c.relname::text) in (select * from unnest(%s::text[], %s::text[])) order by 1, 2",
        ([name.schema for name in wanted], [name.table for name in wanted]),
    )
    told = identities(session, [oid for _, _, oid, _, _ in rows], generated=generated)
    found = []
    for schema, table, oid, kind, identity in rows:
        if oid not in told:
            continue  # dropped just now
        asked, known = wanted[TableName(schema, table)], told[oid]
        columns, chosen = _chosen(session, oid, asked, known.key)
        found.append(
            PublishedTable(
                *(asked.name, oid, kind, known.key, identity, columns, asked.where, asked.literal),
                *(chosen, known.trouble, known.unsent),
            )
        )
    return found


def _chosen(
    session: DriverSession, oid: int, asked: TableRequest, key: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
    """The columns that are asked for, the key among them, () for all; and whether there are others."""
    if not asked.include and not asked.exclude:
        return (), False
    known = [column.name for column in catalog.table_columns(session.query, oid)]
    unknown = [name for name in (*asked.include, *asked.exclude) if name not in known]
    if unknown:
        raise PlanRefused(
            f"{asked.name} has no column {', '.join(unknown)}",
            why=f"it has {', '.join(known)}",
            place=str(asked.name),
        )
    wanted = asked.include or tuple(name for name in known if name not in asked.exclude)
    chosen = tuple(name for name in known if name in wanted or name in key)
    return chosen, len(chosen) < len(known)


# ---------------------------------------------------------------- slots


def slot_position(session: DriverSession, slot: str) -> tuple[int, str] | None:
    """Where the slot's reader has got, and whether its log is still there."""
    rows = session.query(
        "select confirmed_flush_lsn::text, coalesce(wal_status, '') from pg_catalog.pg_replication_slots"
        " where slot_name = %s and database = pg_catalog.current_database()",
        (slot,),
    )
    if not rows:
        return None
    [(position, status)] = rows
    if position is None:
        raise LinkLost(f"the slot {slot} is still being made", remedy="try again")
    return lsn(position), status
