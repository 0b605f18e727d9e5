"""Backends by name, through the entry point group `penstock.backends`; loaded when first asked for."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
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


def of_scheme(scheme: str) -> str | None:
    """The backend that DSNs of this scheme belong to."""
    if scheme in _points():
        return scheme
    missing: DriverMissing | None = None
    # The likeliest first: the others' drivers need not be loaded.
    for name in sorted(_points(), key=lambda name: not scheme.startswith(name)):
        try:
            if scheme in backend(name).config.schemes:
                return name
        except DriverMissing as error:
            missing = missing or error
    if missing is not None:
        raise missing
    return None


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
            remedy=_install(point),
        ) from error
    made: Backend = loaded()
    return made


def packages(extra: str) -> dict[str, str]:
    """The packages of one of our extras that are installed here, each with what installs the same one elsewhere."""
    wanted = [line for line in requires("penstock") or [] if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    found = {}
    for name in dict.fromkeys(re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in wanted):
        with suppress(PackageNotFoundError):
            found[name] = f"{name}=={version(name)}"
    return found


def _install(point: EntryPoint) -> str:
    """What installs a backend's driver: an extra of its name, where its package has one."""
    package = point.dist.metadata if point.dist is not None else None
    if package is None:
        return "install it"
    extras = package.get_all("Provides-Extra") or []
    return f"pip install '{package['Name']}{f'[{point.name}]' if point.name in extras else ''}'"
