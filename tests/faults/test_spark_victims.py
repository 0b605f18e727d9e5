"""All or nothing with Spark itself: one run per victim, and nothing left five seconds after a cancel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.observe.failpoints import ENV
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Harness, PostgresHarness
from tests.faults.test_all_or_nothing import REPO, ROWS, Bare
from tests.waiting import await_true

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.faults]

PROMISE_SECONDS = 5.0

PROJECT = """
[connections.from_]
type = "postgres"
dsn = "{source}"

[connections.to]
{target}

[pipelines.p]
source = "from_"
query = "{query}"
target = "to.{schema}.items"
mode = "append"
parallel = 2
"""
WINDOW = 'incremental = "id"\nlag = "0"\npartition_on = "id"\n'


class Sparked(Bare):
    """The same pipeline as the bare process runs, by the command, on Spark."""

    query = "select id, name from public.items"
    window = WINDOW

    @contextmanager
    def command(self, failpoints: str = "") -> Iterator[subprocess.Popen[str]]:
        assert isinstance(self.source, PostgresHarness)
        target = "\n".join(f'{name} = "{value}"' for name, value in self.target.options().items())
        (self.root / "penstock.toml").write_text(
            PROJECT.format(source=self.source.dsn, target=target, schema=self.target.schema, query=self.query)
            + self.window
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "--project", str(self.root), "run", "p"],
            cwd=REPO,
            env=os.environ | {ENV: failpoints},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def mended(self) -> None:
        """The next run, without a JVM, finishes what the victim left."""
        again = self.run()
        assert again.returncode == 0, again.stderr
        assert self.count() == ROWS
        assert self.target.leftovers() == []


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The driver, its JVM, the cradle, its forks: the daemon and the workers."""
    driver = psutil.Process(process.pid)
    return [driver, *driver.children(recursive=True)]


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The daemon too; not the cradle, which is there before any of them."""
    return [one for one in family(process)[1:] if _is_cradle(one) and _is_cradle(psutil.Process(one.ppid()))]


def _is_cradle(process: psutil.Process) -> bool:
    """Or one of its forks, which have its command line."""
    return "engine.cradle" in " ".join(process.cmdline())


def sessions(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where starts_with(application_name, 'penstock:')"
        ).fetchone()
    assert row is not None
    return int(row[0])


def gone_within_the_promise(processes: list[psutil.Process], dsn: str, began: float) -> None:
    def gone() -> bool:
        return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)

    def left() -> list[str]:
        return [str(one) for one in processes if one.is_running()]

    await_true(
        lambda: gone() and sessions(dsn) == 0,
        PROMISE_SECONDS - (time.monotonic() - began),
        lambda: (left(), sessions(dsn)),
    )


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """Of the test's own: sessions are counted on the whole server."""
    with EmbeddedPostgres() as running:
        PostgresHarness(running.dsn).execute("create database warehouse")
        yield running


@pytest.fixture
def sparked(server: EmbeddedPostgres, tmp_path: Path) -> Sparked:
    return Sparked(PostgresHarness(server.dsn), PostgresHarness(server.dsn_of("warehouse")), tmp_path)


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite", "parquet"])
def test_worker_killed_its_rows_land_once(
    server: EmbeddedPostgres, harness: Callable[[str], Harness], tmp_path: Path, kind: str
) -> None:
    """Its receipt is durable and nobody has heard of it: the next attempt must not stage the rows again."""
    target = FilesHarness(tmp_path / "lake", kind) if kind == "parquet" else harness(kind)
    sparked = Sparked(PostgresHarness(server.dsn), target, tmp_path)
    with sparked.command(f"sink.receipt=once:{sparked.root / 'once'}:kill") as process:
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    assert (sparked.root / "once").exists()
    assert sparked.count() == ROWS
    assert sparked.target.leftovers() == []


def test_driver_killed_takes_jvm_workers_and_backends_along(sparked: Sparked, server: EmbeddedPostgres) -> None:
    marker = sparked.root / "pause"
    with sparked.command(f"sink.staged=once:{sparked.root / 'once'}:pause:{marker}") as process:
        await_true(marker.exists, 60)
        running = family(process)
        assert len(running) > 2
        assert sessions(server.dsn) >= 3
        process.kill()
        gone_within_the_promise(running, server.dsn, time.monotonic())
    assert sparked.count() == 0
    sparked.mended()


def test_server_restarted_under_a_spark_run(sparked: Sparked, server: EmbeddedPostgres) -> None:
    marker = sparked.root / "pause"
    with sparked.command(f"read.batch=once:{sparked.root / 'once'}:pause:{marker}") as process:
        await_true(marker.exists, 60)
        server.restart(immediate=True)
        marker.unlink()
        out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 1), out + err
    assert "Traceback" not in err, err
    assert sparked.count() == (ROWS if process.returncode == 0 else 0)
    sparked.mended() if process.returncode else None
    assert sparked.count() == ROWS
    assert sparked.target.leftovers() == []


def test_five_seconds_after_a_cancel_nothing_of_the_run_is_left(sparked: Sparked, server: EmbeddedPostgres) -> None:
    sparked.query = "select id, name || pg_sleep(0.05)::text as name from public.items"
    sparked.window = ""  # finding its bounds would run the query once more
    with sparked.command() as process:
        await_true(lambda: _reads(server.dsn) >= 1, 60)
        running = family(process)
        assert len(workers(process)) >= 1
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        gone_within_the_promise(running, server.dsn, began)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 130, out + err
    assert "nothing was committed" in err
    assert sparked.count() == 0
    assert sparked.target.leftovers() == []
    assert list((sparked.root / ".penstock").glob("spark/*")) == []


def _reads(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where starts_with(application_name, 'penstock:')"
            " and state = 'active' and query ilike '%pg_sleep(0.05)%' and query ilike '%copy%'"
        ).fetchone()
    assert row is not None
    return int(row[0])
