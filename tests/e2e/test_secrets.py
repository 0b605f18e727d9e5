"""Secrets never appear: the command is run in every way, well and badly, and all that it leaves is searched.

The password is one marker that stands nowhere else. What is searched: what the commands print, every
file that they leave or that exists while they run (state, logs, Spark's folders, staging), command
lines of the JVM and of workers, Spark's own settings, reprs of what travels to workers.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import psutil
import psycopg
import pytest

from penstock.observe.failpoints import ENV
from penstock.testing.postgres import EmbeddedPostgres, free_port
from tests.faults.proxy import Cut, Proxy
from tests.waiting import await_true

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

MARKER = "Zx9qMark3r"
PASSWORD = f"{MARKER}/p:w@d %'\"é"
WRONG = f"{MARKER}-wrong"

PROJECT = """
[connections.shop]
type = "postgres"
dsn = "${SHOP_DSN}"

[connections.cut]
type = "postgres"
host = "127.0.0.1"
port = "${CUT_PORT}"
user = "clerk"
dbname = "postgres"
password = "${SHOP_PASSWORD}"

[connections.warehouse]
type = "duckdb"
path = "warehouse.duckdb"

[spark.conf]
"spark.ui.enabled" = "true"
"spark.ui.port" = "${UI_PORT}"

[pipelines.fused]
source = "shop"
table = "public.items"
target = "warehouse.main.items"
mode = "append"

[pipelines.native]
source = "shop"
table = "public.items"
target = "shop.public.copied"
mode = "append"

[pipelines.bad_sql]
source = "shop"
query = "select id, nme frm items"
target = "warehouse.main.bad"
mode = "append"

[pipelines.bad_post]
source = "shop"
table = "public.items"
target = "shop.public.posted"
mode = "append"
transforms_post = ["select no_such_column from posted"]

[pipelines.bad_value]
source = "shop"
query = "select id, 1 / (id - 500) as v from public.items"
target = "warehouse.main.bad_value"
mode = "append"

