"""Functions of the user's that a transform's SQL calls by name: `@ps.udf` and `@ps.udaf`.

Decorating only notes what was said and where; the loader checks all of it. Nothing here loads Spark,
and Arrow only when a project has such functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import FunctionType
from typing import Any, overload

from penstock.errors import ConfigError
from penstock.project.decorators import Origin, UserFunction, registered, replace_in
from penstock.project.tables import without_none, word_of
from penstock.schema.declare import Type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a function of single values may say it returns. A Decimal and a datetime say too little.
_PYTHON_WORDS: Mapping[Any, str] = {
    bool: "bool",
    int: "bigint",
    float: "double",
    str: "text",
    bytes: "binary",
    date: "date",
}

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A checked function: what it returns is a type's word."""

    name: str
    function: Function
    word: str
    aggregate: bool
    per_row: bool
    place: str


@overload
def udf(function: Function, /) -> UserFunction: ...
@overload
def udf(
    *, returns: Any = None, name: str | None = None, per_row: bool = False
) -> Callable[[Function], UserFunction]: ...
def udf(
    function: Function | None = None, /, *, returns: Any = None, name: str | None = None, per_row: bool = False
) -> UserFunction | Callable[[Function], UserFunction]:
    """A function for a transform's SQL: Arrow arrays in, one Arrow array of the same length out.

    With `per_row`, it takes the values of one row and returns one. `returns` is the type's word
    ("decimal(38,2)") or class (`ps.Decimal[38, 2]`); without it, the function's annotation says it.
    """

    def decorate(given: Function) -> UserFunction:
        return _noted(given, returns, name, aggregate=False, per_row=per_row)

    return decorate if function is None else decorate(function)


@overload
def udaf(function: Function, /) -> UserFunction: ...
@overload
def udaf(*, returns: Any = None, name: str | None = None) -> Callable[[Function], UserFunction]: ...
def udaf(
    function: Function | None = None, /, *, returns: Any = None, name: str | None = None
) -> UserFunction | Callable[[Function], UserFunction]:
    """An aggregate for a transform's SQL: the Arrow arrays of a whole group in, one value out."""

    def decorate(given: Function) -> UserFunction:
        return _noted(given, returns, name, aggregate=True, per_row=False)

    return decorate if function is None else decorate(function)


def _noted(function: Function, returns: Any, name: str | None, *, aggregate: bool, per_row: bool) -> UserFunction:
    if not isinstance(function, FunctionType):
        word = "@ps.udaf" if aggregate else "@ps.udf"
        raise ConfigError(
            f"{word} is for a function",
            why=f"it stands over {getattr(function, '__name__', function)!r}, which is none",
            remedy='@ps.udf(returns="text") over `def shout(names): …`',
        )
    code = function.__code__
    origin = Origin(function.__module__, code.co_filename, code.co_firstlineno)
    made = UserFunction(name or function.__name__, function, returns, aggregate, per_row, origin)
    replace_in(registered.functions, made)
    return made


# ---------------------------------------------------------------- checking


def declared_functions(
    given: Sequence[UserFunction], place_of: Callable[[Origin], str]
) -> tuple[dict[str, DeclaredFunction], list[ConfigError]]:
    """Every function by its name in lower case, as SQL finds it; what is wrong with any of them."""
    made: dict[str, DeclaredFunction] = {}
    findings: list[ConfigError] = []
    for one in given:
        place = place_of(one.origin)
        earlier = made.get(one.name.lower())
        if earlier is not None:
            findings.append(
                ConfigError(
                    f"function {one.name!r} is defined twice",
                    why=f"in {earlier.place} and in {place}, and SQL does not tell upper from lower case",
                    remedy='rename one: @ps.udf(name="…")',
                    place=place,
                )
            )
            continue
        try:
            made[one.name.lower()] = _declared(one, place)
        except ConfigError as error:
            error.place = place
            findings.append(error)
    return made, findings


def _declared(one: UserFunction, place: str) -> DeclaredFunction:
    if not _NAME.fullmatch(one.name):
        raise ConfigError(f"{one.name!r} is no name for a function", why="it is called in SQL: letters, digits and _")
    if not inspect.signature(one.function).parameters:
        raise ConfigError(
            f"function {one.name!r} takes no argument",
            why="nothing would tell it how many rows there are",
            remedy="give it a column, or write the value into the SQL",
        )
    return DeclaredFunction(one.name, one.function, _word(one), one.aggregate, one.per_row, place)


def _word(one: UserFunction) -> str:
    from penstock.schema import words

    said = _said(one)
    if isinstance(said, type) and issubclass(said, Type):
        try:
            said = word_of(said, type(one))
        except ConfigError as error:
            raise ConfigError(
                f"function {one.name!r} returns no type", why=error.why or error.what, remedy=error.remedy
            ) from error
    if not isinstance(said, str):
        plain = _PYTHON_WORDS.get(said) if one.per_row and isinstance(said, type) else None
        if plain is None:
            raise ConfigError(
                f"what function {one.name!r} returns is not said",
                remedy='returns="decimal(38,2)", "bigint", "text", "timestamptz" …',
            )
        said = plain
    try:
        word = words.parse(said)
    except ConfigError as error:
        raise ConfigError(f"function {one.name!r} returns {said!r}, which is no type", why=error.why) from error
    if word.logical is not None:
        raise ConfigError(
            f"function {one.name!r} returns {said!r}", why="Arrow has no form of it", remedy='return it as "text"'
        )
    return said


def _said(one: UserFunction) -> Any:
    """What it returns, as the decorator or its annotation has it; None where neither does.

    Only that annotation is read: those of the arguments may name what is there for a type checker only.
    """
    if one.returns is not None:
        return one.returns
    function = inspect.unwrap(one.function)
    said = getattr(function, "__annotations__", {}).get("return")
    if isinstance(said, str):
        try:
            said = eval(said, dict(getattr(function, "__globals__", {})))  # noqa: S307  the user's own code
        except Exception as error:
            raise ConfigError(
                f"what function {one.name!r} returns is not said",
                why=f"its annotation cannot be read: {type(error).__name__}: {error}",
                remedy='import the name at run time, or say it: returns="text"',
            ) from error
    try:
        return without_none(said)[0]
    except ConfigError as error:
        raise ConfigError(f"function {one.name!r} returns no type", why="it may return several") from error
