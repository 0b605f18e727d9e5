"""CONTRIBUTING.md tells how things are: its files, commands and contracts exist, and none is left out."""

from __future__ import annotations

import re
from inspect import isabstract
from pathlib import Path

import pytest
import typer

from penstock.backends import base, registry
from penstock.cli.main import app
from tests.conformance import arrow_folder

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# Abilities that a backend may have besides.
OPTIONAL = {"ReadsFrames", "WritesFrames"}


def contracts() -> dict[str, set[str]]:
    return {
        name: set(found.__abstractmethods__)
        for name, found in vars(base).items()
        if isabstract(found) and found.__module__ == base.__name__
    }


def test_every_file_it_names_is_there() -> None:
    named = set(re.findall(r"(?<![\w./])((?:penstock|tests|docs|\.venv/bin)/[\w./-]+|[A-Z]+\.md|\w+\.toml)", TEXT))
    assert len(named) > 20
    missing = sorted(name for name in named if not name.startswith(".venv") and not (ROOT / name).exists())
    assert missing == []


def test_every_command_it_names_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([\w-]+)", TEXT, re.MULTILINE)) <= targets
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group has commands
    named = set(re.findall(r"^    penstock (\w+)", TEXT, re.MULTILINE))
    assert named
    assert named <= commands


@pytest.mark.parametrize("name", sorted(contracts().keys() - OPTIONAL))
def test_what_must_be_written_is_what_the_contract_asks_for(name: str) -> None:
    [told] = re.findall(rf"^\| `{name}` \| (.*) \|$", TEXT, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", told)) == contracts()[name]


def test_optional_abilities_are_named() -> None:
    assert all(f"`{name}`" in TEXT for name in OPTIONAL & contracts().keys())
    assert contracts().keys() >= OPTIONAL


def test_the_entry_point_is_the_one_that_is_looked_up() -> None:
    assert f'[project.entry-points."{registry.GROUP}"]' in TEXT


def test_every_verdict_is_told() -> None:
    assert all(f"`{verdict.name}`" in TEXT for verdict in base.Verdict)


def test_the_files_of_a_backend_are_those_of_ours() -> None:
    named = set(re.findall(r"^### \d\. .*?`(\w+\.py)`", TEXT, re.MULTILINE))
    assert named == {"config.py", "capabilities.py", "types.py", "read.py", "write.py", "__init__.py"}
    # A log of changes is no source and no target of pipelines: it has no tables to read or to write.
    tables = [name for name in registry.names() if (can := registry.backend(name).capabilities).reads or can.writes]
    backends = [folder for name in tables if (folder := ROOT / "penstock" / "backends" / name).is_dir()]
    assert len(backends) >= 5
    for folder in backends:
        assert named <= {path.name for path in folder.glob("*.py")}, folder.name


def test_the_example_is_a_whole_backend() -> None:
    made = [found for found in vars(arrow_folder).values() if isinstance(found, type)]
    for contract in contracts().keys() - OPTIONAL - {"Dialect"}:
        ours = [found for found in made if issubclass(found, getattr(base, contract)) and not isabstract(found)]
        assert ours, contract
