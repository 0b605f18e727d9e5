"""The benchmarks run, in their small version: every side loads every row, and the page is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.postgres
def test_the_small_benchmark_races_penstock_against_psql(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "postgres", "--sides", "psql"]
    done = subprocess.run(
        [*command, "--page", str(page)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "first merge against psql COPY" in text
    assert "| Penstock " in text
    assert "does not hold every row" not in text
