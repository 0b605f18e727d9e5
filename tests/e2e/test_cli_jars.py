"""Jars are fetched once, by coordinates, and kept only if they are what the lock says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.engine import jars
from penstock.errors import ConfigError, SparkError

LOCK = """
[features.quiet]
"org.slf4j:slf4j-nop:2.0.17" = "3716f83649ec66161a2edefd4f49df34d1dd1c51cdcf941996c6987260f0a829"
"""


def test_jar_is_fetched_once_and_checked(tmp_path: Path) -> None:
    [jar] = jars.read_lock(LOCK)
    assert jars.cached(jar, tmp_path) is None
    path = jars.fetch(jar, tmp_path)
    assert path == jars.cached(jar, tmp_path) == tmp_path / "slf4j-nop-2.0.17.jar"
    before = path.stat().st_mtime_ns
    assert jars.fetch(jar, tmp_path).stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == [path]


def test_jar_that_differs_from_the_lock_is_thrown_away(tmp_path: Path) -> None:
    [jar] = jars.read_lock(LOCK)
    with pytest.raises(SparkError, match="is not what was locked"):
        jars.fetch(replace(jar, sha256="0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_jar_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    [jar] = jars.read_lock(LOCK)
    (tmp_path / jar.file_name).write_bytes(b"half of it")
    assert jars.cached(jar, tmp_path) is None
    assert jars.fetch(jar, tmp_path).stat().st_size > 1000


def test_unknown_jar_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="module not found") as caught:
        jars.fetch(jars.Jar("x", "org.slf4j:no-such-thing:1.0", "0" * 64), tmp_path)
    assert jars.SETTINGS in caught.value.remedy


def test_unknown_feature_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match="there are no jars for 'nothing'"):
        jars.of_feature("nothing")


def test_jars_list_prints_json() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "jars", "list", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
