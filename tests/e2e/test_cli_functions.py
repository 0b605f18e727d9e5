"""`penstock run` of a transform with the project's own functions, from a folder that is not the project's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import duckdb
import pytest

from tests.e2e.command import Project, project, shop

__all__ = ["project", "shop"]

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

FUNCTIONS = """
import penstock as ps

from words import shout


@ps.udf(returns="text", per_row=True)
def loud(name):
    return shout(name)


@ps.udaf(returns="text")
def longest(names):
    return max(names.to_pylist(), key=lambda name: (len(name), name))
"""
PIPELINE = """
[project]
modules = ["functions"]

[pipelines.loud]
source = "shop"
table = "public.customers"
target = "warehouse.main.loud"
mode = "truncate"
transform = "select id % 2 as odd, longest(loud(c.name)) as name from source join c using (id) group by id % 2"
inputs = { c = "shop.public.customers" }
"""


def test_functions_run_from_anywhere(project: Project, tmp_path: Path) -> None:
    project.write((project.folder / "penstock.toml").read_text() + PIPELINE)
    (project.folder / "functions.py").write_text(FUNCTIONS)
    (project.folder / "words.py").write_text("def shout(text):\n    return text.upper()\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        project.command("--project", str(project.folder), "run", "loud"),
        cwd=elsewhere, env=project.environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    with duckdb.connect(str(project.folder / "warehouse.duckdb"), read_only=True) as connection:
        rows = connection.execute("select odd, name from loud order by odd").fetchall()
    assert rows == [(0, "NAME 1000"), (1, "NAME 999")]
    assert list(elsewhere.iterdir()) == []
