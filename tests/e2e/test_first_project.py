"""The tutorial as a newcomer lives it: its commands are run, in order, and print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-project.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> Iterator[tuple[str, list[str]]]:
    """Every command of the page with the lines shown below it."""
    for block in BLOCK.findall(PAGE.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield command, lines


def plain(line: str) -> str:
    return " ".join(line.split())


def fits(shown: str, printed: str) -> bool:
    """Whether the page shows the line, from its start; `…` stands for what differs from run to run."""
    pattern = ".*".join(re.escape(part) for part in plain(shown).split("…"))
    return re.match(pattern, plain(printed)) is not None


class Terminal:
    """Commands in a shell that stays where the one before has gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))
        }
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["COLUMNS"] = "160"

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"{command}\nstatus=$?; pwd >&2; exit $status"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.folder = Path(done.stderr.splitlines()[-1])
        return done.stdout


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    typed: list[str] = []
    next_commands: list[str] = []
    for command, shown in steps():
        printed = terminal.type(command)
        typed.append(command)
        for line in shown:
            assert any(fits(line, found) for found in printed.splitlines()), f"{command}\n{line!r} is not in\n{printed}"
        if command.startswith("penstock init"):
            _, _, after = printed.partition("what to try next")
            next_commands = [re.split(r" {2,}", line.strip())[0] for line in after.splitlines() if line.strip()]
    # What `init` tells to type next was typed, in this order or another, and did what it should.
    kept = {shlex.join(shlex.split(command)) for command in typed}
    assert len(next_commands) > 4
    assert [one for one in next_commands if not any(command.startswith(one) for command in kept)] == []
