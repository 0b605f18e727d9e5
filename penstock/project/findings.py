"""What is wrong with a project, as a list: every finding is told, not just the first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError, ConfigErrors, PenstockError


def raise_all(findings: Sequence[PenstockError]) -> None:
    """One finding is raised as itself, several as `ConfigErrors`."""
    if len(findings) == 1:
        raise findings[0]
    if findings:
        raise ConfigErrors(list(findings))


def each(error: PenstockError) -> list[PenstockError]:
    """The findings inside an error."""
    return list(error.findings) if isinstance(error, ConfigErrors) else [error]


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or nothing."""
    names = list(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[close[0]] if close else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return f"did you mean {close!r}?"
    return f"known: {', '.join(names)}" if names else ""


def unknown_key(key: str, known: Iterable[str], subject: str, place: str) -> ConfigError:
    return ConfigError(f"unknown key {key!r} in {subject}", remedy=suggestion(key, known), place=place)


def reason(error: Mapping[str, Any]) -> str:
    """Pydantic's message for one error. Its `input` is never shown: it may be a secret."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
