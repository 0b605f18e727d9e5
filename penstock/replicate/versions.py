"""A table that changes its form: what differs between two versions of it, and old rows in the form of new ones.

Columns are the same where the source's own number of them is the same: a column that has another name was renamed,
one that has a new number is new, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.backends.changes import VALUE, ChangedColumn, StoredChanges, TableChanges, TableVersion


@dataclass(frozen=True, slots=True)
class Differences:
    """From one version of a table to a later one."""

    added: tuple[ChangedColumn, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    retyped: tuple[tuple[ChangedColumn, ChangedColumn], ...] = ()
    rekeyed: bool = False
    rewritten: bool = False  # the rows may have other values, which nobody has told

    def __bool__(self) -> bool:
        return bool(self.added or self.renamed or self.dropped or self.retyped or self.rekeyed or self.rewritten)


def differences(old: TableVersion, new: TableVersion) -> Differences:
    places = _places(old, new)
    same = [(old.columns[was], column) for column, was in zip(new.columns, places, strict=True) if was is not None]
    kept = {was.name for was, _ in same}
    return Differences(
        added=tuple(column for column, was in zip(new.columns, places, strict=True) if was is None),
        renamed=tuple((was.name, column.name) for was, column in same if was.name != column.name),
        dropped=tuple(column.name for column in old.columns if column.name not in kept),
        retyped=tuple((was, column) for was, column in same if was.native != column.native),
        rekeyed=[was.key for was, _ in same] != [column.key for _, column in same]
        or any(column.key for column, was in zip(new.columns, places, strict=True) if was is None)
        or any(column.key for column in old.columns if column.name not in kept),
        rewritten=old.rewritten(new),
    )


def _places(old: TableVersion, new: TableVersion) -> list[int | None]:
    """Where the old version has each column of the new one."""
    numbers = {column.number: place for place, column in enumerate(old.columns) if column.number}
    names = {column.name: place for place, column in enumerate(old.columns)}
    return [
        numbers.get(column.number) if column.number and numbers else names.get(column.name) for column in new.columns
    ]


def newest(changes: Sequence[TableChanges | StoredChanges]) -> TableVersion:
    """The version of the last change; pieces of one transaction come in their order."""

    def last(place: int) -> tuple[int, int]:
        one = changes[place]
        if isinstance(one, StoredChanges):
            return one.tx, place
        tx, seq = one.rows["tx"].to_numpy(), one.rows["seq"].to_numpy()
        at = int(np.lexsort((seq, tx))[-1])
        return int(tx[at]), int(seq[at])

    return changes[max(range(len(changes)), key=last)].version


def replaced(before: TableVersion, changes: Sequence[TableChanges | StoredChanges]) -> bool:
    """Whether there are changes of which nobody can tell what columns they are of: see `TableVersion.replaced`."""
    return any(before.replaced(version) for version in {one.version for one in changes})


def aligned(changes: Sequence[TableChanges], to: TableVersion) -> pa.Table:
    """The rows of all versions in the columns of one."""
    tables = [one.rows if one.version.columns == to.columns else _align(one, to) for one in changes]
    return pa.concat_tables(tables, promote_options="default")


def _align(changes: TableChanges, to: TableVersion) -> pa.Table:
    rows = changes.rows
    columns = {name: rows[name] for name in ("tx", "seq", "op")}
    for number, was in enumerate(_places(changes.version, to)):
        if was is not None:
            for kind in "nou":
                if f"{kind}{was}" in rows.column_names:
                    columns[f"{kind}{number}"] = rows[f"{kind}{was}"]
            continue
        missing = to.columns[number].missing
        column = pa.array([missing], VALUE).take(pa.array(np.zeros(rows.num_rows, np.int64)))
        columns[f"n{number}"] = column
        if changes.version.identity == "full":
            columns[f"o{number}"] = column
    return pa.table(columns)
