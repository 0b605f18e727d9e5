"""Rows by their keys, as the log would print them: for a change that has brought only a part of a row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.backends.changes import VALUE, TableVersion
from penstock.backends.postgres.connect import identifier
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.replication import PublishedTable
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.types import BACKEND

KEYS = 5_000  # that are asked for together


def rows_by_key(holder: Holder, table: PublishedTable, version: TableVersion, keys: pa.Table) -> pa.Table:
    """As `CopyMoment.rows`, under the holder's snapshot."""
    named = [column for column in version.columns if column.key]
    # format() prints by the type's own output function, as the log does; a cast to text would not, of every type.
    listed = ", ".join(_printed(f"t.{identifier(column.name)}") for column in version.columns)
    given = ", ".join(f"unnest(%s::pg_catalog.text[]) as k{number}" for number in range(len(named)))
    same = " and ".join(
        f"t.{identifier(column.name)} = k.k{number}::{column.native.removeprefix(f'{BACKEND}:')}"
        for number, column in enumerate(named)
    )
    only = "" if table.kind == "p" else "only "
    rest = f" where ({table.where.replace('%', '%%')})" if table.where else ""
    sql = f"select {listed} from (select {given}) as k join {only}{qualified(version.table)} as t on {same}{rest}"
    found: list[Sequence[str | None]] = []
    for low in range(0, keys.num_rows, KEYS):
        part = keys.slice(low, KEYS)
        found += holder.ask(sql, [part[column.name].to_pylist() for column in named])
    return pa.table(
        {column.name: pa.array([row[n] for row in found], VALUE) for n, column in enumerate(version.columns)}
    )


def _printed(value: str) -> str:
    return f"case when {value} is null then null else pg_catalog.format('%%s', {value}) end"
