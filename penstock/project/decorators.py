"""Pipelines and connections written in Python (tables: `tables.py`); collected when the project is loaded.

Decorating only notes what was said and where. Nothing is checked, connected or run here: the
loader checks Python and TOML by the same rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from penstock.backends import registry
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.project.tables import TableHandle

C = TypeVar("C", bound="type[ConnectionClass]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object was defined."""

    module: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ConnectionHandle:
    """A connection defined in Python. Its repr shows no option's value."""

    name: str
    origin: Origin = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)


class PipelineFunction:
    """A pipeline defined by a function that returns its query; also the function itself."""

    def __init__(self, function: Callable[[], str | None], name: str, options: Mapping[str, Any]) -> None:
        self.function = function
        self.name = name
        self.options = dict(options)
        self.transform_function: Callable[..., Any] | None = None
        code = function.__code__
        self.origin = Origin(function.__module__, code.co_filename, code.co_firstlineno)

    def __call__(self) -> str | None:
        return self.function()

    def __repr__(self) -> str:
        return f"<pipeline {self.name!r}>"

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Attach a function from a Spark DataFrame to a Spark DataFrame."""
        self.transform_function = function
        return function


class ConnectionClass:
    """Base of the classes that `@connection` takes: their attributes are the options."""

    type: ClassVar[str] = ""


def class_of(name: str) -> type[ConnectionClass] | None:
    """The class for connections of a backend, whatever the case of its name; None if there is none."""
    if name.lower() not in registry.names():
        return None
    return type(name, (ConnectionClass,), {"type": name.lower(), "__module__": "penstock"})


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function that a transform's SQL may call; also the function itself."""

    name: str
    function: Callable[..., Any]
    returns: Any
    aggregate: bool
    per_row: bool
    origin: Origin = field(repr=False)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@dataclass(slots=True)
class Registered:
    """All that was decorated in this process, in order."""

    connections: list[ConnectionHandle] = field(default_factory=list)
    pipelines: list[PipelineFunction] = field(default_factory=list)
    tables: list[TableHandle] = field(default_factory=list)
    functions: list[UserFunction] = field(default_factory=list)


registered = Registered()


def pipeline(
    *, source: Any, target: Any, mode: str, name: str | None = None, **options: Any
) -> Callable[[Callable[[], str | None]], PipelineFunction]:
    """Make a function that returns a query (or, with `table` or `tables`, nothing) a pipeline."""

    def decorate(function: Callable[[], str | None]) -> PipelineFunction:
        if not isinstance(function, FunctionType):
            raise ConfigError(
                "@ps.pipeline is for a function that returns the query",
                why=f"it stands over {getattr(function, '__name__', function)!r}, which is no function",
                remedy="def customers(): return 'select …'",
            )
        if isinstance(target, ConnectionHandle) or hasattr(target, "__penstock_connection__"):
            raise ConfigError(
                "the target of a pipeline is a table, and this one is a connection",
                remedy=f'name the table too: target="{name_of(target)}.schema.table"',
            )
        given = {"source": name_of(source), "target": target, "mode": mode, **options}
        if isinstance(options.get("inputs"), Mapping):
            given["inputs"] = {view: _input(one) for view, one in options["inputs"].items()}
        made = PipelineFunction(function, name or function.__name__, given)
        replace_in(registered.pipelines, made)
        return made

    return decorate


def connect(name: str, *, type: str, **options: Any) -> ConnectionHandle:  # noqa: A002  the key's name in TOML
    """Define a connection by keyword arguments."""
    made = ConnectionHandle(name, caller(sys._getframe(1)), {"type": type, **options})
    replace_in(registered.connections, made)
    return made


@overload
def connection(cls: C, /) -> C: ...
@overload
def connection(*, name: str) -> Callable[[C], C]: ...
def connection(cls: C | None = None, /, *, name: str | None = None) -> C | Callable[[C], C]:
    """Define a connection by a class; `@connection` or `@connection(name="shop")`."""
    origin = caller(sys._getframe(1))

    def decorate(decorated: C) -> C:
        if not (isinstance(decorated, type) and issubclass(decorated, ConnectionClass)):
            called = getattr(decorated, "__name__", "shop")
            raise ConfigError(
                "@ps.connection is for a class of options",
                why=f"{called!r} is no class of a backend, such as ps.Postgres",
                remedy=f"class {called}(ps.Postgres): …",
            )
        made = ConnectionHandle(name or decorated.__name__, origin, _options(decorated))
        decorated.__penstock_connection__ = made.name  # type: ignore[attr-defined]  # read by `name_of`
        replace_in(registered.connections, made)
        return decorated

    return decorate if cls is None else decorate(cls)


def _options(cls: type[ConnectionClass]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, ConnectionClass):
            options.update({k: v for k, v in vars(base).items() if not k.startswith("_")})
    return options


def name_of(source: Any) -> Any:
    if isinstance(source, ConnectionHandle):
        return source.name
    return getattr(source, "__penstock_connection__", source)


def _input(given: Any) -> Any:
    """An input whose connection may be a Python object, as a pipeline's source may; or a `ps.query`."""
    if callable(getattr(given, "options", None)):
        return given.options()
    if isinstance(given, Mapping) and "source" in given:
        return {**given, "source": name_of(given["source"])}
    return given


def caller(frame: FrameType) -> Origin:
    return Origin(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, frame.f_lineno)


def replace_in(items: list[Any], made: Any) -> None:
    """Note an object; one of the same name and module goes, as when a notebook's cell runs again.

    Two definitions of one name in one run of a module are told by their lines, so they both stay.
    """
    again = [
        item
        for item in items
        if item.name == made.name and item.origin.file == made.origin.file and item.origin.line == made.origin.line
    ]
    notebook = made.origin.module == "__main__"
    items[:] = [
        item
        for item in items
        if item not in again and not (notebook and item.name == made.name and item.origin.module == "__main__")
    ]
    items.append(made)
