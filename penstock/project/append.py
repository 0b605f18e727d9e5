"""Adds pipelines to `penstock.toml` as text, so that everything the user wrote stays as it is.

The file is replaced only by one that loads, and in one step: a crash leaves the old or the new one,
never half of either.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import UNTOUCHED, ConfigError, PenstockError
from penstock.project import toml
from penstock.project.load import load_text

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f]')
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class Block:
    """A `[pipelines.NAME]` table to be written."""

    name: str
    options: Mapping[str, str | Sequence[str]]
    comments: Mapping[str, str]  # beside the key of that name
    hints: tuple[str, ...] = ()  # lines of comment at its end

    def text(self) -> str:
        lines = [f"[pipelines.{key(self.name)}]"]
        for name, value in self.options.items():
            written = f"{name} = {string(value) if isinstance(value, str) else strings(value)}"
            comment = self.comments.get(name)
            lines.append(f"{written:<38} # {comment}" if comment else written)
        return "\n".join([*lines, *(f"# {hint}" for hint in self.hints)]) + "\n"


def key(name: str) -> str:
    """A key, quoted where TOML asks for it."""
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def string(value: str) -> str:
    """A TOML string that the loader reads as `value`: a `${` in it is no reference."""
    return _quoted(value.replace("${", "$${"))


def strings(values: Sequence[str]) -> str:
    return f"[{', '.join(string(value) for value in values)}]"


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text) + '"'


def append(file: Path, blocks: Sequence[Block], *, dry_run: bool = False) -> str:
    """Add the blocks at the end of the project's file; what was added.

    With `dry_run` everything is checked and nothing is written.
    """
    before = toml.read_text(file)
    newline = "\r\n" if "\r\n" in before else "\n"
    added = "\n".join(block.text() for block in blocks)
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    after = before + (gap + added).replace("\n", newline)
    try:
        load_text(file, after)
    except PenstockError as error:
        raise ConfigError(
            f"{toml.shown(file)} would not load with what is to be added",
            why=str(error),
            kept=UNTOUCHED,
            remedy=error.remedy or "correct it, or add the pipeline by hand: --dry-run prints it",
        ) from error
    if not dry_run:
        _replace(file, before, after)
    return added


def _replace(file: Path, before: str, after: str) -> None:
    """Put `after` in the file's place, if the file still holds `before`."""
    file = file.resolve()  # a link stays one
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".penstock.toml.")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(after.encode())
            written.flush()
            os.fsync(written.fileno())
        shutil.copymode(file, fresh)
        if toml.read_text(file) != before:
            raise ConfigError(
                f"{toml.shown(file)} was changed in the meantime", kept="nothing was added", remedy="add it again"
            )
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
