"""Which columns of the view `source` a transform's SQL may need.

More may be read than is needed, never less: a column is left out only if its name stands nowhere in
the text, and if nothing in the SQL stands for columns without naming them.
"""

from __future__ import annotations

import re
from collections import Counter

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.schema import Schema

# `pivot` groups by what is left over, `natural` joins by what both have; `identifier` makes a name
# out of a text, and `table` hands over a whole relation.
UNNAMED = frozenset({"pivot", "unpivot", "natural", "identifier", "table"})
# Letters beyond ASCII that Spark takes for i, s and k when it compares names.
LOOKALIKES = frozenset("ıİſ\u212a")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def columns_read(sql: str, schema: Schema) -> Schema:
    """The columns to read for `sql`, in order; at least one, for rows are counted by it."""
    words = {word.lower() for word in re.findall(r"[A-Za-z0-9_]+", sql)}
    if words & UNNAMED or LOOKALIKES & set(sql) or "${" in sql or "|>" in sql or _takes_all(sql):
        return schema
    folded = Counter(name.lower() for name in schema.names)
    named = [
        column
        for column in schema
        # A name that is written in other ways, or that another one falls together with, is always read.
        if column.name.lower() in words or not _PLAIN.fullmatch(column.name.lower()) or folded[column.name.lower()] > 1
    ]
    return Schema.of(named or list(schema)[:1])


def _takes_all(sql: str) -> bool:
    """Whether a star stands for columns; also where the SQL cannot be read, or is no single query."""
    try:
        statements = sqlglot.parse(sql, dialect="spark")
    except SqlglotError:
        return True
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        return True
    return any(not _counts(star) for star in statements[0].find_all(exp.Star))


def _counts(star: exp.Star) -> bool:
    """`count(*)`, which needs no column."""
    return isinstance(star.parent, exp.Count) and star.arg_key == "this" and not star.parent.expressions
