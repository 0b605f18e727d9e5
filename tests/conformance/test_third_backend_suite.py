"""The tests that a backend inherits, on one that Penstock knows nothing of, made by the steps of CONTRIBUTING.

Importing them with a `flow` of one's own is all it takes. What the capabilities deny, such a flow asserts
to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.arrow_folder_harness import FolderHarness, folder, site
from tests.conformance.harness import Flow, Harness, Inherited
from tests.conformance.test_drift import *  # noqa: F403  every test of it
from tests.conformance.test_modes import *  # noqa: F403  every test of it

__all__ = ["folder", "site"]


@pytest.fixture
def flow(harness: Callable[[str], Harness], folder: FolderHarness, tmp_path: Path) -> Flow:
    return Inherited(harness("postgres"), folder, tmp_path)


pair = spark_pair = flow
