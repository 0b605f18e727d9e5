"""A transform: the source as view `source`, inputs as views of their names, Spark SQL or a function over
them, the result into the target.

The result's schema is known before a row moves. Errors name the place in the user's SQL or code,
in one line; they never show a Java stack trace, nor a cell's value that Spark's text might quote.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.backends.base import (
    Load,
    Partition,
    Progress,
    ReadsFrames,
    Receipt,
    RunContext,
    Sink,
    WritesFrames,
)
from penstock.engine import status
from penstock.engine.convert import back
from penstock.engine.datasource import source_class
from penstock.engine.functions import Udf, check_calls, named_in, register
from penstock.engine.job import Job, collected
from penstock.engine.session import check_started
from penstock.engine.sparktypes import as_frame, as_text, from_spark, has_text, to_spark
from penstock.engine.task import RESULT, Names, carry_out
from penstock.errors import PenstockError, TransformError
from penstock.schema import Column, Schema
from penstock.sparkconf import EXACT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "source"
STAGED = "staged"  # what is about to be written, for statements of targets that run none themselves
NOTHING = "nothing was committed"

Function = Callable[..., Any]  # a DataFrame in, a DataFrame out


@dataclass(frozen=True)
class TransformPlan:
    """A transform that is ready to run; `schema` is its result's."""

    schema: Schema
    frame: DataFrame
    spark: SparkSession
    tasks: int | None = None  # at most, that write at once

    @staticmethod
    def of(frame: DataFrame, tasks: int | None = None) -> TransformPlan:
        """A frame that a user has made, in the session that it belongs to. Nothing of that is changed."""
        check_started(frame.sparkSession)
        return TransformPlan(from_spark(frame.schema), frame, frame.sparkSession, tasks)

    def refusals(self, columns: Names) -> list[str]:
        """Columns that cannot leave the transform in the form that the load wants."""
        return [
            f"column {name} cannot leave the transform as {wire.type}: there it is {self.schema[name].type}"
            " (cast it in the transform)"
            for name, wire in columns
            if self.schema[name].type != wire.type
            and not (pa.types.is_string(wire.type) and has_text(self.schema[name].type))
        ]

    def write(self, sink: Sink, columns: Names, run: RunContext, on_progress: Progress | None = None) -> list[Receipt]:
        """Run it into the sink. One receipt per partition of the result that had a row."""
        safe, frame = self._ready(columns)
        task = TransformTask(sink, tuple((safe[name], wire) for name, wire in columns), run)
        frame = frame.mapInArrow(task, "receipt string")
        return Job(self.spark, collected(frame), run, on_progress, explain).receipts()

    def write_frame(
        self, target: WritesFrames, load: Load, columns: Names, run: RunContext, on_progress: Progress | None = None
    ) -> list[Receipt]:
        """Run it into a target that takes the frame itself, named and typed as the load says."""
        safe, frame = self._ready(columns)
        named = as_frame(frame, Schema.of([wire for _, wire in columns]), [safe[name] for name, _ in columns])
        work = partial(target.write_frame, load, 0, named)
        return Job(self.spark, work, run, on_progress, explain, in_jvm=True).receipts()

    def close(self) -> None:
        """Let go of the session that it was planned in."""
        status.end_apart(self.spark)

    def _ready(self, columns: Names) -> tuple[dict[str, str], DataFrame]:
        """The frame as a target's tasks see it, and the names that the result's columns have in it."""
        # `mapInArrow` looks columns up by a parsed name, which a dot or a backtick breaks: it sees c0, c1 …
        safe = {name: f"c{place}" for place, name in enumerate(self.schema.names)}
        cores = status.cores(self.spark)
        frame = self.frame.toDF(*safe.values()).coalesce(min(cores, self.tasks or cores))
        for name, wire in columns:
            if self.schema[name].type != wire.type:
                frame = frame.withColumn(safe[name], as_text(safe[name], self.schema[name].type))
        return safe, frame


