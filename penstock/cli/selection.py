"""Which pipelines a command line means: names, globs, `tag:x`, or all."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from penstock.errors import ConfigError


class Tagged(Protocol):
    @property
    def tags(self) -> tuple[str, ...]: ...


P = TypeVar("P", bound=Tagged)


def select(
    pipelines: Mapping[str, P], names: Sequence[str], selectors: Sequence[str], *, everything: bool = False
) -> list[P]:
    """The pipelines meant, each once, in the order asked for; an error when one means nothing."""
    if everything:
        if not pipelines:
            raise ConfigError("there are no pipelines", remedy="add a [pipelines.NAME] table to penstock.toml")
        return list(pipelines.values())
    chosen: dict[str, P] = {}
    for word in [*names, *selectors]:
        found = _matching(pipelines, word)
        if not found:
            raise _unknown(pipelines, word)
        chosen.update(found)
    return list(chosen.values())


def _matching(pipelines: Mapping[str, P], word: str) -> dict[str, P]:
    if word in pipelines:
        return {word: pipelines[word]}
    if word.startswith("tag:"):
        tag = word.removeprefix("tag:")
        return {name: one for name, one in pipelines.items() if any(fnmatchcase(own, tag) for own in one.tags)}
    if any(sign in word for sign in "*?["):
        return {name: one for name, one in pipelines.items() if fnmatchcase(name, word)}
    return {}


def _unknown(pipelines: Mapping[str, P], word: str) -> ConfigError:
    if word.startswith("tag:"):
        tags = sorted({tag for one in pipelines.values() for tag in one.tags})
        known = f"tags in this project: {', '.join(tags)}" if tags else "no pipeline has tags"
        return ConfigError(f"no pipeline has the tag {word.removeprefix('tag:')!r}", remedy=known)
    near = difflib.get_close_matches(word, pipelines, n=1)
    names = f"pipelines: {', '.join(sorted(pipelines))}" if pipelines else "the project has no pipelines"
    return ConfigError(f"there is no pipeline {word!r}", remedy=f"did you mean {near[0]!r}? {names}" if near else names)
