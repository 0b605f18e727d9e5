"""The command line and the import answer at once.

Measured in processor time beside a yardstick, because other tests share the machine and machines differ: a limit is
that of the machine on which the yardstick takes YARDSTICK_SECONDS, and grows with it on a slower one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

YARDSTICK = ["-c", "import asyncio, email.message, http.client, inspect, pydoc, sqlite3, unittest, xml.dom.minidom"]
YARDSTICK_SECONDS = 0.1


def _seconds(words: list[str], cwd: Path) -> float:
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, cwd=cwd)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["-m", "penstock.cli.main", "--help"], 0.3),
        (["-m", "penstock.cli.main", "runs", "list"], 0.5),
        (["-m", "penstock.cli.main", "connections", "list"], 0.5),
        (["-c", "import penstock"], 0.1),
    ],
    ids=["help", "runs", "connections", "import"],
)
def test_it_answers_at_once(words: list[str], limit: float, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[connections.lake]\ntype = "duckdb"\npath = "lake.duckdb"\n')
    _seconds(words, tmp_path)  # writes the bytecode
    pairs = [(_seconds(YARDSTICK, tmp_path), _seconds(words, tmp_path)) for _ in range(5)]
    yardstick, taken = (min(column) for column in zip(*pairs, strict=True))
    assert taken <= limit * max(1.0, yardstick / YARDSTICK_SECONDS)