[pipelines.killed_link]
source = "cut"
table = "public.items"
target = "cut.public.killed"
mode = "append"
path = "native"
"""


@dataclass
class Searched:
    """A project, the command run in it, and all that was seen meanwhile."""

    folder: Path
    environment: dict[str, str]
    seen: dict[str, bytes] = field(default_factory=dict)

    def run(self, *words: str, code: int | None = 0, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *words],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            check=False,
            timeout=120,
        )
        text = done.stdout + done.stderr
        assert code is None or done.returncode == code, text.decode()
        assert text.strip()
        self.keep(f"output of {' '.join(words)} {sorted(environment)}", text)
        return text.decode()

    def keep(self, place: str, data: bytes) -> None:
        self.seen[place] = self.seen.get(place, b"") + data

    def files(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.keep(str(path.relative_to(self.folder)), path.read_bytes())

    def findings(self) -> list[str]:
        forms = {MARKER, quote(MARKER)}
        return [place for place, data in self.seen.items() if any(form.encode() in data for form in forms)]


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute("create table items as select n as id, 'x' as name from generate_series(1, 1000) n")
            quoted = PASSWORD.replace("'", "''")
            connection.execute(f"create role clerk login superuser password '{quoted}'".encode())
        yield running


@pytest.fixture
def searched(tmp_path: Path, server: EmbeddedPostgres) -> Searched:
    (tmp_path / "penstock.toml").write_text(PROJECT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    dsn = f"postgresql://clerk:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/postgres"
    environment |= {
        "SHOP_DSN": dsn,
        "SHOP_PASSWORD": PASSWORD,
        "CUT_PORT": str(server.port),
        "UI_PORT": str(free_port()),
        "PENSTOCK_LOG": "debug",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return Searched(tmp_path, environment)


def test_secrets_appear_nowhere(searched: Searched, server: EmbeddedPostgres) -> None:
    searched.run("connections", "list", "--output", "json")
    searched.run("connections", "test", "shop", "--output", "json")
    searched.run("plan", "native", "--output", "json")
    searched.run("plan", "fused")
    searched.run("validate", "--output", "json", code=1)
    assert "native" in searched.run("run", "native")
    # Failures of several kinds.
    assert "bad_sql" in searched.run("run", "bad_sql", "--output", "json", code=1)
    searched.run("run", "bad_post", code=1)
    wrong = {"SHOP_DSN": searched.environment["SHOP_DSN"].replace(quote(PASSWORD, safe=""), WRONG)}
    assert "password" in searched.run("run", "native", "--output", "json", code=1, **wrong)
    searched.run("run", "native", code=1, PENSTOCK_DEBUG="1", **wrong)
    unparsable = {"SHOP_DSN": f"postgresql://clerk:{MARKER}@127.0.0.1:port{MARKER}/x?{MARKER}"}
    searched.run("run", "native", code=2, **unparsable)
    with Proxy(server.port, Cut(b"_penstock.receipts", b"_penstock", "before")) as proxy:
        searched.run("run", "killed_link", code=None, CUT_PORT=str(proxy.port))
    with_spark(searched)
    searched.run("run", "bad_value", "--output", "json", code=1)
    for record in searched.run("runs", "list", "--output", "json").split('"run_id": "')[1:]:
        searched.run("runs", "show", record[:32], "--output", "json")
    searched.files()
    assert any("state.db" in place for place in searched.seen)
    assert searched.findings() == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://clerk:{0}@127.0.0.1:1/state",
        "postgresql://127.0.0.1:1/state?user=clerk&password={0}",
        "postgresql://clerk@127.0.0.1:1/state?sslpassword={0}",
    ],
)
def test_secrets_of_the_state_store_appear_nowhere(searched: Searched, url: str) -> None:
    (searched.folder / "penstock.toml").write_text(PROJECT + '[state]\nurl = "${STATE_URL}"\n')
    searched.environment["STATE_URL"] = url.format(quote(PASSWORD, safe=""))
    assert "127.0.0.1" in searched.run("runs", "list", code=1)
    searched.run("runs", "list", code=1, PENSTOCK_DEBUG="1")
    searched.run("run", "native", "--output", "json", code=1)
    searched.run("doctor", "--output", "json", code=1)
    searched.files()
    assert searched.findings() == []


def with_spark(searched: Searched) -> None:
    """While a task waits with its rows staged: files, command lines and Spark's own settings."""
    marker = searched.folder / "pause"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "run", "fused", "--output", "json"],
        cwd=searched.folder,
        env=searched.environment | {ENV: f"sink.staged=once:{searched.folder / 'once'}:pause:{marker}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        await_true(lambda: marker.exists() or process.poll() is not None, 60)
        assert process.poll() is None, process.communicate()[0]
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in one.name() for one in family)
        # The cradle, and its forks: the daemon and a worker.
        assert sum("engine.cradle" in " ".join(one.cmdline()) for one in family) >= 3
        for one in (psutil.Process(process.pid), *family):
            searched.keep(f"command line of {one.name()}", " ".join(one.cmdline()).encode())
        searched.keep("Spark's UI", ui_pages(searched.environment["UI_PORT"]))
        searched.files()
        assert any("staging" in place or ".penstock" in place for place in searched.seen)
        marker.unlink()
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
        searched.keep("output of run fused", out)
    finally:
        process.kill()
        process.communicate()


def ui_pages(port: str) -> bytes:
    """What Spark's UI shows of settings, jobs and stages, for a user who has asked for it."""
    found = b""
    for page in ("environment/", "jobs/", "stages/", "executors/", "api/v1/applications"):
        with urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as answer:
            found += answer.read()
    assert b"spark.app.name" in found
    return found


def test_secrets_reprs_of_what_travels_show_none(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """A sink and a partition carry the password to workers; their reprs, and their pickles' reprs, do not show it."""
    from penstock.backends.base import LoadPlan
    from penstock.project import Project
    from penstock.project.model import Pipeline
    from penstock.run.prepare import prepare
    from penstock.run.records import RunOptions
    from tests.conformance.postgres_bench import new_run

    dsn = f"postgresql://clerk:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/postgres"
    options = {"name": "p", "source": "shop", "target": "shop.public.copied", "mode": "append", "path": "fused"}
    pipeline = Pipeline.model_validate(options | {"table": "public.items", "place": "test"})
    project = Project.from_objects(tmp_path, {"shop": {"type": "postgres", "dsn": dsn}}, [pipeline])
    prepared = prepare(project, pipeline, "public.items", new_run(), RunOptions())
    try:
        plan: LoadPlan = prepared.planned.load
        load = prepared.target.begin(plan)
        sink, [partition, *_] = load.sink(0), prepared.split.partitions
        load.abort()
        load.close()
        shown = [project, project.connection("shop"), prepared, prepared.plan(), prepared.run, plan, sink, partition]
        shown += [pickle.loads(pickle.dumps(one)) for one in (sink, partition, prepared.run)]  # noqa: S301  our own
        for one in shown:
            assert MARKER not in repr(one) + str(one), type(one)
    finally:
        prepared.close()
