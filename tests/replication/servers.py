"""Servers of a test's own: with settings that others cannot live with, with a standby, or to be promoted."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import PostgresHarness
from tests.waiting import await_true


class Servers:
    """Started when asked for, removed at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *, install: Path | None = None, **settings: str) -> EmbeddedPostgres:
        # Not all of them together fit into the memory that the shared one takes.
        server = _server(install, {"shared_buffers": "16MB", "max_connections": "30"} | settings)
        self._stack.callback(server.remove)
        return server.start()

    def standby(self, primary: EmbeddedPostgres, *, install: Path | None = None, **settings: str) -> EmbeddedPostgres:
        """Of a server that is stopped for a moment: its files, and its log from there on."""
        primary.stop()
        conninfo = f"host=127.0.0.1 port={primary.port} user={primary.user} password={primary.password}"
        given = {
            "shared_buffers": "16MB",
            "max_connections": "30",
            "primary_conninfo": conninfo,
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1",
            "wal_retrieve_retry_interval": "100",
        }
        server = _server(install, given | settings)
        self._stack.callback(server.remove)
        server.password = primary.password
        shutil.copytree(primary.folder / "data", server.folder / "data", symlinks=True, copy_function=_copy)
        _own_alike(primary.folder / "data", server.folder / "data")
        (server.folder / "data" / "standby.signal").touch()
        primary.start()
        return server.start()


def _server(install: Path | None, settings: dict[str, Any]) -> EmbeddedPostgres:
    return EmbeddedPostgres(install=install, **settings)


def promote(server: EmbeddedPostgres) -> None:
    database = PostgresHarness(server.dsn)
    database.query("select pg_promote(true)")
    await_true(lambda: database.query("select not pg_is_in_recovery()") == [(True,)])


def replayed(standby: EmbeddedPostgres, primary: EmbeddedPostgres) -> None:
    """Until the standby has all that its primary has now."""
    [(end,)] = PostgresHarness(primary.dsn).query("select pg_current_wal_insert_lsn()::text")
    there = PostgresHarness(standby.dsn)
    await_true(lambda: there.query(f"select pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])


def _copy(source: str, target: str) -> None:
    shutil.copy2(source, target)


def _own_alike(source: Path, target: Path) -> None:
    for here in [source, *source.rglob("*")]:
        there = target / here.relative_to(source)
        owner = here.stat()
        shutil.chown(there, owner.st_uid, owner.st_gid)
        if here.is_dir():
            there.chmod(owner.st_mode & 0o777)
