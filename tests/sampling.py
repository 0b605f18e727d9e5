"""Which cases of the large matrices a quick run takes: a seeded sample that leaves nothing out.

Of a module marked `sampled`, the sample has every test function and every value of every parameter
(each failpoint, target, version, pair) at least once; `--full` takes every combination. The values of a
parameter that is `shared` are the module's: it is enough that one of its functions has them.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

MARK = "sampled"


def sampled(items: list[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items to run, in their order, and those that are left to the full run."""
    modules: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            modules[item.location[0]].append(item)
    chosen: set[str] = set()
    for name, cases in sorted(modules.items()):
        chosen |= {item.nodeid for item in _cover(cases, f"{name}:{seed}")}
    keep = [item for item in items if item.get_closest_marker(MARK) is None or item.nodeid in chosen]
    left = [item for item in items if item.get_closest_marker(MARK) is not None and item.nodeid not in chosen]
    return keep, left


def _cover(cases: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Few cases that together have all that the cases have; ties are broken by the seed."""
    shuffled = sorted(cases, key=lambda item: item.nodeid)
    random.Random(seed).shuffle(shuffled)  # noqa: S311  no secret
    open_ = {part for item in shuffled for part in _parts(item)}
    chosen = []
    while open_:
        best = max(shuffled, key=lambda item: len(open_ & _parts(item)))
        chosen.append(best)
        open_ -= _parts(best)
    return chosen


def _parts(item: pytest.Item) -> set[tuple[str, str, str]]:
    """What a case stands for: its function, the values of its own parameters, and those of its fixtures."""
    function = getattr(item, "originalname", item.name)
    parts = {(function, "", "")}
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return parts
    own = {
        name.strip()
        for mark in item.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    }
    mark = item.get_closest_marker(MARK)
    own -= set(mark.kwargs.get("shared", ())) if mark is not None else set()
    # A fixture's value, such as a pair of backends, is the same whoever asks for it.
    return parts | {
        (function if name in own else "", name, _shown(value, callspec.indices[name]))
        for name, value in callspec.params.items()
    }


def _shown(value: object, index: int) -> str:
    """A value by itself where it has a name of its own: one list of combinations may stand for several."""
    plain = isinstance(value, str | int) or (isinstance(value, tuple) and all(isinstance(one, str) for one in value))
    return repr(value) if plain else f"#{index}"
