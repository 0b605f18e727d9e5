"""Which columns of its views a transform's SQL may need.

More may be read than is needed, never less: a column is left out only if its name stands nowhere in
the text, and if nothing in the SQL stands for columns without naming them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

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


def columns_read(sql: str, schema: Schema, view: str = "source", others: Sequence[str] = ()) -> Schema:
    """The columns of `view` to read for `sql`, in order; at least one, for rows are counted by it.

    `others` are the views beside it: `o.*` of one of them stands for no column of this one.
    """
    words = {word.lower() for word in re.findall(r"[A-Za-z0-9_]+", sql)}
    if words & UNNAMED or LOOKALIKES & set(sql) or "${" in sql or "|>" in sql or _takes_all(sql, view, others):
        return schema
    folded = Counter(name.lower() for name in schema.names)
    named = [
        column
        for column in schema
        # A name that is written in other ways, or that another one falls together with, is always read.
        if column.name.lower() in words or not _PLAIN.fullmatch(column.name.lower()) or folded[column.name.lower()] > 1
    ]
    return Schema.of(named or list(schema)[:1])


def names(sql: str, view: str) -> bool:
    """Whether the SQL may read the view at all."""
    words = {word.lower() for word in re.findall(r"[A-Za-z0-9_]+", sql)}
    plain = _PLAIN.fullmatch(view.lower()) and not LOOKALIKES & set(sql)
    return not plain or view.lower() in words or "identifier" in words or "${" in sql


def _takes_all(sql: str, view: str, others: Sequence[str]) -> bool:
    """Whether a star may stand for columns of the view; also where the SQL cannot be read, or is no single query."""
    try:
        statements = sqlglot.parse(sql, dialect="spark")
    except SqlglotError:
        return True
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        return True
    elsewhere = _names_of(statements[0], [other for other in others if other.lower() != view.lower()])
    return any(not _counts(star) and _qualifier(star) not in elsewhere for star in statements[0].find_all(exp.Star))


def _names_of(query: exp.Query, views: Sequence[str]) -> set[str]:
    """What the SQL calls these views and nothing else."""
    wanted = {view.lower() for view in views}
    tables = [table for table in query.find_all(exp.Table) if not table.db]
    named = {table.alias_or_name.lower() for table in tables if table.name.lower() in wanted}
    # An alias may stand for two things in two places of the SQL, and a CTE may have a view's name.
    other = {table.alias_or_name.lower() for table in query.find_all(exp.Table) if table.name.lower() not in wanted}
    made = {one.alias_or_name.lower() for kind in (exp.CTE, exp.Subquery) for one in query.find_all(kind)}
    return named - other - made


def _qualifier(star: exp.Star) -> str:
    """`o` of `o.*`, "" of a bare star."""
    column = star.parent
    return column.table.lower() if isinstance(column, exp.Column) and not column.db else ""


def _counts(star: exp.Star) -> bool:
    """`count(*)`, which needs no column."""
    return isinstance(star.parent, exp.Count) and star.arg_key == "this" and not star.parent.expressions
