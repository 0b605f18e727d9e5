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
    from penstock.project.functions import udaf, udf
    from penstock.project.model import Project
    from penstock.project.tables import ManagedTable, table
    from penstock.run.calls import plan, query, run, source, sync, use_spark, validate, write
    from penstock.run.create import create
    from penstock.run.current import load_project
    from penstock.run.replicating import replication
    from penstock.run.results import RunResult
    from penstock.schema.declare import (
        BigInt,
        Binary,
        Bool,
        Date,
        Decimal,
        Double,
        Enum,
        Float,
        Int,
        Interval,
        Json,
        Key,
        List,
        Map,
        Numeric,
        SmallInt,
        Struct,
        Text,
        Time,
        TimeNs,
        Timestamp,
        TimestampMs,
        TimestampNs,
        TimestampS,
        TimestampTz,
        TimestampTzMs,
        TimestampTzNs,
        TimestampTzS,
        TinyInt,
        UBigInt,
        UInt,
        USmallInt,
        UTinyInt,
        Uuid,
    )

    class DuckDB(ConnectionClass): ...

    class Files(ConnectionClass): ...

    class Memory(ConnectionClass): ...

    class Postgres(ConnectionClass): ...

    class SQLite(ConnectionClass): ...


__version__: str

_ERRORS = "penstock.errors"
_DECORATORS = "penstock.project.decorators"
_TABLES = "penstock.project.tables"
_CALLS = "penstock.run.calls"
_TYPES = "penstock.schema.declare"

_HOMES = {
    "BigInt": _TYPES,
    "Binary": _TYPES,
    "Bool": _TYPES,
    "Busy": _ERRORS,
    "Cancelled": _ERRORS,
    "ConfigError": _ERRORS,
    "ConfigErrors": _ERRORS,
    "ConnectionFailed": _ERRORS,
    "DataError": _ERRORS,
    "Date": _TYPES,
    "Decimal": _TYPES,
    "Double": _TYPES,
    "DriverMissing": _ERRORS,
    "Enum": _TYPES,
    "Float": _TYPES,
    "Int": _TYPES,
    "Interval": _TYPES,
    "Json": _TYPES,
    "Key": _TYPES,
    "LinkLost": _ERRORS,
    "List": _TYPES,
    "ManagedTable": _TABLES,
    "Map": _TYPES,
    "Numeric": _TYPES,
    "PenstockError": _ERRORS,
    "PlanRefused": _ERRORS,
    "Project": "penstock.project.model",
    "RunResult": "penstock.run.results",
    "SmallInt": _TYPES,
    "SourceError": _ERRORS,
    "SparkError": _ERRORS,
    "StateError": _ERRORS,
    "Struct": _TYPES,
    "TargetError": _ERRORS,
    "Text": _TYPES,
    "Time": _TYPES,
    "TimeNs": _TYPES,
    "Timestamp": _TYPES,
    "TimestampMs": _TYPES,
    "TimestampNs": _TYPES,
    "TimestampS": _TYPES,
    "TimestampTz": _TYPES,
    "TimestampTzMs": _TYPES,
    "TimestampTzNs": _TYPES,
    "TimestampTzS": _TYPES,
    "TinyInt": _TYPES,
    "TransformError": _ERRORS,
    "UBigInt": _TYPES,
    "UInt": _TYPES,
    "USmallInt": _TYPES,
    "UTinyInt": _TYPES,
    "Unsupported": _ERRORS,
    "Uuid": _TYPES,
    "connect": _DECORATORS,
    "connection": _DECORATORS,
    "create": "penstock.run.create",
    "memory": "penstock.backends.memory",
    "load_project": "penstock.run.current",
    "pipeline": _DECORATORS,
    "plan": _CALLS,
    "query": _CALLS,
    "replication": "penstock.run.replicating",
    "source": _CALLS,
    "sync": _CALLS,
    "use_spark": _CALLS,
    "table": _TABLES,
    "udaf": "penstock.project.functions",
    "udf": "penstock.project.functions",
    "validate": _CALLS,
    "write": _CALLS,
}

__all__ = [
    "BigInt",
    "Binary",
    "Bool",
    "Busy",
    "Cancelled",
    "ConfigError",
    "ConfigErrors",
    "ConnectionFailed",
    "DataError",
    "Date",
    "Decimal",
    "Double",
    "DriverMissing",
    "DuckDB",
    "Enum",
    "Files",
    "Float",
    "Int",
    "Interval",
    "Json",
    "Key",
    "LinkLost",
    "List",
    "ManagedTable",
    "Map",
    "Memory",
    "Numeric",
    "PenstockError",
    "PlanRefused",
    "Postgres",
    "Project",
    "RunResult",
    "SQLite",
    "SmallInt",
    "SourceError",
    "SparkError",
    "StateError",
    "Struct",
    "TargetError",
    "Text",
    "Time",
    "TimeNs",
    "Timestamp",
    "TimestampMs",
    "TimestampNs",
    "TimestampS",
    "TimestampTz",
    "TimestampTzMs",
    "TimestampTzNs",
    "TimestampTzS",
    "TinyInt",
    "TransformError",
    "UBigInt",
    "UInt",
    "USmallInt",
    "UTinyInt",
    "Unsupported",
    "Uuid",
    "__version__",
    "connect",
    "connection",
    "create",
    "load_project",
    "memory",
    "pipeline",
    "plan",
    "query",
    "replication",
    "run",
    "source",
    "sync",
    "table",
    "udaf",
    "udf",
    "use_spark",
    "validate",
    "write",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("penstock")
    elif name == "run":
        value = import_module("penstock.run")  # the package, which can be called: see there
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and (made := import_module(_DECORATORS).class_of(name)) is not None:
        value = made  # of every backend that is installed
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_meant(name)}")
    globals()[name] = value
    return value


def _meant(name: str) -> str:
    """A user's module is told by its error's text alone, so the nearest name stands in it."""
    from difflib import get_close_matches

    known = {one.lower(): one for one in __all__}
    close = get_close_matches(name.lower(), list(known), n=1)
    return f"; did you mean {known[close[0]]!r}?" if close and not name.startswith("_") else ""


def __dir__() -> list[str]:
    return sorted(__all__)
