"""For tests of your own pipelines: real databases, the project's pipelines between them, rows compared.

Nothing here needs a plug-in. Rows move in the test's own process, without a JVM, unless a transform
needs Spark; partitions, checks, plans and commits are those of every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.checks import assert_rows, rows
    from penstock.testing.postgres import EmbeddedPostgres
    from penstock.testing.projects import project, run, without_spark

_HOMES = {
    "EmbeddedPostgres": "penstock.testing.postgres",
    "assert_rows": "penstock.testing.checks",
    "project": "penstock.testing.projects",
    "rows": "penstock.testing.checks",
    "run": "penstock.testing.projects",
    "without_spark": "penstock.testing.projects",
}

__all__ = ["EmbeddedPostgres", "assert_rows", "project", "rows", "run", "without_spark"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
