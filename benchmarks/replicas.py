"""Two servers and a project for a replication, and the backlogs that it reads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import LiteralString

import psycopg

from penstock.testing.postgres import EmbeddedPostgres

SETTINGS = {"autovacuum": "off", "max_wal_size": "16GB", "max_replication_slots": "20", "max_wal_senders": "20"}
SUBSCRIPTION = "CREATE SUBSCRIPTION"
LONGEST_SECONDS = 600.0

PROJECT = """\
[connections.shop]
type = "postgres"
dsn = "{source}"

[connections.warehouse]
type = "postgres"
dsn = "{target}"

[replications.bench]
source = "shop"
target = "warehouse"
tables = {tables}
flush_interval_ms = {interval}

[spark]
driver_memory = "1g"
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes that wait for their readers."""

    title: str
    changes: int
    make: str  # SQL


SMALL = Backlog(
    "300,000 updates in 60,000 transactions",
    300_000,
    """do $$ begin for i in 1..60000 loop
         update accounts set balance = balance + 1, touched = now() where id between i * 5 - 4 and i * 5; commit;
       end loop; end $$""",
)
LARGE = Backlog(
    "1,000,000 changes in one transaction",
    1_000_000,
    "update accounts set balance = balance + 1, touched = now()",
)
QUICK_SMALL = Backlog("5,000 updates in 1,000 transactions", 5_000, SMALL.make.replace("60000", "1000"))
ACCOUNTS = """create table accounts (id int primary key, balance bigint not null, owner text, touched timestamptz)"""
MARKS = "create table marks (id int primary key)"


class ReplicationStand:
    """Two servers and a project. Use as a context manager."""

    def __init__(self, tables: list[str], interval: int = 1000, **source: str) -> None:
        """`source` has settings of its server that differ from the target's."""
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.folder.chmod(0o755)
        self.source = EmbeddedPostgres(self.folder / "source", **SETTINGS | source)
        self.target = EmbeddedPostgres(self.folder / "target", **SETTINGS)
        self.project = self.folder / "project"
        self._tables = tables
        self._interval = interval
        self._marks = 0

    def __enter__(self) -> ReplicationStand:
        self.source.start()
        self.target.start()
        self.at_target("create database ours")
        self.at_target("create database theirs")
        self.project.mkdir()
        self._write_project()
        return self

    def _write_project(self) -> None:
        quoted = str(self._tables).replace("'", '"')
        (self.project / "penstock.toml").write_text(
            PROJECT.format(
                source=self.source.dsn, target=self.target.dsn_of("ours"), tables=quoted, interval=self._interval
            )
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.source.remove()
        self.target.remove()
        self._temporary.cleanup()

    def at_source(self, statement: str) -> None:
        _execute(self.source.dsn, statement)

    def at_target(self, statement: str, database: str = "postgres") -> None:
        _execute(self.target.dsn_of(database), statement)

    def mark(self) -> int:
        """A row that comes last of all that was done."""
        self._marks += 1
        self.at_source(f"insert into marks values ({self._marks})")
        return self._marks

    def has(self, database: str, mark: int) -> Callable[[], bool]:
        session = psycopg.connect(self.target.dsn_of(database), autocommit=True)

        def there() -> bool:
            try:
                return bool(session.execute("select 1 from marks where id = %s", (mark,)).fetchone())
            except psycopg.errors.UndefinedTable:
                return False

        return there

    @contextmanager
    def agent(self) -> Iterator[int]:
        """`penstock replicate bench`; its process id."""
        log = self.folder / "agent.log"
        with log.open("ab") as output:
            command = [str(Path(sys.prefix) / "bin" / "penstock"), "replicate", "bench"]
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.project)
            try:
                yield process.pid
            finally:
                process.terminate()
                process.wait(60)
        if process.returncode != 0:
            raise RuntimeError(log.read_text(errors="replace")[-2000:])

    def add(self, table: str) -> None:
        """One more for the running agent: written into the project, which it is told to read again."""
        self._tables.append(table)
        self._write_project()
        command = [str(Path(sys.prefix) / "bin" / "penstock"), "replications", "reload", "bench"]
        subprocess.run(command, cwd=self.project, check=True, stdout=subprocess.DEVNULL)

    def subscribe(self, *, copy: bool) -> None:
        self.at_target(
            f"create subscription theirs connection '{self.source.dsn}' publication theirs"
            f" with (copy_data = {str(copy).lower()})",
            "theirs",
        )

    def agrees(self, table: str) -> bool:
        """Every row of the source in both targets."""
        figures = "select count(*), sum(hashtextextended(t::text, 0)) from {} as t"
        listed = "select string_agg(column_name, ', ' order by ordinal_position) from information_schema.columns"
        with psycopg.connect(self.source.dsn) as session:
            [columns] = row(session, f"{listed} where table_name = '{table}'")
            text = figures.format(f"(select {columns} from {table})")
            wanted = row(session, text)
        for database in ("ours", "theirs"):
            with psycopg.connect(self.target.dsn_of(database)) as session:
                if row(session, text) != wanted:
                    return False
        return True


def _execute(dsn: str, statement: str) -> None:
    words: LiteralString = statement  # type: ignore[assignment]  # fixed in this package
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(words)


def row(session: psycopg.Connection[tuple[object, ...]], statement: str) -> tuple[object, ...]:
    words: LiteralString = statement  # type: ignore[assignment]  # as above
    found = session.execute(words).fetchone()
    assert found is not None
    return found


def await_true(condition: Callable[[], bool]) -> float:
    """The seconds until it holds."""
    begun = time.perf_counter()
    while not condition():
        if time.perf_counter() - begun > LONGEST_SECONDS:
            raise RuntimeError("waited in vain")
        time.sleep(0.005)
    return time.perf_counter() - begun


def accounts(stand: ReplicationStand, rows: int) -> None:
    for statement in (
        ACCOUNTS,
        MARKS,
        f"insert into accounts select i, 0, md5(i::text), now() from generate_series(1, {rows}) i",
        "create publication theirs for table accounts, marks",
        "vacuum analyze",
    ):
        stand.at_source(statement)
    for statement in (ACCOUNTS, MARKS):
        stand.at_target(statement, "theirs")
