"""Reads a TOML file and knows the line of every key in it.

`tomllib` does the reading; the scanner below runs only over text that `tomllib` has accepted, so
it may trust the syntax and needs to follow nothing but keys, brackets and strings.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

KeyPath = tuple[str, ...]

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content, and where each key stands."""

    file: str  # as people would name it: relative to where they are
    content: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """`file:line` of a key, or of the nearest table around it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.file}:{self.lines[path[:end]]}"
        return self.file


def read(path: Path) -> Document:
    return parse(shown(path), read_text(path).removeprefix("\ufeff"))


def read_text(path: Path) -> str:
    """The file as it is, a byte order mark and its line ends included."""
    file = shown(path)
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read", why=error.strerror or type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8", why=f"byte {error.start} is not part of a character", remedy="save it as UTF-8"
        ) from error


def parse(file: str, text: str) -> Document:
    """The content of a text that `file` holds, or would hold."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(file, text, str(error)) from error
    return Document(file, content, _Scanner(text).scan())


def shown(path: Path) -> str:
    """The path as an error shows it: relative when it lies below the working directory."""
    path = path.absolute()
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _syntax_error(file: str, text: str, message: str) -> ConfigError:
    found = _POSITION.search(message)
    why = _POSITION.sub("", message)
    if found is None or found[1] is None:
        where = f"{file}:{max(len(text.splitlines()), 1)}"
        why = f"{why} at the end of the file"
    else:
        where = f"{file}:{found[1]}:{found[2]}"
    return ConfigError("this is not TOML", why=why[:1].lower() + why[1:], place=where)


class _Scanner:
    """Finds the line of every key: headers, dotted and quoted keys, inline tables, arrays."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.counts: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _header(self) -> KeyPath:
        double = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if double else 1
        path = self._resolve(self._key())
        self.at = self.text.index("]", self.at) + (2 if double else 1)
        if double:
            number = self.counts.get(path, -1) + 1
            self.counts[path] = number
            path = (*path, str(number))
        self._note((), path, line)
        return path

    def _resolve(self, key: KeyPath) -> KeyPath:
        """A header below an array of tables means its last element."""
        path: KeyPath = ()
        for part in key[:-1]:
            path = (*path, part)
            if path in self.counts:
                path = (*path, str(self.counts[path]))
        return (*path, key[-1])

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        key = self._key()
        self._note(table, key, line)
        self._skip_blank()
        self.at += 1  # the equals sign
        self._value((*table, *key))

    def _note(self, table: KeyPath, key: KeyPath, line: int) -> None:
        for end in range(1, len(key) + 1):
            self.lines.setdefault((*table, *key[:end]), line)

    def _key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip_blank()
            if self._peek() in "\"'":
                parts.append(self._string())
            else:
                bare = _BARE.match(self.text, self.at)
                if bare is None:
                    return tuple(parts)
                parts.append(bare[0])
                self.at = bare.end()
            self._skip_blank()
            if self._peek() != ".":
                return tuple(parts)
            self.at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip_blank()
        first = self._peek()
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            while self.at < len(self.text) and self._peek() not in ",]}#\n":
                self.at += 1

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        number = 0
        while self._skip_blank() and self._peek() != "]":
            if self._peek() == ",":
                self.at += 1
                number += 1
                continue
            self.lines.setdefault((*path, str(number)), self._line())
            self._value((*path, str(number)))
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip_blank() and self._peek() != "}":
            if self._peek() == ",":
                self.at += 1
            else:
                self._pair(path)
        self.at += 1

    def _string(self) -> str:
        quote = self._peek()
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        start = self.at
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self._peek() == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self._peek() == quote:  # up to two quotes may stand before the fence
            self.at += 1
        # The literal is valid TOML, so TOML itself reads it: escapes come out right.
        value: str = tomllib.loads(f"v = {self.text[start : self.at]}")["v"]
        return value

    def _skip_blank(self) -> bool:
        while self.at < len(self.text):
            if self._peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self._peek() in " \t\n":
                self.at += 1
            else:
                return True
        return False

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1] or "\0"

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1
