"""Starts Spark's JVM itself: one process, our flags, nothing on the terminal.

PySpark would start a launcher JVM first, ask for a module that small Java runtimes lack, and let
the JVM write to the user's terminal. Here the JVM's output goes to a file in the session's folder,
Ctrl-C does not reach it (its process group is its own), and it ends when our end of its standard
input closes, that is, also when this process is killed. Only a JVM that is still starting may miss
that, if its folder is taken away meanwhile: it is killed on every way out of here, and `sweep`
kills the one of a driver that was killed itself before it removes the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.backends.registry import GROUP
from penstock.engine import heap
from penstock.engine.daemon import PRELOAD
from penstock.engine.java import JavaHome
from penstock.engine.reach import is_local
from penstock.errors import DriverMissing, SparkError
from penstock.observe.process import start_of

START_SECONDS = 60.0
POLL_SECONDS = 0.01
WATCH_SECONDS = 0.1
KILL_SECONDS = 5.0
IDENTITY = "jvm.json"  # in the session's folder: which process to end before the folder may go

_OPENED = """
    java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent
    java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar
"""

# Spark's own list (org.apache.spark.launcher.JavaModuleOptions), without the vector incubator.
MODULE_OPTIONS = [
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
]

# The optimising compiler competes with the start for the cores; ten times later it still serves
# long transforms. Measured on two cores: 4.3 s to the first job's end without, 3.5 s with.
START_OPTIONS = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:-UsePerfData",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=50000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Dlog4j2.disableJmx=true",
]

LOG_SETTINGS = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.repl.name = org.apache.spark.repl.Main
logger.repl.level = error
logger.client.name = org.apache.spark.deploy.client
logger.client.level = warn
"""

REFUSED = "Failed to connect to master"  # what the client of a standalone master warns of


@dataclass(frozen=True)
class Jvm:
    """A running JVM and the py4j gateway into it."""

    process: subprocess.Popen[bytes]
    gateway: Any
    log: Path


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise DriverMissing("pyspark is not installed", why="no module named 'pyspark'", remedy="pip install penstock")
    return Path(spec.origin).parent


def spark_jars() -> list[Path]:
    """Spark's own jars in a fixed order: the class archive is tied to it."""
    return sorted((spark_home() / "jars").glob("*.jar"))


def command(java: JavaHome, folder: Path, memory: str, options: Sequence[str], master: str) -> list[str]:
    """The JVM's command line. It holds no configuration beyond the JVM's own, and no secret."""
    settings = folder / "log4j2.properties"
    settings.write_text(LOG_SETTINGS)
    path = [str(jar) for jar in spark_jars()]
    made = [str(java.executable), *heap.options(memory), *START_OPTIONS, *options, *MODULE_OPTIONS]
    made += [f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile={settings}", f"-Dderby.system.home={folder}"]
    if is_local(master):
        return [*made, "-cp", ":".join(path), "org.apache.spark.api.python.PythonGatewayServer"]
    # A cluster's own settings (yarn-site.xml and the like) are found through the class path.
    named = [os.environ[name] for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR") if name in os.environ]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", master, "pyspark-shell"]
    return [*made, "-cp", ":".join([*named, *path]), *submit]


def environment(project_root: Path) -> dict[str, str]:
    """The JVM's environment, which Python workers inherit: where to find modules, what to preload."""
    home = spark_home()
    inside = (sys.prefix, sys.base_prefix)
    own = [entry for entry in sys.path if entry and not entry.startswith(inside)]
    backends = sorted({point.value.partition(":")[0] for point in entry_points(group=GROUP)})
    known = os.environ.get(PRELOAD)
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(project_root), *own])),
        "PYSPARK_PYTHON": sys.executable,
        # Threads that numpy and Arrow start at import would not survive the daemon's fork.
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        PRELOAD: known if known is not None else ",".join(backends),
    }


_lock = threading.Lock()
_processes: list[subprocess.Popen[bytes]] = []
_closed = False


def launch(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Jvm:
    """Start the JVM and connect; returns when it answers. Whatever happens instead, the JVM is gone."""
    known = folder / "gateway"
    log = folder / "spark.log"
    with log.open("ab") as output, _lock:
        if _closed:
            raise SparkError("Spark was not started", why="the process is ending", kept="nothing was touched")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(known)},
            process_group=0,
        )
        _processes.append(process)
    try:
        (folder / IDENTITY).write_text(json.dumps({"pid": process.pid, "started": start_of(process.pid)}))
        port, secret = _answer(process, known, log)
        return Jvm(process, _connect(port, secret), log)
    except BaseException:
        # Its folder goes next, and a JVM that cannot say there where it listens would wait for ever.
        end(process)
        raise


def _answer(process: subprocess.Popen[bytes], known: Path, log: Path) -> tuple[int, str]:
    """The port and the secret that the JVM writes down when it is ready."""
    from pyspark.serializers import UTF8Deserializer, read_int

    deadline = time.monotonic() + START_SECONDS
    while not known.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SparkError(
                "Spark's JVM did not start",
                why=last_line(log) or f"exit code {process.returncode}",
                kept="nothing was touched",
                remedy="penstock doctor tells what is missing",
            )
        time.sleep(POLL_SECONDS)
    with known.open("rb") as info:
        port, secret = read_int(info), UTF8Deserializer().loads(info)
    known.unlink()
    return port, secret


@contextmanager
def given_up(jvm: Jvm, masters: int) -> Iterator[threading.Event]:
    """While a session starts: end the JVM, and say so, once it has reached none of its masters.

    Spark itself tries for a minute, also where something else than a master listens.
    """
    refused, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if jvm.log.read_text(errors="replace").count(REFUSED) >= masters:
                refused.set()
                jvm.process.kill()
                return

    watcher = threading.Thread(target=watch, name="penstock-master", daemon=True)
    if masters:
        watcher.start()
    try:
        yield refused
    finally:
        over.set()
        if masters:
            watcher.join()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a JVM of this process, or the cradle beside it.

    All that a JVM would still do is remove its folder, which we do ourselves.
    """
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.kill()
    process.wait(KILL_SECONDS)
    with _lock:
        if process in _processes:
            _processes.remove(process)


def close() -> None:
    """The process is about to end: kill every JVM, also one that another thread is starting, and start no more."""
    global _closed
    with _lock:
        _closed = True
        left = list(_processes)
    for process in left:
        process.kill()


def sweep(folder: Path) -> None:
    """Kill the JVM of a driver that is gone, if it has not ended by itself."""
    try:
        known = json.loads((folder / IDENTITY).read_text())
    except (OSError, ValueError):
        return  # it had none yet
    deadline = time.monotonic() + KILL_SECONDS
    while start_of(known["pid"]) == known["started"] and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(known["pid"], signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def _connect(port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    # PySpark takes a running JVM from these two variables; nobody else should inherit them.
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def last_line(log: Path) -> str:
    """The last telling line of the JVM's output, for an error's reason."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("at ", "..."))]
    return telling[-1][:300] if telling else ""
