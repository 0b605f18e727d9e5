"""Segments made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.backends import changes
from penstock.backends.changes import ChangedColumn, Position, Segment, StoredChanges, TableChanges, TableVersion
from penstock.schema import TableName

ORIGIN = "7000000000000000000:1"
AT = datetime(2031, 5, 6, 7, 8, 9, 123456, UTC)

COLUMNS = (
    ChangedColumn("id", "postgres:bigint", key=True, number=1),
    ChangedColumn("name", "postgres:text", key=False, number=2, missing="x"),
)


def position(commit: int, end: int | None = None) -> Position:
    return Position(ORIGIN, commit, commit + 5 if end is None else end)


def version(*columns: ChangedColumn, table: str = "items", **given: Any) -> TableVersion:
    return TableVersion(TableName("public", table), columns or COLUMNS, **({"identity": "key"} | given))


def rows(values: Sequence[tuple[int, int, str]], op: int = changes.INSERT) -> pa.Table:
    """Of (transaction, place, key)."""
    fields = [changes.TX, changes.SEQ, changes.OP, pa.field("n0", changes.VALUE), pa.field("n1", changes.VALUE)]
    columns: list[list[Any]] = [[tx for tx, _, _ in values], [seq for _, seq, _ in values], [op] * len(values)]
    columns += [[key for _, _, key in values], [None] * len(values)]
    return pa.table(columns, schema=pa.schema(fields))


def segment(after: int, *commits: int, count: int = 1, stored: Sequence[StoredChanges] = ()) -> Segment:
    """A transaction per commit, each with so many rows."""
    transactions = pa.Table.from_pylist(
        [{"commit": commit, "end": commit + 5, "at": AT, "changes": count} for commit in commits], changes.TRANSACTIONS
    )
    made = rows([(tx, n, f"{commit}.{n}") for tx, commit in enumerate(commits) for n in range(count)])
    tables = (TableChanges(version(), made),) if commits and count else ()
    until = position(commits[-1]) if commits else position(after, after + 9)
    return Segment(position(after), until, transactions, tables, tuple(stored), {"note": "ü"})
