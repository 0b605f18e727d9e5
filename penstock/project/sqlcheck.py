"""Finds transaction control in a user's SQL, also behind comments and between statements.

Only the first words of each statement decide, read by sqlglot's tokenizer: the same words inside
a string, an identifier or a dollar-quoted body are none of our concern. sqlglot is imported only
for projects that have such SQL.
"""

from __future__ import annotations

from typing import Any

# Statements that end, start or change the transaction, by their first words.
CONTROL: tuple[tuple[str, ...], ...] = (
    ("BEGIN",),
    ("START", "TRANSACTION"),
    ("COMMIT",),
    ("END",),
    ("ROLLBACK",),
    ("ABORT",),
    ("SAVEPOINT",),
    ("RELEASE",),
    ("PREPARE", "TRANSACTION"),
    ("SET", "TRANSACTION"),
    ("SET", "LOCAL", "TRANSACTION"),
    ("SET", "SESSION", "TRANSACTION"),
    ("SET", "SESSION", "CHARACTERISTICS"),
    ("SET", "AUTOCOMMIT"),
)
# Of backends whose name sqlglot does not know: strings, comments and dollar quotes as in most.
FALLBACK = "postgres"
WORDS = max(len(words) for words in CONTROL)


class Unreadable(ValueError):
    """The text is not SQL that could be looked into."""


def transaction_control(sql: str, dialect: str = "") -> list[str]:
    """The transaction statements in `sql`, as upper-case words."""
    found: list[str] = []
    for statement in _statements(sql, dialect):
        for words in CONTROL:
            if statement[: len(words)] == words:
                found.append(" ".join(words))
                break
    return found


def _statements(sql: str, dialect: str) -> list[tuple[str, ...]]:
    """The first words of each statement."""
    from sqlglot import TokenType

    statements: list[tuple[str, ...]] = []
    current: list[str] = []
    for token in _tokens(sql, dialect):
        if token.token_type is TokenType.SEMICOLON:
            statements.append(tuple(current))
            current = []
        elif len(current) < WORDS:
            current += token.text.upper().split()
    return [*statements, tuple(current)]


def _tokens(sql: str, dialect: str) -> list[Any]:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import TokenError

    chosen = Dialect.get(dialect) or Dialect.get(FALLBACK) or Dialect
    try:
        return list(chosen().tokenize(sql))
    except TokenError as error:
        # Its text shows a piece of the statement, which may hold a filled-in secret.
        raise Unreadable("it does not split into words; a quote that is never closed?") from error
