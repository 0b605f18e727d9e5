"""All or nothing: killed anywhere, the target is as before or as after; the next run mends it.

The pipeline is an incremental append, so that a load that is lost, doubled or torn shows as a
wrong count after the next run, whatever moment it was killed at.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.observe.failpoints import ENV, NAMES, OLD, REPLICATION
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.conftest import BACKENDS
from tests.conformance.harness import Harness, PostgresHarness
from tests.faults.bare import carry_out
from tests.faults.proxy import Cut, Proxy
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.faults, pytest.mark.sampled]

ROWS = 3000
KEPT = 30
REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "explanation" / "exactly-once.md"


def promised() -> dict[str, str]:
    """What the page says a target is after a kill at each failpoint: `as before` or `as after`."""
    return dict(re.findall(r"^\| `([a-z.]+)` \| [^|]+ \| (as before|as after)\b", PAGE.read_text(), re.MULTILINE))


class Bare:
    """The pipeline of these tests, run in a process of its own."""

    def __init__(self, source: Harness, target: Harness, root: Path) -> None:
        self.source = source
        self.target = target
        self.root = root
        source.execute(
            "create table items (id bigint primary key, name varchar)",
            f"insert into items select n, 'x' || n from generate_series(1, {ROWS}) as g(n)",
        )

    def spec(self, **options: Any) -> Path:
        path = self.root / "spec.json"
        pipeline = {
            "name": "p",
            "place": "test",
            "source": "from_",
            "target": f"to.{self.target.schema}.items",
            "table": f"{self.source.schema}.items",
            "mode": "append",
            "incremental": "id",
            "lag": "0",
        }
        connections = {"from_": self.source.options(), "to": self.target.options()}
        spec = {"root": str(self.root), "connections": connections, "pipeline": pipeline | options}
        path.write_text(json.dumps(spec))
        return path

    def start(self, failpoints: str = "", **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.faults.bare", str(self.spec(**options))]
        return subprocess.Popen(
            command,
            cwd=REPO,
            env=os.environ | {ENV: failpoints},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, failpoints: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(failpoints, **options)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_here(self) -> None:
        """In this process, which is quicker, where nothing is to be killed."""
        carry_out(self.spec())

    def count(self) -> int:
        """Rows in the target, 0 where there is no table yet; every row must be there once."""
        if not self.target.has_table("items"):
            return 0
        [(rows, distinct)] = self.target.query(f"select count(*), count(distinct id) from {self.target.schema}.items")
        assert rows == distinct
        return int(rows)

    def rows(self) -> list[tuple[Any, ...]]:
        """With the times that are not the load's own."""
        columns = "id, cast(made as varchar)"
        if "valid_to" in self.target.columns("items"):
            columns += ", cast(valid_from as varchar), valid_to is null"
        return self.target.query(f"select {columns} from {self.target.schema}.items order by 1, 2")

    def partitions(self) -> int:
        if self.target.backend != "postgres":
            return 0
        return len(self.target.query("select 1 from pg_inherits where inhparent = 'items'::regclass"))


