"""Names of tables: parts quoted as in SQL, never split or folded by guesswork."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's own name inside its connection."""

    schema: str | None
    table: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.table,) if self.schema is None else (self.schema, self.table)

    def __str__(self) -> str:
        return ".".join(part if _is_plain(part) else '"' + part.replace('"', '""') + '"' for part in self.parts)

    @staticmethod
    def parse(text: str) -> TableName:
        parts = split_name(text)
        if len(parts) > 2:
            raise ConfigError(f"{text!r} is not a table name", why="a table is named by schema.table or table")
        return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def folded(name: str) -> str:
    """The name as systems compare it that do not tell upper from lower case: É and é stay two names there."""
    return name.translate(_LOWER)


_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def _is_plain(part: str) -> bool:
    return part.isidentifier() and part == part.lower()


def split_name(text: str) -> list[str]:
    """The parts of a dotted name; a part in double quotes may hold anything, `""` being a quote."""
    return [part for part, _ in split_parts(text)]


def split_parts(text: str) -> list[tuple[str, bool]]:
    """The same, and whether each part stood in quotes."""
    parts: list[tuple[str, bool]] = []
    rest = text
    while True:
        rest = rest.strip()
        quoted = rest.startswith('"')
        if quoted:
            part, rest = _quoted(text, rest)
        else:
            part, dot, tail = rest.partition(".")
            rest = dot + tail
            part = part.strip()
        if not part:
            raise ConfigError(f"{text!r} is not a name", why="a part of it is empty")
        parts.append((part, quoted))
        rest = rest.strip()
        if not rest:
            return parts
        if not rest.startswith("."):
            raise ConfigError(f"{text!r} is not a name", why="parts are separated by dots")
        rest = rest[1:]


def _quoted(text: str, rest: str) -> tuple[str, str]:
    end = 1
    while True:
        end = rest.find('"', end)
        if end < 0:
            raise ConfigError(f"{text!r} is not a name", why="a double quote is never closed")
        if rest[end : end + 2] == '""':
            end += 2
            continue
        return rest[1:end].replace('""', '"'), rest[end + 1 :]
