"""The tests that a backend inherits, with files as the target: what their capabilities deny is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness, Inherited
from tests.conformance.test_data_errors import (
    test_errors_a_negative_zero_does_not_lose_its_sign,
    test_errors_a_text_that_is_an_integer_is_one,
    test_errors_a_text_that_no_integer_gives_back_is_told_with_its_key,
)
from tests.conformance.test_drift import *  # noqa: F403  every test of it
from tests.conformance.test_modes import *  # noqa: F403  every test of it
from tests.conformance.test_shapes import (
    test_names_over_the_byte_limit_are_refused_at_planning,
    test_names_that_differ_only_in_case,
)

__all__ = [
    "test_errors_a_negative_zero_does_not_lose_its_sign",
    "test_errors_a_text_that_is_an_integer_is_one",
    "test_errors_a_text_that_no_integer_gives_back_is_told_with_its_key",
    "test_names_over_the_byte_limit_are_refused_at_planning",
    "test_names_that_differ_only_in_case",
]

del test_target_only_column_is_kept  # noqa: F821  nobody but a load alters a table of files

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]


@pytest.fixture(params=["parquet", "csv", "jsonl"])
def flow(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Inherited(harness("postgres"), FilesHarness(tmp_path / "lake", request.param), tmp_path)


pair = spark_pair = flow


@pytest.fixture
def quick(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Flow(harness("postgres"), FilesHarness(tmp_path / "lake"), tmp_path)
