"""The one Spark session of a process: started on first use, in the background if asked early.

Nothing is printed while it starts, nothing is fetched, no port is open to other hosts. Its folder
`.penstock/spark/<host>-<pid>` is removed when it stops; what a killed process left is swept by the
next start.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.engine import archive, gateway, ship, status
from penstock.engine.cradle import Cradle
from penstock.engine.daemon import CRADLE
from penstock.engine.java import find_java
from penstock.engine.reach import check_master, check_remote, is_local, no_master, shown, standalone_masters
from penstock.errors import ConfigError, PenstockError, PlanRefused, SparkError
from penstock.observe.process import start_of
from penstock.sparkconf import EXACT, check_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4  # how often a task is tried: Spark's own default, which plain `local[*]` turns off
MAX_SOCKET_FOLDER = 60  # bytes: a Unix socket's path ends at 108
STOP_SECONDS = 5.0
WARMING_SECONDS = 20.0

# Of a session that others have started. The rest of `EXACT` each transform sets for itself, and what is done to
# a frame of theirs goes by no setting.
FIXED_AT_START = {"spark.stage.maxConsecutiveAttempts": "4", "spark.speculation": "false"}  # with Spark's defaults

# What Spark masks in everything that it prints of its settings.
SECRET_NAMES = "(?i)secret|password|passwd|token|access[.]?key|api[.]?key|credential|dsn|private"  # noqa: S105  names, not a secret


class SparkSettings(Protocol):
    """What a session needs of the project's `[spark]` table."""

    @property
    def master(self) -> str: ...
    @property
    def remote(self) -> str | None: ...
    @property
    def driver_memory(self) -> str: ...
    @property
    def executor_memory(self) -> str | None: ...
    @property
    def shuffle_partitions(self) -> int: ...
    @property
    def conf(self) -> Mapping[str, str]: ...


@dataclass
class _Running:
    spark: SparkSession
    jvm: gateway.Jvm | None = None
    ours: bool = False  # ours to stop
    folders: list[Path] = field(default_factory=list)
    cradle: Cradle | None = None  # of the Python daemon, where tasks run on this machine
    given: bool = False  # by `use`: theirs to stop, and no other is started in its place


_lock = threading.RLock()
_running: _Running | None = None
_warming: threading.Thread | None = None
_awaited = threading.Event()  # somebody has work for the session that is being warmed
_failed: PenstockError | None = None  # why it did not start: told to whoever asks next, who need not try again


def spark(config: SparkSettings, project_root: Path) -> SparkSession:
    """The process's session, started with `config` if there is none yet."""
    global _running, _failed
    check_conf(config.conf)
    if threading.current_thread() is not _warming:
        _awaited.set()
    with _lock:
        if _failed is not None and threading.current_thread() is not _warming:
            told, _failed = _failed, None
            raise told
        if _running is not None and _running.given and not _alive(_running):
            raise SparkError(
                "the Spark session that ps.use_spark was given is stopped",
                kept="nothing was touched",
                remedy="give it another one, or none to have one started: ps.use_spark(None)",
            )
        if _running is None or not _alive(_running):
            if _running is not None:
                _forget()
            _running = _adopt() or (_connect(config, config.remote) if config.remote else _start(config, project_root))
        # Every time: the project may have imported more since, and what was sent is not sent again.
        furnish(_running.spark, project_root)
        return _running.spark


def furnish(spark: SparkSession, project_root: Path) -> None:
    """Send the workers of a session, ours or the user's, what they must import, if they are on other machines."""
    if status.on_cluster(spark):
        status.send(spark, [zipped for zipped in (ship.package(), ship.modules(project_root)) if zipped])


def on_cluster(config: SparkSettings) -> bool:
    """Whether tasks may run on other machines: those of the session there is, else of the one there will be."""
    running = _running  # not under the lock, which a session that is still starting holds
    if running is not None:
        return status.on_cluster(running.spark)
    return config.remote is not None or not is_local(config.master)


def use(given: SparkSession | None) -> None:
    """Run in a session of the user's from now on, which is never stopped here; with None, let go of it.

    A session that was started here ends: a process has one Spark.
    """
    global _running
    if given is not None and not status.is_session(given):
        raise ConfigError(
            f"ps.use_spark takes a Spark session, not {type(given).__name__}",
            remedy="ps.use_spark(SparkSession.builder.getOrCreate())",
        )
    if given is not None and status.stopped(given):
        raise ConfigError("this Spark session is stopped", remedy="give ps.use_spark one that runs")
    running = _running
    if running is not None and running.ours and running.spark is not given:
        stop()
    with _lock:
        if _running is None or _running.spark is not given:
            _running = None if given is None else _Running(given, given=True)


