"""The demo, as whoever has just installed Penstock runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_demo_moves_changes_and_history(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "demo", "--orders", "2000", "--output", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    result = json.loads(done.stdout)
    first, second = ({run["pipeline"]: run for run in one["runs"]} for one in result["rounds"])
    assert first["order_lines"]["inserted"] == 8000
    assert {run["path"] for run in first.values()} == {"native", "fused", "spark"}
    assert (second["customers"]["inserted"], second["customers"]["updated"]) == (1, 2)
    assert second["order_lines"]["inserted"] == 500
    assert second["order_lines"]["deleted"] == 4
    assert second["events"]["inserted"] == 500
    versions = [(one["sku"], one["is_current"]) for one in result["history"]]
    assert versions.count(("SKU-0003", "false")) == 1
    assert versions.count(("SKU-0003", "true")) == 1
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]


@pytest.mark.postgres
def test_demo_interrupted_leaves_no_server_and_no_folder_open(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = {path: path.stat().st_mode for path in (closed, *closed.parents)}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "demo"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(closed)},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "filling a shop" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert any(child.name() == "postgres" for child in children)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert {path: path.stat().st_mode for path in before} == before


@pytest.mark.postgres
def test_demo_does_not_touch_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "penstock-demo").mkdir()
    (tmp_path / "penstock-demo" / "thesis.txt").write_text("years of work")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "holds something else than a demo" in done.stderr
    assert (tmp_path / "penstock-demo" / "thesis.txt").read_text() == "years of work"


def test_demo_in_the_place_of_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for folder in ("thesis.txt", "thesis.txt/demo"):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "demo", "--folder", folder],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert "no folder" in done.stderr
        assert "this is a bug" not in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_example_is_the_demos_project() -> None:
    root = Path(__file__).parents[2]
    for name in ("penstock.toml", "pipelines.py"):
        assert (root / "examples" / "shop" / name).read_text() == (
            root / "penstock" / "demo" / "project" / name
        ).read_text()
