"""A user's SELECT as text: trimmed and restricted at token positions, never printed anew.

sqlglot only finds positions and shapes here. What runs is the user's own text, because a
translator that is wrong once in a thousand queries is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import PlanRefused

_FORBIDDEN = (
    exp.AggFunc,
    exp.Window,
    exp.Subquery,
    exp.Join,
    exp.Lateral,
    exp.Unnest,
    exp.TableSample,
    exp.SetOperation,
    exp.With,
)
_FORBIDDEN_ARGS = (
    "joins",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "distinct",
    "with",
    "with_",
    "locks",
    "windows",
)


@dataclass(frozen=True, slots=True)
class Splittable:
    """A query over one table that may be asked for by ranges of ctid."""

    alias: str  # how its columns are qualified, quoted where the user quotes it
    head: str  # up to and including WHERE, or the whole
    tail: str  # the condition, "" if there is none

    def restricted(self, condition: str) -> str:
        if not self.tail:
            return f"{self.head}\nwhere {condition}"
        return f"{self.head} ({condition}) and ({self.tail}\n)"


def trimmed(sql: str) -> str:
    """The statement without what follows its last token: comments, semicolons, space."""
    tokens = _tokens(sql)
    if tokens is None:
        return sql.strip().rstrip(";").rstrip()
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise PlanRefused("the query is empty", remedy="give a SELECT")
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        raise PlanRefused("the query is more than one statement", why="a semicolon stands inside it")
    return sql[: tokens[-1].end + 1]


def splittable(sql: str) -> tuple[Splittable | None, str]:
    """How to restrict `sql` (already trimmed), or why it cannot be split."""
    tokens = _tokens(sql)
    try:
        parsed = sqlglot.parse_one(sql, dialect="postgres")
    except SqlglotError:
        return None, "its SQL is not understood well enough to split it"
    if tokens is None or not isinstance(parsed, exp.Select):
        return None, "it is not a plain SELECT"
    if any(parsed.args.get(name) for name in _FORBIDDEN_ARGS):
        return None, "it joins, groups, sorts or limits"
    if any(node is not parsed for node in parsed.find_all(exp.Select)) or parsed.find(*_FORBIDDEN) is not None:
        return None, "it aggregates or has a subquery"
    tables = list(parsed.find_all(exp.Table))
    if len(tables) != 1:
        return None, "it does not read exactly one table"
    alias = tables[0].args.get("alias")
    named = alias.this if isinstance(alias, exp.TableAlias) else tables[0].this
    if not isinstance(named, exp.Identifier):
        return None, "it reads a function"
    where = _top_level_where(tokens)
    if (where is None) != (parsed.args.get("where") is None):
        return None, "its WHERE is not found"
    if where is None:
        return Splittable(named.sql(dialect="postgres"), sql, ""), ""
    return Splittable(named.sql(dialect="postgres"), sql[: where.end + 1], sql[where.end + 1 :]), ""


def _tokens(sql: str) -> list[Token] | None:
    try:
        return list(sqlglot.tokenize(sql, read="postgres"))
    except SqlglotError:
        return None


def _top_level_where(tokens: list[Token]) -> Token | None:
    depth = 0
    found = None
    for token in tokens:
        if token.token_type is TokenType.L_PAREN:
            depth += 1
        elif token.token_type is TokenType.R_PAREN:
            depth -= 1
        elif token.token_type is TokenType.WHERE and depth == 0:
            if found is not None:
                return None
            found = token
    return found
