"""A Postgres database as the source of a replication."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.base import ConnectionConfig, Partition, ReadRequest, RunContext
from penstock.backends.change_source import (
    ChangeSource,
    ChangeStream,
    CopyMoment,
    Finding,
    HeldLog,
    LogNames,
    Obstacle,
    ReplicatedTable,
    Scratch,
    TableRequest,
)
from penstock.backends.changes import ChangedColumn, Position, TableVersion
from penstock.backends.postgres import catalog, health, held, outline, publications, replication, requirements, split
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import Identity
from penstock.backends.postgres.describe import shapes, version
from penstock.backends.postgres.errors import refused
from penstock.backends.postgres.identity import option_findings
from penstock.backends.postgres.keyed import rows_by_key
from penstock.backends.postgres.lasting import LastingSession, end_backend
from penstock.backends.postgres.leases import await_lock, holders, release
from penstock.backends.postgres.read import PostgresSource
from penstock.backends.postgres.replication import PublishedTable, SlotSnapshot
from penstock.backends.postgres.standby import StandbySnapshot
from penstock.backends.postgres.stream import PostgresStream, ReplicationLink, lsn_text
from penstock.backends.postgres.texts import read_keys, read_values
from penstock.backends.postgres.types import BACKEND, PgType, canonical
from penstock.errors import LinkLost, PenstockError, PlanRefused, SourceError, SourceMoved, StateError
from penstock.schema import Column, Schema, TableName
from penstock.schema.words import spell

# What one task of a copy reads: what a kill costs, and what a table is cut by.
RANGE_BYTES = 32 * 1024 * 1024
# How long another agent may take to begin: its slot waits for transactions that write.
BEGIN_SECONDS = replication.SLOT_SECONDS + 30.0
# What others may write before a heartbeat is worth the log that it takes itself.
BEAT_BYTES = 1024 * 1024
_BEAT = """
select case when not pg_is_in_recovery() and pg_current_wal_lsn() - %s::pg_lsn > %s
            then pg_logical_emit_message(true, 'penstock', '') end::text
"""
IDENTITIES = {"f": "full", "i": "key", "d": "key"}


class PostgresMoment(CopyMoment):
    """The snapshot of a slot's creation. One source per table reads under it."""

    def __init__(
        self,
        config: PostgresConfig,
        snapshot: SlotSnapshot | StandbySnapshot,
        origin: str,
        published: Sequence[PublishedTable],
        standby: PostgresMoment | None = None,
    ) -> None:
        """`standby` is where tables with a key are read instead."""
        self.commit = snapshot.low if isinstance(snapshot, StandbySnapshot) else snapshot.point
        self.origin = origin
        self.at = datetime.now(UTC)
        self._config = config
        self._snapshot = snapshot
        self._published = {table.name: table for table in published}
        self._standby = standby

    @property
    def exact(self) -> int:
        return self._snapshot.high if isinstance(self._snapshot, StandbySnapshot) else self.commit

    def of(self, table: TableName) -> CopyMoment:
        return self._standby if self._standby is not None and self._published[table].key else self

    def covers(self, table: TableName) -> bool:
        return table in self._published

    def ranges(self, table: TableName) -> list[dict[str, Any]]:
        ask = self._snapshot.holder.catalog
        published = self._published[table]
        members = [member for member in catalog.family(ask, published.oid) if member.kind != "p"]
        if published.kind != "p":
            # What inherits from it is another table: its changes come under its own name.
            members = [member for member in members if member.oid == published.oid]
        found: list[dict[str, Any]] = []
        for member in members:
            file = _file(ask, member.oid)
            found += [
                {"oid": member.oid, "file": file, "low": low, "high": high}
                for low, high in split.blocks_of(self._snapshot.holder, member, RANGE_BYTES)
            ]
        return found

    def partition(
        self, table: TableName, columns: Sequence[Column], piece: dict[str, Any], run: RunContext
    ) -> Partition:
        if _file(self._snapshot.holder.catalog, piece["oid"]) != piece["file"]:
            # Its rows lie elsewhere now: what was read of the old file and what is read of the new are no whole.
            raise SourceMoved(
                "the table was rewritten while it was copied",
                why="VACUUM FULL, CLUSTER, TRUNCATE or an ALTER has given it another file",
                kept="nothing of it is visible in the target",
                remedy="it is copied again from the beginning",
                place=str(table),
            )
        published = self._published[table]
        source = PostgresSource(self._config, ReadRequest(table, keys=published.key), run, self._snapshot.holder)
        try:
            return source.range(columns, piece["oid"], piece["low"], piece["high"], published.where)
        except PlanRefused as error:
            # What was planned of it is not what this moment has: it was altered in between.
            raise SourceMoved("the table was altered while it was copied", why=error.what, place=str(table)) from error

    def rows(self, version: TableVersion, keys: pa.Table) -> pa.Table:
        return rows_by_key(self._snapshot.holder, self._published[version.table], version, keys)

    def close(self) -> None:
        if self._standby is not None:
            self._standby.close()
        self._snapshot.close()


