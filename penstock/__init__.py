"""Penstock moves data between databases so that every row arrives exactly once and as it was.

The public surface. Every name is loaded when it is first asked for: `import penstock` brings
neither Spark nor Arrow nor a driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.backends.memory import memory
    from penstock.errors import (
        Busy,
        Cancelled,
        ConfigError,
        ConfigErrors,
        ConnectionFailed,
        DataError,
        DriverMissing,
        LinkLost,
        PenstockError,
        PlanRefused,
        SourceError,
        SparkError,
        StateError,
        TargetError,
        TransformError,
        Unsupported,
    )
    from penstock.project.decorators import ConnectionClass, connect, connection, pipeline
    from penstock.project.load import load as load_project
    from penstock.project.model import Project

    class DuckDB(ConnectionClass): ...

    class Memory(ConnectionClass): ...

    class Postgres(ConnectionClass): ...


__version__: str

_ERRORS = "penstock.errors"
_DECORATORS = "penstock.project.decorators"

_HOMES = {
    "Busy": _ERRORS,
    "Cancelled": _ERRORS,
    "ConfigError": _ERRORS,
    "ConfigErrors": _ERRORS,
    "ConnectionFailed": _ERRORS,
    "DataError": _ERRORS,
    "DriverMissing": _ERRORS,
    "LinkLost": _ERRORS,
    "PenstockError": _ERRORS,
    "PlanRefused": _ERRORS,
    "Project": "penstock.project.model",
    "SourceError": _ERRORS,
    "SparkError": _ERRORS,
    "StateError": _ERRORS,
    "TargetError": _ERRORS,
    "TransformError": _ERRORS,
    "Unsupported": _ERRORS,
    "connect": _DECORATORS,
    "connection": _DECORATORS,
    "memory": "penstock.backends.memory",
    "pipeline": _DECORATORS,
}

__all__ = [
    "Busy",
    "Cancelled",
    "ConfigError",
    "ConfigErrors",
    "ConnectionFailed",
    "DataError",
    "DriverMissing",
    "DuckDB",
    "LinkLost",
    "Memory",
    "PenstockError",
    "PlanRefused",
    "Postgres",
    "Project",
    "SourceError",
    "SparkError",
    "StateError",
    "TargetError",
    "TransformError",
    "Unsupported",
    "__version__",
    "connect",
    "connection",
    "load_project",
    "memory",
    "pipeline",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("penstock")
    elif name == "load_project":
        # `penstock.load` is the package of the load modes, so the function has a name of its own here.
        value = import_module("penstock.project.load").load
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and (made := import_module(_DECORATORS).class_of(name)) is not None:
        value = made  # of every backend that is installed
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