def prewarm(config: SparkSettings, project_root: Path) -> None:
    """Start the session in the background while the driver plans; a failure is told by `spark`."""
    global _warming
    if _warming is None and _running is None:
        atexit.register(_abandon)
        _warming = threading.Thread(target=_prewarm, args=(config, project_root), name="penstock-prewarm", daemon=True)
        _warming.start()


def _prewarm(config: SparkSettings, project_root: Path) -> None:
    global _failed
    try:
        started = spark(config, project_root)
        if not _awaited.is_set():
            from penstock.engine.task import pass_on

            # The first job loads another 3,000 classes and forks the first workers: let it be this
            # one, unless a real one waits already.
            cores = os.cpu_count() or 1
            started.range(0, cores, 1, cores).mapInArrow(pass_on, "id long").collect()
    except PenstockError as error:
        _failed = error
    except Exception:  # noqa: BLE001  of the small job: the session itself is there
        return


def stop() -> None:
    """Stop the session and its JVM and remove its folder. Safe when there is none."""
    global _warming, _failed
    warming, _warming = _warming, None
    _awaited.clear()
    if warming is not None:
        warming.join(WARMING_SECONDS)  # its job would meet a dead JVM, and py4j would print that
    with _lock:
        _failed = None
        if _running is not None:
            _forget()


def _alive(running: _Running) -> bool:
    if running.jvm is not None and running.jvm.process.poll() is not None:
        return False
    if running.jvm is None and status.stopped(running.spark):
        return False
    return not status.on_cluster(running.spark) or status.alive(running.spark)


def _adopt() -> _Running | None:
    """A session that the user's own program started already: theirs to stop."""
    found = status.existing()
    return None if found is None else _Running(found)


def _connect(config: SparkSettings, remote: str) -> _Running:
    check_remote(remote)
    _silence()
    try:
        made = status.connect(remote, dict(config.conf))
    except Exception as error:  # its client raises gRPC's errors, its own and plain ones
        os.environ.pop(status.CONNECT_MODE, None)
        raise SparkError(
            f"the Spark Connect server at {shown(remote)} gave no session",
            why=one_line(error),
            kept="nothing was touched",
            remedy="check remote and conf in [spark]: only settings of a session can be set from here",
        ) from error
    atexit.register(stop)
    return _Running(made, ours=True)


def _start(config: SparkSettings, project_root: Path) -> _Running:
    check_master(config.master)
    java = find_java()
    known = archive.archive_of(java, gateway.spark_jars())
    folders = [_folder(project_root)]
    handler = signal.getsignal(signal.SIGINT)
    jvm = cradle = None
    refused = threading.Event()
    try:
        argv = gateway.command(java, folders[0], config.driver_memory, known.use(), config.master)
        environ = gateway.environment(project_root)
        sockets = _socket_folder(folders)
        if is_local(config.master) and _takes_sockets(sockets):
            cradle = Cradle.start(sockets, environ)
            environ[CRADLE] = str(cradle.socket)
        jvm = gateway.launch(argv, folders[0], environ)
        with gateway.given_up(jvm, standalone_masters(config.master)) as refused:
            started = session_in(jvm, settings(config, folders[0], sockets))
        from penstock.engine import job  # it brings Arrow along, for which the JVM need not wait

        job.sweep(project_root / ".penstock" / "staging")
    except BaseException as error:  # Ctrl-C too: no JVM and no folder is left
        why = one_line(error)  # of an error that lives in the JVM: only as long as that does
        _end(jvm, cradle, folders)
        status.forget_jvm()
        if isinstance(error, PenstockError) or not isinstance(error, Exception):
            raise
        if refused.is_set():
            raise no_master(config.master) from error
        raise SparkError(
            "Spark did not start", why=why, kept="nothing was touched", remedy="penstock doctor"
        ) from error
    finally:
        # PySpark's handler cancels every job of the process, other runs' too.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
    atexit.register(_at_exit, known)
    return _Running(started, jvm, True, folders, cradle=cradle)


