"""A CREATE TABLE as SQLite keeps it: one column of it gets another type, and all else stays, letter for letter.

Never more than is needed for that is understood. What could mean something else once a column has another storage
class (a CHECK, a generated column, a foreign key) makes the column one that stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.schema.names import folded

_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z) | \s+
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]
    | (?:[A-Za-z0-9_$.]|[^\x00-\x7f])+ | .""",
    re.VERBOSE | re.DOTALL,
)
_TABLE_CONSTRAINTS = frozenset({"constraint", "primary", "unique", "check", "foreign"})
_AFTER_TYPE = frozenset(
    {"constraint", "primary", "not", "null", "unique", "check", "default", "collate", "references", "generated", "as"}
)
# Of a definition: with one of these it would be another rule for another storage class.
_COMPUTES = {"check": "a CHECK names it", "as": "a generated column is made of it"}
_OWN = {
    "check": "it has a CHECK",
    "as": "it is a generated column",
    "collate": "it has a collation",
    "autoincrement": "it is the row's own number",
}


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """Folded and without quotes: what it would be the name of."""
        quote = self.text[0]
        if quote in "\"'`":
            return folded(self.text[1:-1].replace(quote * 2, quote))
        return folded(self.text[1:-1] if quote == "[" else self.text)

    @property
    def word(self) -> str:
        """In small letters; "" of what stands in quotes."""
        return "" if self.text[0] in "\"'`[" else self.text.lower()


@dataclass(frozen=True, slots=True)
class Definition:
    """A column, or a constraint of the table, which has no name."""

    name: str
    type_start: int  # where its type begins, and ends: the same place if it has none
    type_end: int
    words: frozenset[str]  # what it says after its type
    names: frozenset[str]  # what that may name


def definitions(sql: str) -> list[Definition]:
    tokens = tokens_of(sql)
    place = next((number for number, token in enumerate(tokens) if token.text == "("), len(tokens))
    found, part, depth = [], list[Token](), 0
    for token in tokens[place + 1 :]:
        depth += (token.text == "(") - (token.text == ")")
        if depth < 0 or (depth == 0 and token.text == ","):
            found.append(_definition(part))
            part = []
        else:
            part.append(token)
        if depth < 0:
            break
    return found


def tokens_of(sql: str) -> list[Token]:
    """Without spaces and comments."""
    return [
        Token(found[0], found.start())
        for found in _TOKEN.finditer(sql)
        if not found[0].isspace() and not found[0].startswith(("--", "/*"))
    ]


def _definition(part: list[Token]) -> Definition:
    if part[0].word in _TABLE_CONSTRAINTS:
        return Definition("", 0, 0, *_said(part))
    end, depth = 1, 0
    while end < len(part) and (depth or part[end].word not in _AFTER_TYPE):
        depth += (part[end].text == "(") - (part[end].text == ")")
        end += 1
    start = part[1].start if end > 1 else part[0].end
    return Definition(part[0].name, start, part[end - 1].end, *_said(part[end:]))


def _said(part: list[Token]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(token.word for token in part), frozenset(token.name for token in part)


def fixed_columns(found: Sequence[Definition]) -> dict[str, str]:
    """Columns whose class cannot be another one by what the statement says, by folded name, and why not."""
    columns = {one.name for one in found} - {""}
    fixed = {name: why for word, why in _COMPUTES.items() for one in found if word in one.words for name in one.names}
    fixed |= {one.name: why for word, why in _OWN.items() for one in found if word in one.words}
    return {name: why for name, why in fixed.items() if name in columns}


def retyped(sql: str, types: Mapping[str, str]) -> str:
    """The same statement, in which the columns of these folded names have these types."""
    made, end = [], 0
    for one in definitions(sql):
        if one.name in types:
            # `v/**/int(7)not null`, and a column without a type
            before = " " if one.type_start == one.type_end else ""
            after = " " if sql[one.type_end].isalpha() else ""
            made += [sql[end : one.type_start], before, types[one.name], after]
            end = one.type_end
    return "".join([*made, sql[end:]])
