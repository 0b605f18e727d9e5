"""The state store's tables, version by version.

A migration that was published is never edited: the next change is the next function in the list.
Each runs inside the transaction that also raises the version, so a store is at one version or at
the next, never between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import StateError
from penstock.state.medium import Medium, Transaction

Migration = Callable[[Medium, Transaction], None]

META = "penstock_meta"


def first(medium: Medium, transaction: Transaction) -> None:
    """Runs and their events."""
    at, before = medium.moment_type, medium.prefix
    for statement in (
        f"""
        create table {before}runs (
          run_id text primary key, pipeline text not null, kind text not null, state text not null,
          started_at {at} not null, finished_at {at},
          path text, mode text, source text, target text,
          "rows" bigint, inserted bigint, updated bigint, deleted bigint, bytes bigint, partitions bigint,
          error text, host text not null, pid bigint not null, process text not null, plan text)""",
        f"create index runs_started on {before}runs (started_at, run_id)",
        f"create index runs_pipeline_started on {before}runs (pipeline, started_at, run_id)",
        f"create index runs_state_started on {before}runs (state, started_at, run_id)",
        f"""
        create table {before}events (
          id {medium.serial_type} primary key, run_id text not null, at {at} not null,
          name text not null, data text not null)""",
        f"create index events_run on {before}events (run_id, id)",
    ):
        transaction.execute(statement)


def second(medium: Medium, transaction: Transaction) -> None:
    """Agents, and what is asked of them."""
    at, before = medium.moment_type, medium.prefix
    for statement in (
        f"""
        create table {before}agents (
          name text primary key, state text not null, status text not null, at {at} not null,
          host text not null, pid bigint not null, process text not null)""",
        f"""
        create table {before}commands (
          id {medium.serial_type} primary key, name text not null, word text not null, "table" text not null,
          answer text, at {at} not null)""",
        f"create index commands_name on {before}commands (name, id)",
    ):
        transaction.execute(statement)


MIGRATIONS: tuple[Migration, ...] = (first, second)


def migrate(medium: Medium, transaction: Transaction, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Bring the tables to the latest version; the version they now have.

    The caller has claimed the medium, which keeps other processes from doing the same.
    """
    meta = f"{medium.prefix}{META}"
    transaction.execute(f"create table if not exists {meta} (version bigint not null)")
    stored = transaction.query(f"select max(version) as version from {meta}")[0]["version"]
    version = stored or 0
    refuse_newer(version, len(migrations))
    for migration in migrations[version:]:
        migration(medium, transaction)
    if stored is None:
        transaction.execute(f"insert into {meta} values (:version)", {"version": len(migrations)})
    elif version < len(migrations):
        transaction.execute(f"update {meta} set version = :version", {"version": len(migrations)})
    return len(migrations)


def refuse_newer(version: int, known: int) -> None:
    if version > known:
        raise StateError(
            "the state store was written by a newer Penstock",
            why=f"it has version {version}, this Penstock knows {known}",
            kept="nothing in it was changed",
            remedy="upgrade penstock",
        )
