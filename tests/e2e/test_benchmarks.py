"""The benchmarks run, in their small version: every side loads every row, and the page is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_the_small_benchmark_races_penstock_against_psql(tmp_path: Path) -> None:
    text = page_of(tmp_path, "--only", "postgres", "--sides", "psql")
    assert "first merge against psql COPY" in text
    assert "| Penstock " in text
    assert "does not hold every row" not in text


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_the_small_benchmark_of_replications_measures_every_part(tmp_path: Path) -> None:
    text = page_of(tmp_path, "--only", "replication")
    for goal in (
        "capture against pg_recvlogical",
        "copy of a table that is added against",
        "latency, p99",
        "memory of",
    ):
        assert goal in text
    assert "not measured" not in text


def page_of(folder: Path, *options: str) -> str:
    page = folder / "benchmarks.md"
    command = [sys.executable, "-m", "benchmarks", "--quick", *options, "--page", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=390)
    assert done.returncode == 0, done.stderr
    return page.read_text()
