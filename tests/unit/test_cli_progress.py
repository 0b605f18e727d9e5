"""Progress: a plain log line per phase where there is no terminal."""

from __future__ import annotations

import pytest

from penstock.cli import progress
from penstock.observe import logs
from penstock.run.records import ProgressEvent


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_line_per_phase_and_one_every_ten_seconds_of_a_long_copy(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info")
    clock = Clock()
    with progress.Lines(clock) as report:
        report(ProgressEvent("plan", "customers", "public.customers"))
        for second in range(1, 26):
            clock.now = float(second)
            report(ProgressEvent("copy", "customers", "public.customers", 1000 * second, 0, 26000, second))
        report(ProgressEvent("commit", "customers", "public.customers", 25000, 0, 26000, 26))
        report(ProgressEvent("done", "customers", "public.customers", 25000, 0, 26000, 27))
    lines = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "planning pipeline=customers table=public.customers",
        "copying pipeline=customers table=public.customers rows=1000 of_about=26000 seconds=1",
        "copying pipeline=customers table=public.customers rows=11000 of_about=26000 seconds=11",
        "copying pipeline=customers table=public.customers rows=21000 of_about=26000 seconds=21",
        "committing pipeline=customers table=public.customers rows=25000 seconds=26",
        "done pipeline=customers table=public.customers rows=25000 seconds=27",
    ]


def test_bar_that_is_over_before_two_seconds_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Bar("customers") as report:
        report(ProgressEvent("copy", "customers", "public.customers", rows=10, seconds=0.1))
        report(ProgressEvent("done", "customers", "public.customers", rows=10, seconds=0.2))
    assert "customers" not in capsys.readouterr().err


def test_lines_are_used_where_stderr_is_no_terminal() -> None:
    assert isinstance(progress.reporter("customers"), progress.Lines)
