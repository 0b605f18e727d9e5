"""All that needs the SparkContext, or differs between classic Spark and Spark Connect.

On classic Spark jobs are tagged and cancelled through the context (`interruptTag` cancels nothing
there), on Connect through the session. Nothing outside this module may touch the context.
"""

from __future__ import annotations

import atexit
import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engine.reach import is_local, refusal
from penstock.errors import SparkError
from penstock.observe import logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logs.Log("spark")

# Of a call that a Connect server does not answer: about twenty seconds. PySpark's own fifteen are ten minutes.
CONNECT_RETRIES = 5
SESSION_ID = "session_id"  # of a Connect URL: every client that is made with it shares that session
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"  # makes `pyspark.sql.functions` speak Connect, in the whole process


@dataclass
class _Told:
    """What a Connect session was given, which a session beside it does not have by itself."""

    ours: bool = False  # made here: a user's own session is never ended
    settings: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


_told: dict[str, _Told] = {}  # by session id


def tag_of(run_id: str) -> str:
    return f"penstock-{run_id}"


def context(spark: SparkSession) -> Any | None:
    """The SparkContext of a classic session; None on Connect."""
    return getattr(spark, "_sc", None)


def existing() -> SparkSession | None:
    """The session that this process has already, whichever thread started it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    active: SparkSession | None = Session.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # "Active" is a thread's own word: another thread's session would be missed, and a second
        # JVM cannot live beside its one.
        active = Session.builder.getOrCreate()
    return active


def is_session(given: object) -> bool:
    """Whether it is a Spark session, classic or Connect; without importing Connect's client."""
    return any(
        cls.__name__ == "SparkSession" and cls.__module__.startswith("pyspark.sql") for cls in type(given).__mro__
    )


def stopped(spark: SparkSession) -> bool:
    """Whether a session was stopped by whoever started it."""
    classic = context(spark)
    if classic is not None:
        return classic._jsc is None
    return bool(spark.is_stopped)


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Jobs that this thread starts inside carry `tag`, and their tasks end at once when cancelled."""
    classic = context(spark)
    if classic is None:
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    classic.setInterruptOnCancel(True)
    classic.addJobTag(tag)
    try:
        yield
    finally:
        classic.removeJobTag(tag)


def cancel(spark: SparkSession, tag: str) -> None:
    """End every job that carries `tag`, and no other."""
    from py4j.protocol import Py4JNetworkError

    classic = context(spark)
    if classic is None:
        try:
            if _answers(spark):
                spark.interruptTag(tag)
        except Exception as error:  # noqa: BLE001  gRPC's, Spark's own; what ended the run is what is told
            log.warning("jobs not cancelled", tag=tag, error=type(error).__name__)
        return
    try:
        classic.cancelJobsWithTag(tag)
    except (Py4JNetworkError, ConnectionError):
        return  # the JVM is gone, and its jobs with it


def _stages(spark: SparkSession, tag: str) -> Iterator[Any]:
    """What classic Spark knows of the stages of the jobs that carry `tag`."""
    from py4j.protocol import Py4JError

    classic = context(spark)
    if classic is None:
        return
    try:
        inner = classic._jsc.sc()
        store = inner.statusStore()
        for job in inner.statusTracker().getJobIdsForTag(tag):
            stages = store.job(job).stageIds()
            for place in range(stages.size()):
                yield store.lastStageAttempt(stages.apply(place))
    except (Py4JError, ConnectionError):
        return  # a stage that has not started yet, or a JVM that is gone


def written(spark: SparkSession, tag: str) -> tuple[int, int]:
    """Rows and bytes that Spark's own writers have written in jobs that carry `tag`; unknown on Connect."""
    rows = size = 0
    for stage in _stages(spark, tag):
        rows, size = rows + stage.outputRecords(), size + stage.outputBytes()
    return rows, size


def knows_tasks(spark: SparkSession) -> bool:
    """Whether `is_busy` and `written` can tell; on Connect nobody can."""
    return context(spark) is not None


def is_busy(spark: SparkSession, tag: str) -> bool:
    """Whether a task of a job that carries `tag` still runs; a cancelled one may, for a moment."""
    return any(stage.numActiveTasks() for stage in _stages(spark, tag))


def plan_physically(frame: DataFrame) -> None:
    """Let classic Spark plan a query to the end, without running it; Connect does so when it runs."""
    inner = getattr(frame, "_jdf", None)
    if inner is not None:
        inner.queryExecution().executedPlan()


def executors(spark: SparkSession) -> int | None:
    """How many there are at this moment, without the driver; None on Connect, which does not tell."""
    classic = context(spark)
    return None if classic is None else max(0, len(classic._jsc.sc().statusTracker().getExecutorInfos()) - 1)


def on_cluster(spark: SparkSession) -> bool:
    """Whether tasks may run on other machines than this one."""
    classic = context(spark)
    return classic is None or not is_local(str(classic.master))


def master(spark: SparkSession) -> str:
    """Where its tasks run, as people name it. On Connect it is the server that knows."""
    classic = context(spark)
    return str(classic.master) if classic is not None else str(spark.conf.get("spark.master", "Spark Connect"))


