"""Time to live: rows older than `keep` go in the load's own transaction, and old ones do not come in.

The bound is one reading of the target's clock, in the type of the column: a row is too old if its
value is below it. A row without a value is kept.
"""

from __future__ import annotations

from penstock.backends import lags
from penstock.backends.base import STAGED, Execute, Step
from penstock.load.modes import ARRIVED, Statement, staged_rows, staged_view

EXPIRY = "_penstock_expiry"  # the bound


def staged_views(statement: Statement) -> list[Step]:
    """The relation of staged rows, without those that are too old.

    A merge would bring them back at every run otherwise, and count them every time.
    """
    ttl, expiry, dialect = statement.pipeline.ttl, statement.expiry, statement.dialect
    if ttl is None or expiry is None:
        return [staged_view(statement)]
    limit = dialect.age_limit(lags.interval(ttl.keep, expiry.column), expiry.kind, expiry.zone)
    column = dialect.quote(expiry.column)
    bound = f"(select ts from {EXPIRY})"
    young = f"({dialect.earlier(column, bound)}) is not true"
    kept = f"select {statement.listed(statement.names)}\nfrom {ARRIVED}\nwhere {young}"
    return [
        # One reading of the clock for the whole load.
        Execute(f"create temporary table {EXPIRY} as select {limit} as ts"),
        Execute(f"create temporary view {ARRIVED} as\n{staged_rows(statement)}"),
        Execute(f"create temporary view {STAGED} as\n{kept}"),
    ]


def expired(statement: Statement) -> list[Step]:
    """Delete what is too old; of a merge also the rows whose successors are.

    Before the guard of the mode compares the target with the source: it must not take rows for
    lost whose time is over.
    """
    expiry = statement.expiry
    if expiry is None or not statement.exists:
        return []
    column, bound = statement.dialect.quote(expiry.column), f"(select ts from {EXPIRY})"
    old = statement.dialect.earlier(f"t.{column}", bound)
    if statement.pipeline.mode == "merge":
        succeeds = statement.dialect.earlier(f"s.{column}", bound)
        arrived = f"select 1 from {ARRIVED} as s where {succeeds} and {statement.same_key('t', 's')}"
        old += f"\n  or exists ({arrived})"
    if statement.pipeline.delete_scope:
        old = f"({statement.pipeline.delete_scope}) and ({old})"
    rows = f"{statement.target} as t\nwhere {old}"
    return [Execute(f"delete from {rows}", "deleted", touches=statement.all_of(rows))]
