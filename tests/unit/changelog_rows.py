"""Segments made by hand, logs of them, and a disk that tells what was asked of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends import changes
from penstock.backends.changelog.chain import Chain
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


def fill(chain: Chain, *segments: Segment) -> None:
    for number, one in enumerate(segments, 1):
        chain.append(one, number)


def same(one: Segment, other: Segment) -> bool:
    return (
        (one.after, one.until, one.stored, one.notes) == (other.after, other.until, other.stored, other.notes)
        and one.transactions.equals(other.transactions)
        and [table.version for table in one.tables] == [table.version for table in other.tables]
        and all(a.rows.equals(b.rows) for a, b in zip(one.tables, other.tables, strict=True))
    )


def streamed(count: int) -> pa.Table:
    made = rows([(0, n, str(n)) for n in range(count)])
    return made.append_column("sub", pa.array([7 + n % 2 for n in range(count)], pa.int64()))


class Disk:
    """Writes down what the kernel is asked for, in order: opened folders and files by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        for name in ("fsync", "link", "mkdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *args: Any, **options: Any) -> Any:
            self.calls.append((name, self._named(name, what, args)))
            return real(what, *args, **options)

        return call

    @staticmethod
    def _named(name: str, what: Any, args: tuple[Any, ...]) -> str:
        if name == "fsync":
            path = Path(os.readlink(f"/proc/self/fd/{what}"))
            return f"{path.name}/" if stat.S_ISDIR(os.fstat(what).st_mode) else f"{path.name}:{os.fstat(what).st_size}"
        return Path(args[0] if name == "link" else what).name
