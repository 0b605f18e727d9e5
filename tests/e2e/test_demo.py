"""The demo, as whoever has just installed Penstock runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

from penstock.demo.runner import ORDER


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_demo_moves_changes_and_history(tmp_path: Path) -> None:
    """As text, which is what whoever tries it reads; the figures themselves are in the history."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "penstock.cli.main"]
    environment = os.environ | {"TMPDIR": str(temporary), "COLUMNS": "160"}
    began = time.monotonic()
    done = subprocess.run(
        [*command, "demo", "--orders", "2000", "--live", "4"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    for line in ("filling a shop: 2,000 orders with 8,000 lines", "round 2: only what changed is touched"):
        assert f"• {line}" in done.stderr
    first, second, history = (lines_after(done.stdout, title) for title in TITLES)
    assert [line.split()[:2] for line in first] == [["✓", name] for name in ORDER]
    assert [line.split()[:2] for line in second] == [["✓", name] for name in ORDER]
    versions = [(line.split()[0], line.endswith("✓")) for line in history if line.startswith("SKU-0003")]
    assert versions == [("SKU-0003", False), ("SKU-0003", True)]
    assert "• kill -9: the agent dies in the middle of its work" in done.stderr
    bank = [line.split() for line in lines_after(done.stdout, "the bank, followed for 4 s, with a kill -9 after 2 s")]
    assert [(line[0], line[1] == line[2], line[3]) for line in bank[:2]] == [
        ("accounts", True, "✓"),
        ("transfers", True, "✓"),
    ]
    assert bank[0][1] == "100,000"
    assert int(bank[1][1].replace(",", "")) > 0
    assert "the sum of all balances is 100000000.00, as it was at the start" in done.stdout
    assert "project and warehouse are in penstock-demo" in done.stdout
    assert "penstock --project penstock-demo runs list" in done.stdout

    listed = [*command, "--project", "penstock-demo", "runs", "list", "--output", "json"]
    runs = json.loads(subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    kept = [{run["pipeline"]: run for run in part} for part in (runs[len(ORDER) :], runs[: len(ORDER)])]
    assert kept[0]["order_lines"]["inserted"] == 8000
    assert {run["path"] for run in kept[0].values()} == {"native", "fused", "spark"}
    assert (kept[1]["customers"]["inserted"], kept[1]["customers"]["updated"]) == (1, 2)
    assert (kept[1]["order_lines"]["inserted"], kept[1]["order_lines"]["deleted"]) == (500, 4)
    assert kept[1]["events"]["inserted"] == 500
    # Its server lived in the folder for temporary files.
    assert list(temporary.iterdir()) == []
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]


TITLES = ("round 1: everything is new", "round 2: after a day's work", "products, with their history (scd2)")


def lines_after(text: str, title: str) -> list[str]:
    """The rows of the table with this title."""
    lines = iter(text[text.index(title) :].splitlines())
    for line in lines:
        if set(line.strip()) == {"─"}:
            break
    return list(takewhile(lambda line: line.strip() and not line.startswith("  "), (line.rstrip() for line in lines)))


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
