"""The suite's own tests of targets, with files: those whose modes files take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness
from tests.conformance.test_data_errors import (
    test_errors_a_negative_zero_does_not_lose_its_sign,
    test_errors_a_text_that_is_an_integer_is_one,
    test_errors_a_text_that_no_integer_gives_back_is_told_with_its_key,
)
from tests.conformance.test_modes import (
    test_columns_rename_cast_and_text,
    test_incremental_after_a_load_without_a_window_brings_no_row_twice,
    test_incremental_full_refresh_reads_everything_again,
    test_incremental_integers_with_lag_in_units,
    test_incremental_reads_each_row_once,
    test_incremental_refuses_text_and_float_cursors,
    test_truncate_replaces_all_rows,
)
from tests.conformance.test_shapes import (
    test_names_over_the_byte_limit_are_refused_at_planning,
    test_names_that_differ_only_in_case,
)

__all__ = [
    "test_columns_rename_cast_and_text",
    "test_errors_a_negative_zero_does_not_lose_its_sign",
    "test_errors_a_text_that_is_an_integer_is_one",
    "test_errors_a_text_that_no_integer_gives_back_is_told_with_its_key",
    "test_incremental_after_a_load_without_a_window_brings_no_row_twice",
    "test_incremental_full_refresh_reads_everything_again",
    "test_incremental_integers_with_lag_in_units",
    "test_incremental_reads_each_row_once",
    "test_incremental_refuses_text_and_float_cursors",
    "test_names_over_the_byte_limit_are_refused_at_planning",
    "test_names_that_differ_only_in_case",
    "test_truncate_replaces_all_rows",
]

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["parquet", "csv", "jsonl"])
def flow(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Flow(harness("postgres"), FilesHarness(tmp_path / "lake", request.param), tmp_path)


@pytest.fixture
def pair(flow: Flow) -> Flow:
    return flow


@pytest.fixture
def quick(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    return Flow(harness("postgres"), FilesHarness(tmp_path / "lake"), tmp_path)