def alive(spark: SparkSession) -> bool:
    """Whether a session that was started earlier can still be used."""
    from py4j.protocol import Py4JError

    classic = context(spark)
    try:
        if classic is None:
            return _answers(spark) and bool(spark.conf.get("spark.app.name", "?"))
        return not classic._jsc.sc().isStopped()
    except (Py4JError, ConnectionError, AttributeError):
        return False  # a context that was stopped has no JVM any more
    except Exception:  # noqa: BLE001  gRPC's, Spark's own: a server that was started again knows no old session
        return False


def _answers(spark: Any) -> bool:
    """Whether something listens where its server was. Of one that is gone, a Connect client asks for long."""
    host, _, port = str(spark.client._builder.endpoint).rpartition(":")
    return not spark.client.is_closed and refusal(host.strip("[]"), int(port)) is None


def cores(spark: SparkSession) -> int:
    """How many tasks run at once; on Connect, as far as the server's settings say."""
    classic = context(spark)
    if classic is not None:
        return int(classic.defaultParallelism)
    return cores_in(lambda name: spark.conf.get(name, None)) or os.cpu_count() or 1


def cores_in(setting: Callable[[str], str | None]) -> int | None:
    """How many cores Spark's settings ask for, if they do."""
    known = {name: setting(f"spark.{name}") for name in ("cores.max", "executor.instances", "executor.cores")}
    numbers = {name: int(text) for name, text in known.items() if text is not None and text.isdigit()}
    if "cores.max" in numbers:
        return numbers["cores.max"]
    return numbers["executor.instances"] * numbers.get("executor.cores", 1) if "executor.instances" in numbers else None


def send(spark: SparkSession, files: Sequence[Path]) -> None:
    """Hand Python files to every executor of this session, now and to come. Each is sent once."""
    classic = context(spark)
    if classic is not None:
        for file in files:
            if file.name not in classic._python_includes:
                path = list(sys.path)
                classic.addPyFile(str(file))
                sys.path[:] = path  # for workers only: here the modules are imported already
        return
    told = _told.setdefault(spark.session_id, _Told())
    fresh = [file for file in files if file not in told.files]
    if fresh:
        spark.addArtifacts(*(str(file) for file in fresh), pyfile=True)
        told.files += fresh


def connect(remote: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of our own on a Connect server."""
    from pyspark.sql import SparkSession as Session

    # One that the URL names might be another process's, too.
    own = ";".join(part for part in remote.split(";") if not part.startswith(f"{SESSION_ID}="))
    return _furnished(Session.builder.remote(own).create(), _Told(settings=dict(settings)))


def _furnished(made: SparkSession, told: _Told) -> SparkSession:
    """A new Connect session with what it is told; stopped if that cannot be done."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    made.client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES)])
    # At exit it would ask the server to forget models that nobody has made, and wait for one that is gone.
    atexit.unregister(made.client._cleanup_ml_cache)
    _told[made.session_id] = _Told(True, told.settings)
    try:
        for name, value in told.settings.items():
            made.conf.set(name, value)
        send(made, told.files)
    except BaseException:  # Ctrl-C too: a server would keep the session for an hour
        end_apart(made)
        raise
    return made


def session_apart(spark: SparkSession) -> SparkSession:
    """A session of its own on the same Spark, so that settings and views never leak between runs."""
    if context(spark) is not None:
        apart: SparkSession = spark.newSession()
        return apart
    # Through the channel's builder, not its URL: a user's own session may have been made without one.
    builder = copy.copy(spark.client._builder)
    builder._params = {name: value for name, value in builder._params.items() if name != SESSION_ID}
    made = spark.__class__.Builder().channelBuilder(builder).create()
    if made.session_id == spark.session_id:
        made.client.close()  # and no more: it is the user's
        raise SparkError(
            "the Spark Connect server gives no session besides the one there is",
            why="its channel's builder names the session",
            kept="nothing was touched",
            remedy="make the session without session_id",
        )
    return _furnished(made, _told.get(spark.session_id, _Told()))


def end_apart(spark: SparkSession) -> None:
    """Let go of a session that `session_apart` made. A Connect server would keep it for an hour."""
    if context(spark) is None and _told.get(spark.session_id, _Told()).ours:
        _release(spark)


def _release(spark: Any) -> None:
    """End a Connect session and its channel; `stop` would also end a server that the user has in this process."""
    _told.pop(spark.session_id, None)
    if not spark.client.is_closed:
        try:
            if _answers(spark):
                spark.client.release_session()
        except Exception as error:  # noqa: BLE001  a server that is gone has no session to end
            log.warning("session not released", error=type(error).__name__)
        spark.client.close()
    kind = type(spark)
    if kind._default_session is spark:
        kind._default_session = None
    if getattr(kind._active_session, "session", None) is spark:
        kind._active_session.session = None


def let_go(spark: SparkSession) -> None:
    """Make PySpark forget a session of ours, so that another can be started. A classic one's JVM is about to end."""
    classic = context(spark)
    if classic is None:
        os.environ.pop(CONNECT_MODE, None)
        _release(spark)
        return
    server = getattr(classic, "_accumulatorServer", None)
    if server is not None:
        # Its thread would print a traceback when the JVM's end of the socket closes.
        server.handle_error = lambda *_: None
        server.server_shutdown = True
    forget_jvm()


def forget_jvm() -> None:
    """PySpark keeps the JVM of a process for ever, also one that never got as far as a session."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    Session._instantiatedSession = Session._activeSession = None