@pytest.fixture(params=BACKENDS)
def bare(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Bare:
    return Bare(harness("postgres"), harness(request.param), tmp_path)


def test_the_page_tells_of_every_failpoint() -> None:
    assert promised().keys() - REPLICATION.keys() - OLD.keys() == NAMES.keys()
    assert set(promised().values()) == {"as before", "as after"}


@pytest.mark.parametrize("state", ["first", "later"])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_sigkill_at_every_failpoint(bare: Bare, name: str, state: str) -> None:
    before = 0
    if state == "later":
        bare.run_here()
        before = ROWS
        bare.source.execute(f"insert into items select n, 'y' from generate_series({ROWS + 1}, {2 * ROWS}) as g(n)")
    if name.startswith("sweep"):
        # There is something to sweep only after another run has died.
        assert bare.run("sink.staged=kill").returncode == -signal.SIGKILL
    killed = bare.run(f"{name}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert bare.count() == (before if promised()[name] == "as before" else before + ROWS)
    bare.run_here()
    assert bare.count() == before + ROWS
    assert bare.target.leftovers() == []


@pytest.mark.parametrize("option", ["event_time", "ttl", "partition_by"])
def test_sigkill_before_the_commit_of_every_option(bare: Bare, option: str) -> None:
    """What they do besides is in the load's transaction too: mended bounds, deletes, partitions."""
    capabilities = bare.target.capabilities
    bare.source.execute(
        "alter table items add column made timestamptz default '2026-01-15 00:00:00+00'",
        f"delete from items where id > {KEPT}",
    )
    options: dict[str, Any] = {
        "event_time": {"mode": "scd2", "event_time": "made"},
        "ttl": {"mode": "merge", "ttl": {"column": "made", "keep": "40000d"}},
        "partition_by": {"mode": "append", "partition_by": ["month(made)"]},
    }[option] | {"incremental": None, "lag": None}
    if not getattr(capabilities, option):
        assert json.loads(bare.run(**options).stderr.splitlines()[-1])["error"] == "Unsupported"
        return
    carry_out(bare.spec(**options))
    before = bare.rows()
    bare.source.execute("update items set made = '2025-12-15 00:00:00+00'")
    if option == "ttl":
        options["ttl"] = {"column": "made", "keep": "1s"}  # all of them go
    killed = bare.run("commit.loaded=kill", **options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (bare.rows(), bare.partitions()) == (before, 1 if option == "partition_by" else 0)
    carry_out(bare.spec(**options))
    assert len(bare.rows()) == (0 if option == "ttl" else 2 * KEPT)
    assert bare.partitions() == (2 if option == "partition_by" else 0)
    assert bare.target.leftovers() == []


def test_two_runs_at_once_the_second_says_so_and_stops(bare: Bare) -> None:
    marker = bare.root / "pause"
    first = bare.start(f"copy.done=pause:{marker}")
    try:
        await_true(marker.exists)
        second = bare.run()
        assert second.returncode == 1
        error = json.loads(second.stderr.splitlines()[-1])
        assert error["error"] == "Busy"
        assert str(first.pid) in error["what"] + error["why"]
        marker.unlink()
        assert first.wait(60) == 0, first.stderr.read() if first.stderr else ""
    finally:
        first.kill()
        first.communicate()
    assert bare.count() == ROWS


def test_sweep_never_touches_a_live_run_of_another_pipeline(bare: Bare) -> None:
    marker = bare.root / "pause"
    first = bare.start(f"copy.done=pause:{marker}")
    try:
        await_true(marker.exists)
        other = bare.run(name="q", target=f"to.{bare.target.schema}.others")
        if bare.target.capabilities.many_writers:
            assert other.returncode == 0, other.stderr
        else:
            assert json.loads(other.stderr.splitlines()[-1])["error"] == "Busy"
        marker.unlink()
        assert first.wait(60) == 0, first.stderr.read() if first.stderr else ""
    finally:
        first.kill()
        first.communicate()
    assert bare.count() == ROWS


@pytest.mark.parametrize("when", ["before", "after"])
def test_link_cut_during_commit(
    harness: Callable[[str], Harness], postgres_server: EmbeddedPostgres, tmp_path: Path, when: str
) -> None:
    source, target = harness("postgres"), harness("postgres")
    assert isinstance(target, PostgresHarness)
    bare = Bare(source, target, tmp_path)
    cut = Cut(b"commit\0", b"insert into _penstock.loads", "before" if when == "before" else "after")
    with Proxy(postgres_server.port, cut) as proxy:
        direct = target.dsn
        target.dsn = direct.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        done = bare.run()
        target.dsn = direct
    assert cut.done.is_set()
    assert done.returncode == 0, done.stderr
    assert bare.count() == ROWS
    loads = target.query("select count(*) from _penstock.loads")
    assert loads == [(1,)]


@pytest.mark.parametrize("name", ["read.batch", "sink.staged", "copy.done", "commit.loaded"])
def test_server_restarted(tmp_path: Path, name: str) -> None:
    with EmbeddedPostgres() as server:
        source, target = PostgresHarness(server.dsn), PostgresHarness(server.dsn_of("warehouse"))
        source.execute("create database warehouse")
        bare = Bare(source, target, tmp_path)
        marker = tmp_path / "pause"
        process = bare.start(f"{name}=once:{tmp_path / 'once'}:pause:{marker}")
        try:
            await_true(marker.exists)
            server.restart(immediate=True)
            marker.unlink()
            _, err = process.communicate(timeout=90)
        finally:
            process.kill()
        # The link was lost, the server was back at once: the run has tried again by itself.
        assert process.returncode == 0, err
        assert bare.count() == ROWS
        bare.run_here()
        assert bare.count() == ROWS
        assert target.leftovers() == []