@dataclass(frozen=True)
class TransformTask:
    """What `mapInArrow` runs on the result: each attempt at a task is a part of its own.

    When the SQL, a function or the source fails half way, Spark closes this worker's input, which
    reads like its end: the sink leaves a receipt for the rows so far, and then the task fails. If
    the next attempt could find that receipt, the load would go on without the other rows. Only
    receipts that Spark collected count: one of each task that succeeded.
    """

    sink: Sink
    names: tuple[tuple[str, Column], ...]
    run: RunContext

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        part = TaskContext.get().taskAttemptId()
        line = carry_out(self.run, part, lambda: self._conformed(first, batches), self.sink)
        yield pa.RecordBatch.from_arrays([pa.array([line])], schema=RESULT)

    def _conformed(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([pa.field(wire.name, wire.type, wire.nullable) for _, wire in self.names])
        for batch in _chain(first, rest):
            arrays = [back(batch.column(name), wire.type, wire.name) for name, wire in self.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


Rows = Sequence[Partition] | ReadsFrames  # what a view is made of


@dataclass(frozen=True)
class View:
    """What a transform reads under a name; `schema` are the columns that are read."""

    name: str
    rows: Rows
    schema: Schema
    broadcast: bool = False  # small enough to be sent whole to every task that joins it


def transform(
    spark: SparkSession,
    source: Rows,
    schema: Schema,
    what: str | Function,
    run: RunContext,
    tasks: int | None = None,
    inputs: Sequence[View] = (),
    udfs: Sequence[Udf] = (),
    then: Sequence[str] = (),
) -> TransformPlan:
    """Plan `what`, Spark SQL or a DataFrame function, over the source and the inputs. Moves no row.

    At most `tasks` tasks will write at once. `then` are queries over the view `staged`, the result
    so far; what the last one gives is what is written.
    """
    check_started(spark)
    views = [View(VIEW, source, schema), *inputs]
    apart = status.session_apart(spark)
    try:
        for name, value in _settings([view.schema for view in views], run).items():
            apart.conf.set(name, value)
        frames = {view.name: _frame(apart, view, run) for view in views}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        texts = [what, *then] if isinstance(what, str) else list(then)
        called = list(udfs) if callable(what) else named_in("\n".join(texts), udfs)
        register(apart, called, run)
        for text in texts:
            check_calls(text, udfs)
        made = _by_sql(apart, what) if isinstance(what, str) else _by_function(what, frames)
        for number, sql in enumerate(then):
            made.createOrReplaceTempView(STAGED)
            _require_query(sql, f"transforms_pre[{number}]")
            made = _by_sql(apart, sql, f"transforms_pre[{number}]")
        if any(udf.aggregate for udf in called):
            _check_aggregates(made)
        return TransformPlan(from_spark(made.schema), made, apart, tasks)
    except BaseException:  # Ctrl-C too: nobody else lets go of the session
        status.end_apart(apart)
        raise


def _frame(spark: SparkSession, view: View, run: RunContext) -> DataFrame:
    """The rows under their names and tags, read by our partitions or by a reader of Spark's."""
    rows, schema = view.rows, view.schema
    made: DataFrame
    if isinstance(rows, ReadsFrames):
        made = as_frame(rows.frame(spark, list(schema), to_spark(schema)), schema)
    else:
        format_name, source = source_class(rows, schema, run, view.name)
        spark.dataSource.register(source)
        made = spark.read.format(format_name).load()
    return made.hint("broadcast") if view.broadcast else made


def _settings(schemas: Sequence[Schema], run: RunContext) -> dict[str, str]:
    folded = [[name.lower() for name in schema.names] for schema in schemas]
    collide = any(len(set(names)) < len(names) for names in folded)
    return {
        **{name: value for name, value in EXACT.items() if name.startswith("spark.sql.")},
        # A name in quotes never stands for several columns: only those that are named are read.
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.caseSensitive": "true" if collide else "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(run.batch_rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(run.batch_bytes),
    }


def _require_query(sql: str, place: str) -> None:
    """A statement that is none gives no rows to write: there is no table yet that it could change."""
    try:
        statements = sqlglot.parse(sql, dialect="spark")
    except SqlglotError:
        return  # Spark says what is wrong with it
    if len(statements) == 1 and not isinstance(statements[0], exp.Query):
        raise TransformError(
            "the statement is no query",
            why="the target runs no SQL of its own: Spark makes what is written out of the view `staged`",
            kept="nothing was touched",
            remedy="select … from staged",
            place=place,
        )


def _by_sql(spark: SparkSession, sql: str, place: str = "") -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(sql)
        frame.schema  # noqa: B018  analysed here, so that its errors are met here
    except PySparkException as error:
        raise TransformError(
            "the transform's SQL is wrong",
            why=_message(error),
            kept="nothing was touched",
            remedy=_shown(sql, error),
            place=place,
        ) from error
    return frame


def _check_aggregates(frame: DataFrame) -> None:
    """Spark finds an aggregate in a wrong place only when it makes its physical plan: let that be now."""
    from pyspark.errors import PySparkException

    try:
        status.plan_physically(frame)
    except PySparkException as error:
        mixed = error.getCondition() == "INVALID_PANDAS_UDF_PLACEMENT"
        raise TransformError(
            "an aggregate function of yours stands where Spark cannot call it",
            why="one GROUP BY takes Spark's own aggregates or functions of yours, not both"
            if mixed
            else _message(error),
            kept="nothing was touched",
            remedy="group twice, and join the two results by their keys",
        ) from error


def _by_function(function: Function, frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import DataFrame as Frame

    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
    try:
        made = function(frames[VIEW], **_wanted(function, frames))
        if isinstance(made, Frame):
            made.schema  # noqa: B018  analysed here, as SQL is
    except PenstockError:
        raise
    except Exception as error:
        raise TransformError(
            f"the transform function {place} failed",
            why=_reason(error),
            kept="nothing was touched",
            place=_user_line(error),
        ) from error
    if not isinstance(made, Frame):
        raise TransformError(
            f"the transform function {place} returned {type(made).__name__}",
            why="a DataFrame goes in and a DataFrame must come out",
            kept="nothing was touched",
            remedy="end it with `return df…`",
        )
    return made


def _wanted(function: Function, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The inputs that a function's parameters name."""
    inputs = {name: frame for name, frame in frames.items() if name != VIEW}
    if not inputs:
        return {}
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return inputs
    return {one.name: inputs[one.name] for one in parameters if one.name in inputs}


# ---------------------------------------------------------------- errors

_POSITION = re.compile(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?", re.IGNORECASE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


def _reason(error: Exception) -> str:
    """Why a function failed. It may have looked at rows: only what Spark says of a plan is sure to quote no value."""
    from pyspark.errors import AnalysisException

    if isinstance(error, AnalysisException):
        return _message(error)
    known = explain(error)
    return known.why if known is not None else type(error).__name__


def _message(error: Any) -> str:
    """Spark's own sentence, without the plan and the SQL that it appends."""
    text = str(error.getMessage() if hasattr(error, "getMessage") else error)
    head = re.split(r"\n\s*== SQL|;\s*\n|\n\s*JVM stacktrace", text)[0]
    found = _POSITION.search(str(error))
    sentence = " ".join(head.split())[:400]
    if found is None or found.group(0) in sentence:
        return sentence
    return f"{sentence} (line {found.group(1)}, position {found.group(2)})"


def _shown(sql: str, error: Any) -> str:
    """The line of the user's SQL with a mark under the place, where Spark tells it."""
    found = _POSITION.search(str(error))
    if found is None:
        return ""
    lines = sql.splitlines()
    line, position = int(found.group(1)) - 1, int(found.group(2))
    return f"{lines[line]}\n{' ' * position}^" if line < len(lines) else ""


def _user_line(error: BaseException) -> str:
    foreign = {"pyspark", "py4j", "grpc"}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not foreign & set(Path(f.filename).parts)]
    own = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def explain(error: BaseException) -> PenstockError | None:
    """A failure of the user's SQL or function while rows were moving, told without any value."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    text = str(error)
    if "Traceback (most recent call last)" in text:
        return _python_failure(text)
    condition = error.getCondition()
    if condition is None or condition in ("", "_LEGACY_ERROR_TEMP_3321"):
        return None
    found = _POSITION.search(text)
    where = f" at line {found.group(1)}, position {found.group(2)} of the transform" if found else ""
    return TransformError(
        "a value made the transform fail",
        why=f"{condition}{where}",
        kept=NOTHING,
        remedy="try_cast, try_divide and the like give NULL where a value does not fit",
    )


def _python_failure(text: str) -> PenstockError | None:
    trace = text[text.index("Traceback (most recent call last)") :]
    frames = [(name, line) for name, line in _FRAME.findall(trace) if "pyspark" not in Path(name).parts]
    if not frames:
        return None
    name, line = frames[-1]
    after = trace[trace.rindex(f'File "{name}", line {line}') :]
    raised = [match.group(1) for match in map(_RAISED.match, after.splitlines()[1:]) if match]
    return TransformError(
        "a function of the transform failed",
        why=raised[0] if raised else "see the function",
        kept=NOTHING,
        place=f"{name}:{line}",
    )
