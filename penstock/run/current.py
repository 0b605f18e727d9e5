"""The project that calls from Python speak of: one that was named, the one around, or what Python defines.

It is loaded anew for every call, so that a connection or a pipeline that a notebook's cell has just
defined is part of it. Nothing is cached but where it lies.
"""

from __future__ import annotations

from pathlib import Path

from penstock.project.load import find_file, load, without_file
from penstock.project.model import Project

_current: Path | None = None


def load_project(path: Path | str | None = None) -> Project:
    """The project at `path` (a folder or a file), or the one around the working directory.

    From here on it is the one that `ps.run`, `ps.sync` and the like speak of.
    """
    global _current
    file = find_file(None if path is None else Path(path))
    made = load(path)
    _current = None if file is None else file.resolve()
    return made


def project_of(given: Project | Path | str | None = None) -> Project:
    """The project of a call."""
    if isinstance(given, Project):
        return given
    if given is not None:
        return load(given)
    if _current is not None and _current.exists():
        return load(_current)
    # Connections that `ps.connect` or the environment define are enough.
    return without_file() if find_file(None) is None else load()
