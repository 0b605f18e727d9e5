"""Fixtures for pytest, to be imported into a conftest.py: `from penstock.testing.fixtures import *`.

Each gives the options of a connection to an empty database of the test's own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.postgres import EmbeddedPostgres

__all__ = ["duckdb_database", "postgres_database", "postgres_server"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """A Postgres for all tests, from the wheel of `penstock[demo]`; started when the first one asks for it."""
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: EmbeddedPostgres) -> Iterator[dict[str, Any]]:
    """The options of a connection to an empty database."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    yield {"type": "postgres", "dsn": postgres_server.dsn_of(name)}
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def duckdb_database(tmp_path: Path) -> dict[str, Any]:
    """The options of a connection to a DuckDB file that does not exist yet."""
    return {"type": "duckdb", "path": str(tmp_path / f"{secrets.token_hex(4)}.duckdb")}
