"""Backends by name, through the entry point group `penstock.backends`; loaded when first asked for."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, DriverMissing

if TYPE_CHECKING:  # base.py brings pyarrow, which commands that only list names can do without
    from penstock.backends.base import Backend

GROUP = "penstock.backends"


@cache
def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    return sorted(_points())


@cache
def backend(name: str) -> Backend:
    """The backend called `name`. Importing its driver happens here and nowhere earlier."""
    point = _points().get(name)
    if point is None:
        raise ConfigError(f"there is no backend {name!r}", remedy=f"known backends: {', '.join(names())}")
    try:
        loaded = point.load()
    except ModuleNotFoundError as error:
        raise DriverMissing(
            f"the driver of backend {name!r} is not installed",
            why=f"no module named {error.name!r}",
            remedy=f"pip install 'penstock[{name}]'",
        ) from error
    made: Backend = loaded()
    return made
