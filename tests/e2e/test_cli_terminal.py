"""What moves on a terminal: the bar of a run, the table of a replication. On a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from penstock.cli.progress import BAR_AFTER_SECONDS
from penstock.observe.failpoints import ENV
from tests.conformance.harness import Harness, PostgresHarness
from tests.e2e.command import PROJECT, Project
from tests.replication.desk import NAME, Desk

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

MODULE = """
import penstock as ps


@ps.pipeline(source="shop", target="warehouse.main.shouted", mode="append")
def shouted():
    return "select id, name, balance from public.customers order by id"


def shout(name):
    return name.upper()


@shouted.transform
def louder(customers):
    from pyspark.sql.functions import udf

    return customers.withColumn("name", udf(shout, "string")("name"))
"""
WAIT_SECONDS = 90.0
POLL_SECONDS = 0.05


class Terminal:
    """What a command has written to its terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.text = ""

    def read_until(self, done: Callable[[], bool]) -> None:
        """Until it is done, or the last process has closed its end."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not done():
            assert time.monotonic() < deadline, self.text
            if not select.select([self._handle], [], [], POLL_SECONDS)[0]:
                continue  # nothing is there to read; what is done may have another sign
            try:
                self.text += os.read(self._handle, 65536).decode(errors="replace")
            except OSError:
                return

    @property
    def lines(self) -> list[str]:
        """Without colours and movements of the cursor."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", self.plain(self.text)) if line.strip()]

    @staticmethod
    def plain(text: str) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@contextmanager
def on_a_terminal(
    project: Project | Desk, *words: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (40, 120))
    process = subprocess.Popen(
        project.command(*words),
        cwd=project.folder,
        env={name: value for name, value in project.environment.items() if name != "COLUMNS"}
        | {"TERM": "xterm-256color"}
        | environment,
        stdin=there,
        stdout=there,
        stderr=there,
    )
    os.close(there)
    try:
        yield process, Terminal(here)
    finally:
        process.kill()
        process.wait()
        os.close(here)


def test_bar_shows_while_a_run_takes_longer_and_is_gone_when_it_is_done(project: Project) -> None:
    """The pipeline is of a Python module whose function the workers import; `--limit` cuts what is read."""
    (project.folder / "shouting.py").write_text(MODULE)
    project.write('[project]\nmodules = ["shouting"]\n' + PROJECT)
    marker = project.folder / "held"
    paused = {ENV: f"copy.done=pause:{marker}"}
    began = time.monotonic()
    with on_a_terminal(project, "run", "shouted", "--limit", "7", **paused) as (process, seen):
        seen.read_until(lambda: any(re.search(r"shouted copying ━+ 7 rows", line) for line in seen.lines))
        assert time.monotonic() - began >= BAR_AFTER_SECONDS
        seen.read_until(marker.exists)
        assert not any(line.startswith("✓") for line in seen.lines)
        marker.unlink()
        seen.read_until(lambda: False)
        assert process.wait(WAIT_SECONDS) == 0, seen.lines
    # The line of the bar was cleared; what stays is the table of what was done.
    stays = seen.text[seen.text.rindex("\x1b[2K") :]
    assert "━ 7 rows" not in stays
    assert re.search(r"✓.*shouted.*append.*spark", stays)
    with duckdb.connect(str(project.folder / "warehouse.duckdb"), read_only=True) as warehouse:
        rows = warehouse.sql("select id, name, cast(balance as varchar) from shouted order by 1").fetchall()
    assert rows == [(n, f"NAME {n}", f"{n / 7:.12f}") for n in range(1, 8)]


@pytest.fixture
def desk(harness: Callable[[str], Harness], tmp_path: Path) -> Iterator[Desk]:
    source = harness("postgres")
    assert isinstance(source, PostgresHarness)
    source.execute(
        "create table items (id bigint primary key, name text)",
        "insert into items select i, 'item ' || i from generate_series(1, 1200) i",
    )
    made = Desk(source, harness("sqlite"), tmp_path)
    yield made
    made.clear()


def test_a_replication_draws_its_tables_with_what_moves_and_leaves_the_last_of_it(desk: Desk) -> None:
    def drawn(line: str) -> Callable[[], bool]:
        return lambda: any(re.search(line, one) for one in seen.lines)

    with on_a_terminal(desk, "replicate", NAME) as (process, seen):
        seen.read_until(drawn(r"^ *table +phase +copied +changes +rows/s$"))
        seen.read_until(drawn(r"^public.items +streaming +1,200\b"))
        desk.source.execute("update items set name = 'x' where id <= 700")
        # In one flush: it is drawn with how many there were in the second before.
        seen.read_until(drawn(r"^public.items +streaming +1,200 +700 +[\d,]+$"))
        seen.read_until(drawn(r"^lag \d+ B, \d+\.\d s; the source holds "))
        before = len(seen.text)
        process.send_signal(signal.SIGINT)
        seen.read_until(lambda: False)
        assert process.wait(WAIT_SECONDS) == 0, seen.lines
    # It is drawn over itself, and stays as it was drawn last.
    assert "\x1b[1A" in seen.text
    assert re.search(r"public.items +streaming +1,200 +700", Terminal.plain(seen.text[before:]))
