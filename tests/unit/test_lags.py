"""What a `lag` may be, and what becomes of it."""

from __future__ import annotations

import pytest

from penstock.backends import lags
from penstock.errors import PlanRefused
from penstock.project.model import Pipeline


@pytest.mark.parametrize(
    ("lag", "expected"),
    [(None, "0 seconds"), ("0", "0 seconds"), ("5m", "5 minutes"), ("250ms", "250 milliseconds"), ("1d", "1 days")],
)
def test_lags_of_times(lag: str | None, expected: str) -> None:
    assert lags.interval(lag, "at") == expected


@pytest.mark.parametrize(("lag", "expected"), [(None, 0), ("0", 0), ("1000", 1000)])
def test_lags_of_integers(lag: str | None, expected: int) -> None:
    assert lags.count(lag, "id") == expected


@pytest.mark.parametrize("lag", ["5", "5x", "-1h", "1h30m", "\u0663h"])
def test_lags_that_are_no_durations(lag: str) -> None:
    with pytest.raises(PlanRefused, match="does not fit the cursor 'at'"):
        lags.interval(lag, "at")


@pytest.mark.parametrize("lag", ["5m", "-1", "1.5"])
def test_lags_that_are_no_numbers(lag: str) -> None:
    with pytest.raises(PlanRefused, match="does not fit the cursor 'id'"):
        lags.count(lag, "id")


def test_lags_are_read_alike_in_a_project() -> None:
    given = {"name": "p", "source": "s", "table": "t", "target": "w.t", "mode": "append", "incremental": "at"}
    assert Pipeline.model_validate(given | {"lag": 1000}).lag == "1000"
    with pytest.raises(ValueError, match="a lag is a number"):
        Pipeline.model_validate(given | {"lag": "1h30m"})
