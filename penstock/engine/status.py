"""All that needs the SparkContext, or differs between classic Spark and Spark Connect.

On classic Spark jobs are tagged and cancelled through the context (`interruptTag` cancels nothing
there), on Connect through the session. Nothing outside this module may touch the context.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        spark.interruptTag(tag)
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


def is_busy(spark: SparkSession, tag: str) -> bool:
    """Whether a task of a job that carries `tag` still runs; a cancelled one may, for a moment."""
    return any(stage.numActiveTasks() for stage in _stages(spark, tag))


def plan_physically(frame: DataFrame) -> None:
    """Let classic Spark plan a query to the end, without running it; Connect does so when it runs."""
    inner = getattr(frame, "_jdf", None)
    if inner is not None:
        inner.queryExecution().executedPlan()


def cores(spark: SparkSession) -> int:
    """How many tasks run at once."""
    classic = context(spark)
    return int(classic.defaultParallelism) if classic is not None else os.cpu_count() or 1


def session_apart(spark: SparkSession) -> SparkSession:
    """A session of its own on the same Spark, so that settings and views never leak between runs."""
    if context(spark) is not None:
        apart: SparkSession = spark.newSession()
        return apart
    # Through the channel's builder, not its URL: a user's own session may have been made without one.
    made: SparkSession = spark.__class__.Builder().channelBuilder(spark.client._builder).create()
    return made


def let_go(spark: SparkSession) -> None:
    """Make PySpark forget a session whose JVM is about to end, so that another can be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    classic = context(spark)
    server = getattr(classic, "_accumulatorServer", None)
    if server is not None:
        # Its thread would print a traceback when the JVM's end of the socket closes.
        server.handle_error = lambda *_: None
        server.server_shutdown = True
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    Session._instantiatedSession = Session._activeSession = None