def settings(config: SparkSettings, folder: Path, sockets: Path) -> dict[str, str]:
    """Spark's settings: ours, then the user's `[spark.conf]` over them, then what exactness needs."""
    local = is_local(config.master)
    made = {
        "spark.master": with_retries(config.master),
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": config.driver_memory,
        "spark.redaction.regex": SECRET_NAMES,
        "spark.sql.redaction.options.regex": SECRET_NAMES,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        "spark.python.task.killTimeout": "500ms",  # a cancelled task's worker is killed after this
        # A folder for temporary files may have a long path too: then over the loopback, with a secret.
        "spark.python.unix.domain.socket.enabled": "true" if local and _takes_sockets(sockets) else "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    if local:
        made |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": "penstock.engine.daemon",
            "spark.python.unix.domain.socket.dir": str(sockets),
        }
    elif config.executor_memory is not None:
        made["spark.executor.memory"] = config.executor_memory
    return made | dict(config.conf) | EXACT


def check_started(spark: SparkSession) -> None:
    """Refuse a transform in a session that others have started in a way that could lose or double rows."""
    found = {name: str(spark.conf.get(name, default)) for name, default in FIXED_AT_START.items()}
    wrong = [f"{name} is {value}" for name, value in found.items() if value.lower() != EXACT[name]]
    if wrong:
        raise PlanRefused(
            "this Spark session cannot run a transform exactly",
            why="; ".join(wrong),
            kept="nothing was touched",
            remedy="start Spark with " + ", ".join(f"{name}={EXACT[name]}" for name in FIXED_AT_START),
        )


def with_retries(master: str) -> str:
    """`local[*]` as `local[*,4]`: without the second figure a local task is tried only once."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    plain = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{plain.group(1)},{TASK_ATTEMPTS}]" if plain else master


def session_in(jvm: gateway.Jvm, made: Mapping[str, str]) -> SparkSession:
    """A classic session in a JVM that runs already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # On a cluster the workers' Python may have another path; tasks of this machine run on this one.
    os.environ["PYSPARK_PYTHON"] = made.get("spark.pyspark.python", sys.executable)
    _silence()
    # With either, a former Connect session's or the user's, the builder would ask for a remote session.
    for name in (status.CONNECT_MODE, "SPARK_REMOTE"):
        os.environ.pop(name, None)
    SparkContext._ensure_initialized(gateway=jvm.gateway)
    conf = SparkConf(loadDefaults=False)
    for name, value in made.items():
        conf.set(name, value)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    return session


def _silence() -> None:
    """On every error of a query these would print it with its values and a Java stack trace."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True


def _folder(project_root: Path) -> Path:
    parent = project_root / ".penstock" / "spark"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        made = parent / f"{socket.gethostname()}-{os.getpid()}"
        made.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SparkError(
            f"Spark's folder {parent} cannot be written",
            why=error.strerror or type(error).__name__,
            kept="nothing was touched",
            remedy="run from a folder you may write to",
        ) from error
    return made


def _sweep(parent: Path) -> None:
    """Remove the folders of processes of this host that are gone."""
    for folder in parent.glob(f"{socket.gethostname()}-*"):
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and int(pid) != os.getpid() and start_of(int(pid)) is None:
            # The JVM first: one that is still starting, and finds its folder gone, would never end.
            gateway.sweep(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _socket_folder(folders: list[Path]) -> Path:
    if _takes_sockets(folders[0]):
        return folders[0]
    folders.append(Path(tempfile.mkdtemp(prefix="penstock-")))
    return folders[-1]


def _takes_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER


def _forget() -> None:
    global _running
    running, _running = _running, None
    if running is None or not running.ours:
        return
    # PySpark's own stop waits a second for a thread; a dead JVM ends the Python daemon all the same.
    status.let_go(running.spark)
    _end(running.jvm, running.cradle, running.folders)


def _end(jvm: gateway.Jvm | None, cradle: Cradle | None, folders: list[Path]) -> None:
    if jvm is not None:
        # py4j objects that are collected from here on tell a JVM that has ended, and log that.
        logging.getLogger().addFilter(_of_py4j_left_over)
        gateway.end(jvm.process)
    if cradle is not None:
        gateway.end(cradle.process)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _of_py4j_left_over(record: logging.LogRecord) -> bool:
    return not (record.name == "root" and f"{os.sep}py4j{os.sep}" in record.pathname)


def _abandon() -> None:
    """At exit, also while the session is still starting in the background: no JVM outlives us."""
    gateway.close()
    warming = _warming
    if warming is not None:
        warming.join(STOP_SECONDS)  # it sees the end of its JVM and removes the folder


def _at_exit(known: archive.Archive) -> None:
    stop()
    archive.train_later(known)


def one_line(error: BaseException) -> str:
    """The first line of an error's text: never a Java stack trace."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  py4j asks the JVM for it, which may be gone
        text = ""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]  # py4j's own words
    return (told[0] if told else type(error).__name__)[:300]
