"""A Spark session as processes: what it starts, and that nothing of it outlives its driver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from penstock.backends.base import RunContext
from penstock.engine import gateway, session
from penstock.engine.copy import copy
from penstock.engine.cradle import Cradle
from penstock.engine.daemon import HEAD, STREAMS
from tests.e2e.spark_parts import WIRE, Numbers, ParquetSink
from tests.waiting import await_true

pytestmark = pytest.mark.spark

CONFIG = SimpleNamespace(
    master="local[2]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return session.spark(CONFIG, tmp_path_factory.mktemp("project"))


def test_the_daemon_has_imported_all_and_has_one_thread(spark: Any, tmp_path: Path) -> None:
    copy(spark, [Numbers(0, 5)], ParquetSink(tmp_path), WIRE, RunContext(uuid.uuid4().hex, "p", tmp_path / "staging"))
    (daemon,) = psutil.Process(session._running.cradle.process.pid).children()
    assert daemon.num_threads() == 1
    mapped = Path("/proc", str(daemon.pid), "maps").read_text()
    assert "libarrow" in mapped
    assert [worker.ppid() for worker in daemon.children()][:1] == [daemon.pid]


WITHOUT_CRADLE = """
import sys
from pathlib import Path
from types import SimpleNamespace
import psutil
from penstock.engine import session
from penstock.engine.task import pass_on
config = SimpleNamespace(
    master="local[1]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)
spark = session.spark(config, Path(sys.argv[1]))
session._running.cradle.process.kill()
session._running.cradle.process.wait()
print(spark.range(5).mapInArrow(pass_on, "id long").count())
[daemon] = psutil.Process(session._running.jvm.process.pid).children()
print(daemon.cmdline()[2])
"""


def test_a_daemon_whose_cradle_has_died_imports_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CRADLE, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.split() == ["5", "penstock.engine.daemon"], done.stderr


def test_what_dies_while_it_hands_over_leaves_nothing_in_the_cradle(tmp_path: Path) -> None:
    """Half of what it had to say has come: a fork that waited for the rest would wait for ever."""
    cradle = Cradle.start(tmp_path, os.environ)
    forks = psutil.Process(cradle.process.pid).children
    try:
        await_true(cradle.socket.exists)
        for said in (b"", b"{"):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(cradle.socket))
                if said:
                    socket.send_fds(link, [(100).to_bytes(HEAD, "big")], list(range(STREAMS)))
                    link.sendall(said)
                await_true(forks)
            await_true(lambda: not forks())
        assert cradle.process.poll() is None
    finally:
        gateway.end(cradle.process)


SCRIPT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
began = time.monotonic()
from penstock.engine import session
config = SimpleNamespace(
    master="local[2]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)
session.prewarm(config, Path(sys.argv[1]))
spark = session.spark(config, Path(sys.argv[1]))
assert session.spark(config, Path(sys.argv[1])) is spark
assert spark.range(3).count() == 3
if sys.argv[2] == "restart":
    session.stop()
    assert list(Path(sys.argv[1], ".penstock/spark").iterdir()) == []
    assert session.spark(config, Path(sys.argv[1])).range(4).count() == 4
if sys.argv[2] == "kill":
    import os
    print(session._running.jvm.process.pid, session._running.cradle.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


FOREIGN = """
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
import pyarrow as pa
from pyspark.sql import SparkSession
from penstock.backends.base import RunContext
from penstock.engine import session
from penstock.engine.transform import transform
from penstock.errors import PlanRefused
from penstock.schema import Column, Schema
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
starter = Thread(target=builder.getOrCreate)  # any thread of theirs
starter.start()
starter.join()
config = SimpleNamespace(
    master="local[1]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)
spark = session.spark(config, Path(sys.argv[1]))
try:
    numbers = Schema.of([Column("id", pa.int64())])
    transform(spark, [], numbers, "select id from source", RunContext("0" * 32, "p", Path()))
except PlanRefused as refused:
    print(refused.why)
"""


def test_a_session_of_the_user_that_could_double_rows_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout == "spark.stage.maxConsecutiveAttempts is 4\n", done.stderr


EARLY = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from penstock.engine import gateway, session
config = SimpleNamespace(
    master="local[2]", remote=None, driver_memory="1g", executor_memory=None, shuffle_partitions=2, conf={}
)
session.prewarm(config, Path(sys.argv[1]))
while not gateway._processes:
    time.sleep(0.001)
print(gateway._processes[0].pid, flush=True)
if sys.argv[2] == "kill":
    import os
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["end", "kill"])
def test_a_driver_that_ends_while_its_jvm_starts_takes_it_along(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, str(tmp_path), how], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr == ""
    jvm = int(done.stdout)
    if how == "end":
        assert not psutil.pid_exists(jvm)
    await_true(lambda: not psutil.pid_exists(jvm), 20)


@pytest.mark.parametrize("how", ["plain", "restart"])
def test_a_session_prints_nothing_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), how], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / ".penstock" / "spark").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [".penstock"]


def test_a_killed_driver_takes_its_jvm_along(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), "kill"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    jvm, cradle = map(int, done.stdout.split())
    await_true(lambda: not psutil.pid_exists(jvm) and not psutil.pid_exists(cradle), 10)
