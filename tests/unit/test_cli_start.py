"""The command line answers at once: no Spark, no Arrow, no driver before a command needs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main

HEAVY = ("pyspark", "pyarrow", "psycopg", "duckdb", "adbc_driver_postgresql", "sqlalchemy", "pandas", "rich", "sqlglot")


def _penstock(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["runs", "list", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys, json, atexit\n"
        "from penstock.cli.main import main\n"
        f"atexit.register(lambda: print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr))\n"
        f"main({words!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_every_command_has_help() -> None:
    commands = ["run", "plan", "validate", "doctor", "demo"]
    nouns = {"runs": ["list", "show"], "connections": ["list", "test"], "tables": ["list", "show"], "jars": ["list"]}
    calls = [[one] for one in commands] + [[noun, verb] for noun, verbs in nouns.items() for verb in verbs]
    for words in calls:
        done = _penstock(*words, "--help")
        assert done.returncode == 0, done.stderr
        assert "Usage: penstock" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "name a pipeline, or use --select or --all"),
        (["rum"], "No such command 'rum'"),
        (["run", "x", "--limit", "0"], "greater than or equal to 1"),
        (["run", "x", "--output", "yaml"], "yaml"),
        (["plan"], "Missing argument"),
        (["runs", "list", "--pipelin", "x"], "--pipeline"),
        (["runs", "list", "--state", "bogus"], "'running', 'done', 'failed', 'cancelled', 'interrupted'"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(words: list[str], said: str, tmp_path: Path) -> None:
    done = _penstock(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_version_is_the_package_version() -> None:
    from importlib.metadata import version

    assert _penstock("--version").stdout == f"penstock {version('penstock')}\n"


def test_project_option_may_stand_anywhere() -> None:
    assert main.project_first(["run", "a", "--project", "x", "--all"]) == ["--project", "x", "run", "a", "--all"]
    assert main.project_first(["run", "--project=x"]) == ["--project=x", "run"]
    assert main.project_first(["run", "--", "--project", "x"]) == ["run", "--", "--project", "x"]
    assert main.project_first(["run", "--project"]) == ["--project", "run"]


def test_output_that_nobody_reads_any_more_is_no_crash() -> None:
    command = f"{sys.executable} -m penstock.cli.main --help | head -c 1 >/dev/null"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ)
    assert "Traceback" not in done.stderr
