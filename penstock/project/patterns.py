"""Which tables of a source `tables = ["public.*", "!public.audit_*"]` means.

A part in double quotes is a name as it is; in any other, `*`, `?` and `[…]` stand for letters. A
pattern with such signs takes only what holds rows of its own: a view would bring the rows of other
tables once more. A table that is named letter by letter is taken whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from penstock.backends.base import TableInfo
from penstock.errors import ConfigError
from penstock.schema import TableName
from penstock.schema.names import folded, split_parts

# Of a partitioned table, the whole is listed and its partitions are not. "files" are those that nobody's load made.
HOLD_ROWS = frozenset({"table", "partitioned table", "files"})


@dataclass(frozen=True, slots=True)
class Pattern:
    """Parts of a table's name with whether each stood in quotes; without a schema, of any schema."""

    parts: tuple[tuple[str, bool], ...]

    @staticmethod
    def parse(text: str) -> Pattern:
        parts = split_parts(text)
        if len(parts) > 2:
            raise ConfigError(f"{text!r} is not a table name", why="a table is named by schema.table or table")
        return Pattern(tuple(parts))

    @property
    def exact(self) -> bool:
        return all(quoted or not set("*?[") & set(part) for part, quoted in self.parts)

    def fits(self, name: TableName) -> bool:
        names = (name.schema or "", name.table)[-len(self.parts) :]
        return all(
            own == part if quoted else fnmatchcase(own, part)
            for own, (part, quoted) in zip(names, self.parts, strict=True)
        )


def match_tables(patterns: Sequence[str], known: Sequence[TableInfo]) -> tuple[list[TableName], list[str]]:
    """What is taken, in the source's order; and the patterns without a sign that fit nothing."""
    wanted = {text: Pattern.parse(text) for text in patterns if not text.startswith("!")}
    unwanted = [Pattern.parse(text[1:]) for text in patterns if text.startswith("!")]

    def taken(info: TableInfo) -> bool:
        fitting = [pattern for pattern in wanted.values() if pattern.fits(info.name)]
        return any(pattern.exact or info.kind in HOLD_ROWS for pattern in fitting) and not any(
            pattern.fits(info.name) for pattern in unwanted
        )

    idle = [
        text for text, pattern in wanted.items() if pattern.exact and not any(pattern.fits(info.name) for info in known)
    ]
    return [info.name for info in known if taken(info)], idle


def clash(
    going: Iterable[tuple[str, TableName]], *, folding: bool, beside: Iterable[tuple[str, TableName]] = ()
) -> tuple[str, str, TableName] | None:
    """The first two sources that would take turns in one table of the target, and that table.

    `going` and `beside` say which source goes where; two of `beside` are no matter here. A target
    without a schema may lie in any.
    """
    seen: dict[str, list[tuple[str, str | None]]] = {}

    def key(part: str) -> str:
        return folded(part) if folding else part

    def note(source: str, target: TableName) -> str | None:
        schema = None if target.schema is None else key(target.schema)
        there = seen.setdefault(key(target.table), [])
        other = [one for one, its in there if one != source and (its is None or schema is None or its == schema)]
        there.append((source, schema))
        return other[0] if other else None

    for source, target in beside:
        note(source, target)
    return next(((other, source, target) for source, target in going if (other := note(source, target))), None)
