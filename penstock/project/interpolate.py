"""`${VAR}` and `${VAR:-default}` in the strings of a project; `$${` stands for a plain `${`.

Any other `$` is left alone, so that dollar-quoted SQL passes unchanged. Values of variables never
appear in an error: only their names do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.project.toml import KeyPath

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")

Place = Callable[[KeyPath], str]


def has_reference(text: str) -> bool:
    """Whether the environment has a say in the text."""
    return any(found["name"] is not None for found in _REFERENCE.finditer(text))


def interpolate(
    value: Any, environment: Mapping[str, str], place: Place, path: KeyPath = ()
) -> tuple[Any, list[ConfigError]]:
    """The value with its references filled in, and every reference that could not be."""
    if isinstance(value, str):
        return _text(value, environment, place(path))
    if isinstance(value, Mapping):
        keyed = {k: interpolate(v, environment, place, (*path, str(k))) for k, v in value.items()}
        return {k: v for k, (v, _) in keyed.items()}, [e for _, errors in keyed.values() for e in errors]
    if isinstance(value, list | tuple):
        items = [interpolate(v, environment, place, (*path, str(n))) for n, v in enumerate(value)]
        return [v for v, _ in items], [e for _, errors in items for e in errors]
    return value, []


def _text(text: str, environment: Mapping[str, str], place: str) -> tuple[str, list[ConfigError]]:
    errors: list[ConfigError] = []

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            errors.append(
                ConfigError(
                    "'${' starts a reference that is not one",
                    why="a reference is ${NAME} or ${NAME:-default}",
                    remedy="write '$${' for a plain '${'",
                    place=place,
                )
            )
            return found[0]
        value = environment.get(name)
        if value:
            return value
        if default is not None:
            return str(default)
        if value is not None:
            return value
        errors.append(
            ConfigError(
                f"the environment variable {name} is not set",
                remedy=f"export {name}=…, or give a default: ${{{name}:-…}}",
                place=place,
            )
        )
        return found[0]

    return _REFERENCE.sub(fill, text), errors
