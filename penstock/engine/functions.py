"""The user's functions in a transform: registered by name in the run's own session, called on Arrow arrays.

What a function returns is of exactly the type that it was declared with, or fails: Spark's own
conversions round a decimal and cut a float without a word. An error names the function and its
line, and never shows a value.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.backends.base import RunContext
from penstock.engine.sparktypes import carried, spark_type
from penstock.engine.task import failure, tell
from penstock.errors import PenstockError, TransformError
from penstock.schema.kinds import misfit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Udf:
    """A function that SQL calls by its name."""

    name: str
    function: Callable[..., Any]
    returns: pa.DataType
    aggregate: bool  # over a whole group
    per_row: bool  # takes the values of one row, not arrays
    place: str  # file:line


def named_in(sql: str, udfs: Sequence[Udf]) -> list[Udf]:
    """Those whose name stands in the SQL."""
    words = {word.lower() for word in re.findall(r"[A-Za-z0-9_]+", sql)}
    return [udf for udf in udfs if udf.name.lower() in words]


def register(spark: SparkSession, udfs: Sequence[Udf], run: RunContext) -> None:
    """Make the functions known to this session. One that Spark has already, or no type for, is refused."""
    from pyspark.sql.functions import arrow_udf

    for udf in udfs:
        if spark.catalog.functionExists(udf.name):
            raise _refused(udf, "Spark has a function of that name", 'give it another one: @ps.udf(name="…")')
        if carried(udf.returns) != udf.returns:
            raise _refused(udf, f"Spark has no type for {udf.returns}", 'return it as text: returns="text"')
        call = _aggregate(udf, run) if udf.aggregate else _scalar(udf, run)
        spark.udf.register(udf.name, arrow_udf(call, spark_type(udf.returns)))


def _refused(udf: Udf, why: str, remedy: str) -> TransformError:
    return TransformError(
        f"the function {udf.name} cannot be used", why=why, kept="nothing was touched", remedy=remedy, place=udf.place
    )


def check_calls(sql: str, udfs: Sequence[Udf]) -> None:
    """Refuse a call with too many or too few arguments: Spark would tell in the middle of the data."""
    known = {udf.name.lower(): udf for udf in udfs}
    try:
        statements = sqlglot.parse(sql, dialect="spark") if known else []
    except SqlglotError:
        return  # Spark says what is wrong with it
    for call in (call for one in statements if one is not None for call in one.find_all(exp.Anonymous)):
        udf = known.get(str(call.this).lower())
        if udf is None:
            continue
        count = len(call.expressions)
        try:
            inspect.signature(udf.function).bind(*([None] * count))
        except TypeError:
            takes = ", ".join(inspect.signature(udf.function).parameters)
            raise TransformError(
                f"the function {udf.name} is called with {count} arguments",
                why=f"it takes {takes}",
                kept="nothing was touched",
                place=udf.place,
            ) from None


def pickle_by_value(root: Path) -> None:
    """Let the project's own modules travel with the functions: a worker may not find them by name."""
    from pyspark import cloudpickle

    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name == "__main__" or name.partition(".")[0] == "penstock":
            continue
        path = Path(file)
        if path.is_relative_to(root) and "site-packages" not in path.parts:
            cloudpickle.register_pickle_by_value(module)


# ---------------------------------------------------------------- in a worker


class Misfit(Exception):
    """What a function returned is not what it was declared to return; its text shows no value."""


def _scalar(udf: Udf, run: RunContext) -> Callable[..., pa.Array]:
    # Spark knows by the annotations what kind of function it is.
    def call(*arrays: pa.Array) -> pa.Array:
        return _guarded(udf, run, lambda: fitted(_values(udf, arrays), udf.returns, len(arrays[0])))

    return call


def _aggregate(udf: Udf, run: RunContext) -> Callable[..., pa.Scalar]:
    def call(*arrays: pa.Array) -> pa.Scalar:
        return _guarded(udf, run, lambda: fitted(array_of([udf.function(*arrays)]), udf.returns, 1)[0])

    return call


def _values(udf: Udf, arrays: Sequence[pa.Array]) -> Any:
    if not udf.per_row:
        return udf.function(*arrays)
    # Value by value only because the user wants it so.
    return array_of(list(map(udf.function, *(array.to_pylist() for array in arrays))))


def _guarded(udf: Udf, run: RunContext, work: Callable[[], Any]) -> Any:
    error: PenstockError
    try:
        return work()
    except Misfit as misfit:
        error = _failed(udf.name, str(misfit), udf.place)
    except Exception as unknown:  # noqa: BLE001  becomes an error record, told by the driver
        error = _failed(udf.name, type(unknown).__name__, _line(unknown) or udf.place)
    # Outside of the handlers: a chained exception's text would reach Spark's log.
    tell(run, error)
    raise failure(error)


def array_of(values: list[Any]) -> pa.Array:
    """Values as the array that they say they are: with a wanted type Arrow would cut 1.7 to 1.

    Of one kind, however a batch is cut: Arrow refuses a date behind a moment, and cuts a moment behind a date.
    """
    why = misfit(values, widening=True)
    if why:
        raise Misfit(f"of what it returned: {why}")
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        raise Misfit("it returned values that are of no one type") from None


def fitted(made: Any, wanted: pa.DataType, length: int) -> pa.Array:
    """An array of exactly the declared type and length; Misfit where a value would change."""
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        raise Misfit(f"it returned {type(made).__name__}, and an Arrow array is wanted")
    if len(made) != length:
        raise Misfit(f"it returned {len(made)} values for {length} rows")
    if not _alike(made.type, wanted):
        raise Misfit(f"it returned {made.type}, and is declared to return {wanted}")
    try:
        return made.cast(wanted)
    except pa.ArrowInvalid:
        raise Misfit(f"it returned a value that {wanted} cannot hold") from None


def _alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast between the two keeps every value that it lets through."""
    of = pa.types
    if given == wanted or of.is_null(given):
        return True
    if of.is_integer(given):
        return bool(of.is_integer(wanted) or of.is_decimal(wanted) or wanted == pa.float64())
    if of.is_timestamp(given):
        return bool(of.is_timestamp(wanted) and (given.tz is None) == (wanted.tz is None))
    if of.is_list(given) or of.is_large_list(given):
        return bool(of.is_list(wanted) and _alike(given.value_type, wanted.value_type))
    if of.is_struct(given) and of.is_struct(wanted):
        names = [field.name for field in given] == [field.name for field in wanted]
        return names and all(_alike(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    same = (
        (of.is_decimal, of.is_decimal),
        (of.is_float32, of.is_float64),
        (lambda type_: of.is_large_string(type_) or of.is_string_view(type_), of.is_string),
        (lambda type_: of.is_large_binary(type_) or of.is_binary_view(type_), of.is_binary),
        (of.is_date64, of.is_date32),
    )
    return any(first(given) and second(wanted) for first, second in same)


def _failed(name: str, why: str, place: str) -> TransformError:
    return TransformError(f"the function {name} failed", why=why, kept="nothing was committed", place=place)


def _line(error: BaseException) -> str:
    """Where in the user's own code it happened."""
    foreign = {"pyspark", "pyarrow", "penstock"}
    own = [f for f in traceback.extract_tb(error.__traceback__) if not foreign & set(Path(f.filename).parts[-4:])]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
