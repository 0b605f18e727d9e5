"""The state store's tables, version by version.

A migration that was published is never edited: the next change is the next function in the list.
Each runs inside the transaction that also raises the version, so a store is at one version or at
the next, never between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, text

from penstock.errors import StateError

Migration = Callable[[Connection], None]

META = "penstock_meta"


def first(connection: Connection) -> None:
    """Runs and their events."""
    time, serial = (
        ("timestamp with time zone", "bigint generated always as identity")
        if connection.dialect.name == "postgresql"
        else ("text", "integer")
    )
    for statement in (
        f"""
        create table {prefix(connection)}runs (
          run_id text primary key, pipeline text not null, kind text not null, state text not null,
          started_at {time} not null, finished_at {time},
          path text, mode text, source text, target text,
          "rows" bigint, inserted bigint, updated bigint, deleted bigint, bytes bigint, partitions bigint,
          error text, host text not null, pid bigint not null, process text not null, plan text)""",
        f"create index runs_started on {prefix(connection)}runs (started_at, run_id)",
        f"create index runs_pipeline_started on {prefix(connection)}runs (pipeline, started_at, run_id)",
        f"create index runs_state_started on {prefix(connection)}runs (state, started_at, run_id)",
        f"""
        create table {prefix(connection)}events (
          id {serial} primary key, run_id text not null, at {time} not null, name text not null, data text not null)""",
        f"create index events_run on {prefix(connection)}events (run_id, id)",
    ):
        connection.execute(text(statement))


MIGRATIONS: tuple[Migration, ...] = (first,)


def prefix(connection: Connection) -> str:
    """Postgres is shared with others: there the tables live in a schema of their own."""
    return "penstock_state." if connection.dialect.name == "postgresql" else ""


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Bring the tables to the latest version; the version they now have.

    The caller holds a lock that keeps other processes from doing the same.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("create schema if not exists penstock_state"))
    meta = f"{prefix(connection)}{META}"
    connection.execute(text(f"create table if not exists {meta} (version bigint not null)"))
    stored = connection.execute(text(f"select max(version) from {meta}")).scalar()
    version = stored or 0
    refuse_newer(version, len(migrations))
    for migration in migrations[version:]:
        migration(connection)
    if stored is None:
        connection.execute(text(f"insert into {meta} values (:version)"), {"version": len(migrations)})
    elif version < len(migrations):
        connection.execute(text(f"update {meta} set version = :version"), {"version": len(migrations)})
    return len(migrations)


def refuse_newer(version: int, known: int) -> None:
    if version > known:
        raise StateError(
            "the state store was written by a newer Penstock",
            why=f"it has version {version}, this Penstock knows {known}",
            kept="nothing in it was changed",
            remedy="upgrade penstock",
        )
