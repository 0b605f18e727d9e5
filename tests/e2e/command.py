"""A project and the `penstock` command run in it, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.observe import failpoints
from penstock.testing.postgres import EmbeddedPostgres
from tests.waiting import await_true

PASSWORD = "s3cret/of:the@shop"

PROJECT = """
[connections.shop]
type = "postgres"
dsn = "${SHOP_DSN}"

[connections.warehouse]
type = "duckdb"
path = "warehouse.duckdb"

[pipelines.customers]
source = "shop"
table = "public.customers"
target = "warehouse.main.customers"
mode = "merge"
tags = ["hourly"]

[pipelines.same]
source = "shop"
query = "select id, name from public.customers"
target = "shop.public.customers_copy"
mode = "merge"
keys = ["id"]
tags = ["hourly", "native"]
"""

TWICE = """
[pipelines.twice]
source = "shop"
query = "select 1 as id, name from public.customers"
target = "shop.public.twice"
mode = "merge"
keys = ["id"]
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute(f"create role clerk login superuser password '{PASSWORD}'")
            connection.execute(
                "create table customers (id bigint primary key, name text, balance numeric(38, 12), tags text[])"
            )
            connection.execute(
                "insert into customers select n, 'name ' || n, n / 7.0, array['a'] from generate_series(1, 1000) n"
            )
        yield running


class Project:
    """A project folder and the command run in it."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment |= {"SHOP_DSN": dsn, "COLUMNS": "100"}
        self.write(PROJECT)

    def write(self, text: str) -> None:
        (self.folder / "penstock.toml").write_text(text)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "penstock.cli.main", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        for secret in (PASSWORD, "s3cret", "s3cret%2Fof%3Athe%40shop"):
            assert secret not in done.stdout + done.stderr
        return done

    def json(self, *words: str) -> list[dict[str, object]]:
        done = self.run(*words, "--output", "json")
        records: list[dict[str, object]] = json.loads(done.stdout)
        return records

    @contextmanager
    def held(self, failpoint: str, *words: str, under: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
        """The command while it waits at a failpoint; `go_on` lets it go on. `under`: a program that starts it."""
        process = subprocess.Popen(
            [*under, *self.command(*words)],
            cwd=self.folder,
            env=self.environment | {failpoints.ENV: f"{failpoint}=once:{self.folder / 'once'}:pause:{self._marker}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            await_true(lambda: self._marker.exists() or process.poll() is not None, 60)
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()
            process.communicate()

    def go_on(self) -> None:
        self._marker.unlink()

    @property
    def _marker(self) -> Path:
        return self.folder / "held"


@pytest.fixture
def project(tmp_path: Path, shop: EmbeddedPostgres) -> Project:
    dsn = f"postgresql://clerk:s3cret%2Fof%3Athe%40shop@127.0.0.1:{shop.port}/postgres"
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("drop table if exists customers_copy, twice")
        connection.execute("drop schema if exists _penstock cascade")
    return Project(tmp_path, dsn)


def await_count(connection: psycopg.Connection[tuple[object, ...]], query: str, wanted: int) -> None:
    def count() -> int:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]  # psycopg wants literal SQL
        assert row is not None
        return int(row[0])

    await_true(lambda: count() >= wanted if wanted else count() == 0, 15, lambda: f"still {count()}")
