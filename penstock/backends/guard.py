"""The guard over loads that replace rows, for targets that have no statement to check it by."""

from __future__ import annotations

from penstock.backends.base import Guard
from penstock.errors import DataError
from penstock.schema import TableName


def heed(guard: Guard, table: TableName, live: int, staged: int) -> None:
    """Stop an empty or sharply shrunk source from emptying a table that somebody relies on."""
    gone = max(live - staged, 0)
    if (staged == 0 and live and not guard.allow_empty) or (staged and gone > guard.max_delete_ratio * live):
        raise DataError(
            f"the source has {staged} rows, and {gone} of the target's {live} rows would go",
            why=f"more than max_delete_ratio = {guard.max_delete_ratio:g}, or the source is empty",
            kept="nothing was committed",
            remedy="if that is right, run with allow_empty = true or a higher max_delete_ratio",
            place=str(table),
        )
