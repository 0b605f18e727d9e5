"""How the server spells its types: taken apart, and told from what is no name of a type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.schema.names import split_name

# A type's name: `numeric(38,12)`, `timestamp(3) with time zone`, `"My".type[]`. Without braces,
# which our templates replace.
_PART = r'(?:[^\W\d][\w$]*|"(?:[^"{}\x00]|"")+")'
_FIELD = "(?:year|month|day|hour|minute|second)"
_SPACED = (
    "double precision",
    "bit varying",
    "(?:national )?char(?:acter)?(?: varying)?",
    r"(?:timestamp|time) ?(?:\(\d\))? (?:with|without) time zone",
    f"interval {_FIELD}(?: to {_FIELD})?",
)
_MODIFIER = r"(?:-?\d+|\w+)"
_TYPE_NAME = re.compile(
    rf"(?:{'|'.join(_SPACED)}|{_PART}(?:\.{_PART})?)(?: ?\({_MODIFIER}(?:, ?{_MODIFIER})*\))?(?:\[\d*\])*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A type as `format_type` prints it, taken apart."""

    base: str
    mods: tuple[int, ...] = ()
    array: bool = False

    @property
    def schema(self) -> str | None:
        """Of a type that is not the server's own."""
        parts = split_name(self.base)
        return parts[0] if len(parts) > 1 else None

    @staticmethod
    def parse(text: str) -> Spelling:
        array = text.endswith("[]")
        head = text.removesuffix("[]")
        found = re.fullmatch(r"([^()\"]*)\((-?\d+(?:,-?\d+)*)\)([^()\"]*)", head)
        if found is None:
            return Spelling(head, (), array)
        base = (found.group(1).strip() + " " + found.group(3).strip()).strip()
        return Spelling(base, tuple(int(mod) for mod in found.group(2).split(",")), array)


def is_type_name(text: str) -> bool:
    """Whether `text` names a type and does nothing else: only then may it stand in our SQL."""
    return _TYPE_NAME.fullmatch(text) is not None
