"""Waiting for a condition, with a limit: never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_SECONDS = 0.02


def await_true(
    condition: Callable[[], object], seconds: float = 30.0, told: Callable[[], object] | None = None
) -> None:
    """Until the condition holds; a failure says what `told` gives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told() if told is not None else "waited in vain"
        time.sleep(STEP_SECONDS)
