"""The tests that a backend inherits, with tables in memory as the target: what their capabilities deny is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Flow, Harness, Inherited
from tests.conformance.test_drift import *  # noqa: F403  every test of it
from tests.conformance.test_modes import *  # noqa: F403  every test of it


@pytest.fixture
def flow(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Inherited(harness("postgres"), harness("memory"), tmp_path)


pair = spark_pair = flow
