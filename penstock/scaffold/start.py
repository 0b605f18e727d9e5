"""Writes a new project into a folder, and makes the sample database that it reads.

What is there already is never touched: one file of a name that is needed, and nothing is written.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.errors import UNTOUCHED, ConfigError, PenstockError

# Names in the package, which keeps no hidden file, and in the project.
TEMPLATES = {
    "penstock.toml": "penstock.toml",
    "pipelines.py": "pipelines.py",
    "test_pipelines.py": "test_pipelines.py",
    "shop.py": "shop.py",
    "README.md": "README.md",
    "gitignore": ".gitignore",
}
SHOP = "shop.duckdb"


@dataclass(frozen=True, slots=True)
class Step:
    """A command to type next."""

    command: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Started:
    """What was made, and how to go on."""

    folder: Path
    files: tuple[str, ...]
    next: tuple[Step, ...]


def start(folder: Path, schema: str, schema_file: str) -> Started:
    """A project in `folder`, which may be there already; `schema` is what `schema_file` holds."""
    texts = {
        own: (files("penstock.scaffold") / "project" / name).read_text(encoding="utf-8")
        for name, own in TEMPLATES.items()
    } | {schema_file: schema}
    _check(folder, [*texts, SHOP])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # "x": whatever has come between the check and here stays as it is.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(
            f"the project cannot be written to {folder}",
            why=error.strerror or type(error).__name__,
            kept="files that were there are as they were",
            remedy="penstock init ANOTHER",
        ) from error
    _seed(folder)
    return Started(folder, (*texts, SHOP), _steps(folder))


def _check(folder: Path, names: list[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", kept=UNTOUCHED, remedy="penstock init ANOTHER")
    there = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise ConfigError(
            f"{folder} already holds {', '.join(there)}",
            why="init never overwrites a file",
            kept=UNTOUCHED,
            remedy="penstock init ANOTHER, or move them away",
        )


def _seed(folder: Path) -> None:
    """By the project's own script, so that a clone of the project makes the very same shop."""
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise PenstockError(
            "the sample database could not be made",
            why=(done.stderr.strip().splitlines() or [f"shop.py ended with {done.returncode}"])[-1],
            kept="the project's files are written",
            remedy=f"cd {shlex.quote(str(folder))} && python shop.py",
        )


def _steps(folder: Path) -> tuple[Step, ...]:
    here = Path.cwd()
    near = folder.resolve()
    shown = str(near.relative_to(here)) if near.is_relative_to(here) else str(near)
    go = () if near == here else (Step(f"cd {shlex.quote(shown)}", "the project"),)
    return (
        *go,
        Step("penstock plan customers", "what a run would do, and why"),
        Step("penstock run --all", "load the warehouse"),
        Step("penstock runs list", "what was run"),
        Step("penstock add shop main.orders", "a pipeline more, written by looking at the table"),
        Step("python -m pytest", "the project's own tests (pip install pytest)"),
    )