def _file(ask: catalog.Query, oid: int) -> int:
    rows = ask("select relfilenode::int8 from pg_class where oid = %s", (oid,))
    return int(rows[0][0]) if rows else 0


class PostgresChangeSource(ChangeSource):
    """Keeps one session for the catalog; the log has a link of its own."""

    def __init__(self, config: PostgresConfig, names: LogNames, tables: Sequence[TableRequest]) -> None:
        self._config = config
        self._conninfo = config.conninfo()
        self._names = names
        self._application = f"penstock:{names.slot}"
        # To publish a table waits behind an application's ALTER, and whoever comes next would wait behind us.
        settings = (("search_path", "pg_catalog"), ("lock_timeout", config.lock_timeout))
        self._session = LastingSession(self._conninfo, self._application, settings)
        self._session.side = SourceError
        self._copy_from: PostgresConfig | None = None
        self._requested = tuple(tables)
        self._published = self._look(tables)

    def _look(self, tables: Sequence[TableRequest]) -> list[PublishedTable]:
        stored = publications.sends_generated(self._session, self._names)
        found = replication.published(self._session, tables, generated=stored)
        if self._names.own:
            found = publications.as_published(self._session, self._names.publication, found)
        taken, left = publications.chosen(found, self._names)
        self._troubled = {table.name for table in found if table.trouble}
        self._unsent = outline.unsent_columns(self._session, taken, stored=stored)
        self.left_out = (*left, *outline.told(self._unsent, stored=stored))
        return taken

    @property
    def texts_of(self) -> str:
        return BACKEND

    def tables(self) -> list[ReplicatedTable]:
        self._published = self._look(self._requested)  # one that was made anew has another number
        return [self._described(table) for table in self._published]

    def _described(self, table: PublishedTable) -> ReplicatedTable:
        described = [
            column
            for column in catalog.table_columns(self._session.query, table.oid)
            if (not table.columns or column.name in table.columns)
            and column.name not in self._unsent.get(table.name, ())
        ]
        types = catalog.types(self._session.query, [(c.oid, c.typmod) for c in described])
        columns = [
            canonical(column.name, type_, dims=column.dims, nullable=column.nullable)
            for column, type_ in zip(described, types, strict=True)
        ]
        identity = IDENTITIES.get(table.identity, "none") if table.changes else "none"
        size = catalog.stored_bytes(self._session.query, table.oid) or 0
        named = [
            (c.name, f"{BACKEND}:{type_.spelling}", c.name in table.key, spell(canonical(c.name, type_)))
            for c, type_ in zip(described, types, strict=True)
        ]
        made = version(self._session.query, table.oid, table.name, named, identity)
        return ReplicatedTable(table.name, Schema.of(columns), table.key, made, size)

    def described(self, version: TableVersion) -> ReplicatedTable:
        columns = []
        for column in version.columns:
            type_ = self._type(column.native.removeprefix(f"{BACKEND}:"))
            columns.append(canonical(column.name, type_))
        key = tuple(column.name for column in version.columns if column.key)
        return ReplicatedTable(version.table, Schema.of(columns), key, version)

    def _type(self, spelling: str) -> PgType:
        """The type of this spelling, which the server itself has given."""
        try:
            with self._session.turn:
                described = self._session.connection.execute(f"select null::{spelling}".encode()).pgresult
        except psycopg.Error as error:
            raise refused(error, self._conninfo, side=SourceError) from error
        assert described is not None  # noqa: S101  a select has a result
        return catalog.types(self._session.query, [(described.ftype(0), described.fmod(0))])[0]

    def findings(self) -> list[Finding]:
        return requirements.findings(self._session, self._names, self._published)

    def advice(self) -> list[Finding]:
        return held.advice(self._session, self._names.slot)

    def prepare(self) -> list[str]:
        return requirements.statements(self._session, self._names, self._published)

    def publish(self) -> None:
        for statement in publications.statements(self._session, self._names, self._published, self._troubled):
            self._session.execute(statement)

    def copies_from(self, config: ConnectionConfig) -> None:
        assert isinstance(config, PostgresConfig)  # noqa: S101  of the same kind as the source
        self._copy_from = config

    def place(self) -> str:
        return "/".join(map(str, self._session.query(Identity.QUERY)[0]))

    def outlines(self) -> dict[TableName, str]:
        # At one moment: a table that is dropped meanwhile is there with all that belongs to it, or not at all.
        with self._session.atomic():
            self._session.execute("set transaction isolation level repeatable read")
            self._published = self._look(self._requested)
            return outline.outlines(self._session, replication.publications(self._names), self._published)

    def altered(self, known: Mapping[TableName, TableVersion]) -> dict[TableName, TableVersion]:
        with self._session.atomic():
            self._session.execute("set transaction isolation level repeatable read")
            published = [table for table in self._look(self._requested) if table.name in known]
            now = shapes(self._session.query, [table.oid for table in published])
            others = [one for one in published if now[one.oid] != (known[one.name].file, known[one.name].stamp)]
            return {table.name: self._described(table).version for table in others}

    def successor(self, outline_: str) -> TableName | None:
        return outline.successor(self._session, outline_)

    def change(self, tables: Sequence[TableRequest]) -> None:
        published = self._look(tables)
        known = {table.name for table in self._published}
        new = [table for table in published if table.name not in known]
        found = [*option_findings(self._session, published), *requirements.policy_findings(self._session, new)]
        if found:
            raise PlanRefused(
                "the tables cannot be published so",
                why="; ".join(one.what for one in found),
                kept="nothing was changed",
                remedy="; ".join(one.remedy for one in found),
            )
        with self._session.atomic():
            for statement in publications.changes(self._session, self._names, published):
                self._session.execute(statement)
        # Only now: a change that was refused, or ran into a lock, is not what later moments shall publish.
        self._requested, self._published = tuple(tables), published

    @contextmanager
    def alone(self) -> Iterator[None]:
        name = f"begin {self._names.slot}"
        with self._session.unbroken():
            if not await_lock(self._session, name, BEGIN_SECONDS):
                self._end_beginner(name)
            try:
                yield
            finally:
                with suppress(PenstockError):  # of a link that is lost, and the lock with it
                    release(self._session, name)

    def _end_beginner(self, name: str) -> None:
        """One that hangs, or whose link is lost without the server's knowing: what it does next over it fails."""
        for backend in holders(self._session, name):
            end_backend(self._session.connection, self._conninfo, backend, self._application)
        if not await_lock(self._session, name, BEGIN_SECONDS):
            raise LinkLost(
                f"another agent begins the replication of slot {self._names.slot}, and does not come to an end",
                why="it holds the lock of the beginning, and its session could not be ended",
                kept="nothing was touched",
                remedy="it is tried again by itself; or stop the other agent",
            )

    def begin(self) -> CopyMoment:
        # Publications first: a slot that is older than its publication ends the stream with an error.
        self.publish()
        if replication.slot_position(self._session, self._names.slot) is not None:
            # Of a start that died before the target knew of it: nothing has been read through it.
            self._session.query("select pg_catalog.pg_drop_replication_slot(%s)", (self._names.slot,))
        return self._moment(self._names.slot, self._published, temporary=False)

    def moment(self) -> CopyMoment:
        # Before the snapshot: of a table that is published later, what changes in between would never be sent.
        published = self._look(self._requested)
        for statement in publications.statements(self._session, self._names, published, self._troubled):
            self._session.execute(statement)
        return self._moment(f"penstock_{uuid.uuid4().hex[:16]}", published, temporary=True)

    def _moment(self, slot: str, published: Sequence[PublishedTable], *, temporary: bool) -> CopyMoment:
        before = {table.name for table in published}
        snapshot = SlotSnapshot(self._conninfo, self._application, slot, temporary=temporary)
        try:
            self._published = self._look(self._requested)
            covered = [table for table in self._published if table.name in before]
            standby = self._standby_moment(snapshot, covered) if self._copy_from is not None else None
        except BaseException:
            snapshot.close()
            raise
        return PostgresMoment(self._config, snapshot, snapshot.origin, covered, standby)

    def _standby_moment(self, primary: SlotSnapshot, covered: Sequence[PublishedTable]) -> PostgresMoment:
        assert self._copy_from is not None  # noqa: S101  asked by the caller
        system = primary.origin.partition("/")[0]
        snapshot = StandbySnapshot(self._copy_from.conninfo(), self._application, system, primary.point)
        return PostgresMoment(self._copy_from, snapshot, primary.origin, covered)

    def obstacle(self, after: Position) -> Obstacle | None:
        link = ReplicationLink(self._conninfo, self._application)
        try:
            return health.obstacle(self._session, link, self._names, after)
        finally:
            link.close()

    def held(self) -> HeldLog | None:
        return held.held(self._session, self._names.slot)

    def stream(self, after: Position, scratch: Scratch, known: Mapping[TableName, TableVersion]) -> ChangeStream:
        application = f"{self._application}:capture"
        self._end_reader(application)
        link = ReplicationLink(self._conninfo, application)
        # The agent has asked before; but a server may be promoted at any moment.
        found = health.lineage(link, after)
        if found is not None:
            link.close()
            raise StateError("the log cannot be read on", why=found.why, remedy=found.remedy)
        names = replication.publications(self._names)
        return PostgresStream(link, self._session, self._names.slot, names, after.end, scratch, known)

    def _end_reader(self, application: str) -> None:
        """A capture whose link was lost may hold the slot until the server finds that out, and nobody needs it."""
        readers = self._session.query(
            "select active_pid from pg_replication_slots where slot_name = %s and active_pid is not null",
            (self._names.slot,),
        )
        for (backend,) in readers:
            end_backend(self._session.connection, self._conninfo, backend, application)

    def values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        return read_values(version, schema, rows)

    def key_texts(self, column: ChangedColumn, texts: pa.Array) -> pa.Array:
        known = read_keys(column, texts)
        if known is not None:
            return known
        encoded = pc.dictionary_encode(texts)
        [(folded,)] = self._session.query(
            "select array(select lower(u) from unnest(%s::text[]) with ordinality as t(u, n) order by n)",
            (encoded.dictionary.to_pylist(),),
        )
        return pa.array(folded, texts.type).take(encoded.indices)

    def mark(self) -> int:
        # Nobody writes into a standby's log; but all that is committed there lies before what it has replayed.
        written = "pg_logical_emit_message(true, 'penstock', '')"
        place = "pg_last_wal_replay_lsn()" if self._is_standby() else written
        return int(self._session.query(f"select ({place} - '0/0')::pg_catalog.int8")[0][0])

    def _is_standby(self) -> bool:
        return bool(self._session.query("select pg_is_in_recovery()")[0][0])

    def beat(self, end: int) -> bool:
        rows = self._session.query(_BEAT, (lsn_text(end), BEAT_BYTES))
        return rows[0][0] is not None

    def remove(self) -> None:
        if replication.slot_position(self._session, self._names.slot) is not None:
            self._session.query("select pg_catalog.pg_drop_replication_slot(%s)", (self._names.slot,))
        # Those of a standby are its primary's: whoever made them there takes them back.
        left = self._names.own or self._is_standby()
        for statement in () if left else publications.removal(self._names):
            self._session.execute(statement)

    def close(self) -> None:
        self._session.close()
