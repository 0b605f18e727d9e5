"""Rows of which a change brings only a part, and the target has nothing: read whole, by their keys, at a new moment.

Between the moments that a copy is read at, an update may move a row from a range that is not read yet into one that
is: then no range has it, and the log has only what was changed of it. What is read instead is later than the change,
and later changes of the row up to that moment do not count: so the table is exact only behind it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.change_source import ChangeSource, CopyMoment
from penstock.backends.changes import TRANSACTIONS, Position, TableVersion
from penstock.replicate.fold import Folded
from penstock.schema import TableName


class Moments:
    """Moments that are asked for, each in a thread of its own: a source may let us wait for its writers for long."""

    def __init__(self, source: ChangeSource) -> None:
        self._source = source
        self._asked: dict[TableName, Future[CopyMoment]] = {}

    def asked(self, table: TableName) -> bool:
        return table in self._asked

    def ask(self, table: TableName) -> None:
        future: Future[CopyMoment] = Future()
        self._asked[table] = future
        threading.Thread(target=self._take, args=(future,), name="penstock-moment", daemon=True).start()

    def _take(self, future: Future[CopyMoment]) -> None:
        try:
            future.set_result(self._source.moment())
        except BaseException as error:  # noqa: BLE001  raised by whoever has asked
            future.set_exception(error)

    def taken(self, table: TableName, behind: Position) -> CopyMoment | None:
        """The moment, once and for all; None while it is waited for, or if it lies before what the table has."""
        if not self._asked[table].done():
            return None
        found = self._asked.pop(table).result()
        if found.commit > behind.commit:
            return found
        found.close()
        return None

    def close(self) -> None:
        """None of them is wanted any more."""
        for future in self._asked.values():
            future.add_done_callback(_let_go)


def _let_go(future: Future[CopyMoment]) -> None:
    if future.exception() is None:
        future.result().close()


def made_whole(
    version: TableVersion, folded: Folded, transactions: pa.Table, moment: CopyMoment
) -> tuple[Folded, pa.Table]:
    """The changes without those that bring a part of a row, with the rows that these belong to; and transactions.

    The last transaction is the moment: the rows are of it. One that is not there at the moment goes here too, whatever
    the target has of it: a later change takes it away, or brings it elsewhere, and then it is read there.
    """
    rows = folded.upserts
    flags = [f"u{n}" for n in range(len(version.columns)) if f"u{n}" in rows.column_names]
    if not flags:
        return folded, transactions
    partial = np.zeros(rows.num_rows, bool)
    for name in flags:
        partial |= rows[name].fill_null(False).to_numpy(zero_copy_only=False)
    parts = rows.filter(pa.array(partial))
    keys = {column.name: parts[f"n{n}"] for n, column in enumerate(version.columns) if column.key}
    found = moment.rows(version, pa.table(keys))
    last = transactions.num_rows
    whole = {"tx": pa.repeat(pa.scalar(last, pa.int32()), found.num_rows)}
    whole |= {f"n{n}": found[column.name] for n, column in enumerate(version.columns)}
    upserts = pa.concat_tables(
        [rows.filter(pa.array(~partial)).drop_columns(flags), pa.table(whole)], promote_options="default"
    )
    origins = [name for name in folded.deletes.column_names if name.startswith("k")]
    had = parts.filter(pc.is_valid(parts[origins[0]]))
    deletes = pa.concat_tables([folded.deletes, had.select(folded.deletes.column_names)], promote_options="default")
    at = {"commit": [moment.commit], "end": [moment.commit], "at": [moment.at], "changes": [0]}
    return (
        Folded(folded.truncated, upserts, deletes, folded.changes),
        pa.concat_tables([transactions, pa.table(at, schema=TRANSACTIONS)]),
    )
