"""Imports the project's Python modules and collects what they decorated.

A mistake in a user's module is told with its file and line, never as a traceback.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from penstock.errors import ConfigError
from penstock.project.decorators import Origin, Registered, registered
from penstock.project.toml import shown


def import_modules(root: Path, modules: Sequence[str], place: str) -> list[ConfigError]:
    """Import `modules` from the project's root; what went wrong."""
    if not modules:
        return []
    folder = str(root)
    if folder not in sys.path:
        # It stays there: functions of these modules may import their neighbours when they run.
        sys.path.insert(0, folder)
    errors = []
    for name in modules:
        _forget_namesake(root, name)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's module raises is their message
            errors.append(_import_error(root, name, error, place))
            _forget_objects(name)
    return errors


def _forget_objects(module: str) -> None:
    """Let go of what a module noted before it failed: corrected and imported again, it notes all of it anew."""
    registered.connections[:] = [one for one in registered.connections if one.origin.module != module]
    registered.pipelines[:] = [one for one in registered.pipelines if one.origin.module != module]
    registered.tables[:] = [one for one in registered.tables if one.origin.module != module]
    registered.functions[:] = [one for one in registered.functions if one.origin.module != module]


def collect(root: Path, modules: Sequence[str]) -> Registered:
    """What belongs to this project: defined under its root, in its modules, or by the user's own script."""
    return Registered(
        [c for c in registered.connections if _belongs(c.origin, root, modules)],
        [p for p in registered.pipelines if _belongs(p.origin, root, modules)],
        [t for t in registered.tables if _belongs(t.origin, root, modules)],
        [f for f in registered.functions if _belongs(f.origin, root, modules)],
    )


def place_of(origin: Origin) -> str:
    if not Path(origin.file).exists():  # a notebook's cell
        return f"{origin.module} line {origin.line}"
    return f"{shown(Path(origin.file))}:{origin.line}"


def failure_place(root: Path, error: BaseException, fallback: str) -> str:
    """The last line of the user's own code in an error's traceback."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{shown(Path(error.filename))}:{error.lineno}"
    return _deepest(root, error.__traceback__) or fallback


def _belongs(origin: Origin, root: Path, modules: Sequence[str]) -> bool:
    if origin.module == "__main__" or Path(origin.file).resolve().is_relative_to(root):
        return True
    loaded = sys.modules.get(origin.module)
    named = any(origin.module == name or origin.module.startswith(f"{name}.") for name in modules)
    return named and loaded is not None and getattr(loaded, "__file__", None) == origin.file


def _forget_namesake(root: Path, name: str) -> None:
    """Let go of a module of the same name that another project of this process has loaded."""
    top = name.partition(".")[0]
    here = [root / f"{top}.py", root / top / "__init__.py"]
    loaded = sys.modules.get(top)
    file = getattr(loaded, "__file__", None)
    if loaded is None or file is None or not any(path.exists() for path in here):
        return
    if Path(file).resolve() not in [path.resolve() for path in here]:
        for other in [key for key in sys.modules if key == top or key.startswith(f"{top}.")]:
            del sys.modules[other]
        sys.path.remove(str(root))
        sys.path.insert(0, str(root))


def _import_error(root: Path, name: str, error: BaseException, place: str) -> ConfigError:
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and (name == error.name or name.startswith(error.name + "."))
    ):
        return ConfigError(
            f"there is no module {name!r}", why=f"looked in {root} and the installed packages", place=place
        )
    if isinstance(error, ConfigError):
        error.place = error.place or failure_place(root, error, place)
        return error
    why = error.msg if isinstance(error, SyntaxError) else "".join(traceback.format_exception_only(error)).strip()
    return ConfigError(f"module {name!r} cannot be imported", why=why, place=failure_place(root, error, place))


def _deepest(root: Path, trace: TracebackType | None) -> str:
    found = ""
    for frame in traceback.extract_tb(trace):
        path = Path(frame.filename)
        if path.exists() and path.resolve().is_relative_to(root) and ".venv" not in path.parts:
            found = f"{shown(path)}:{frame.lineno}"
    return found
