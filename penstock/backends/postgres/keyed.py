"""Rows by their keys, as the log would print them: for a change that has brought only a part of a row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from penstock.backends.changes import VALUE, TableVersion
from penstock.backends.postgres.connect import identifier, literal
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.replication import PublishedTable
from penstock.backends.postgres.snapshot import Holder
from penstock.backends.postgres.types import BACKEND

KEYS = 5_000  # that are asked for together
READ_BYTES = 16 * 1024 * 1024  # of the answer, that are read together


def rows_by_key(holder: Holder, table: PublishedTable, version: TableVersion, keys: pa.Table) -> pa.Table:
    """As `CopyMoment.rows`, under the holder's snapshot."""
    named = [column for column in version.columns if column.key]
    found = []
    for low in range(0, keys.num_rows, KEYS):
        part = keys.slice(low, KEYS)
        sql = _select(table, version, [array_literal(part[column.name]) for column in named])
        found += [read_csv(rows, version) for rows in holder.copied(sql, READ_BYTES)]
    schema = pa.schema([pa.field(column.name, VALUE) for column in version.columns])
    return pa.concat_tables([schema.empty_table(), *found])


def _select(table: PublishedTable, version: TableVersion, keys: list[str]) -> str:
    """The texts of the rows whose key columns are, at one place of the arrays, these."""
    named = [column for column in version.columns if column.key]
    # format() prints by the type's own output function, as the log does; a cast to text would not, of every type.
    listed = ", ".join(_printed(f"t.{identifier(column.name)}") for column in version.columns)
    given = ", ".join(f"pg_catalog.unnest({key}::pg_catalog.text[]) as k{number}" for number, key in enumerate(keys))
    same = " and ".join(
        f"t.{identifier(column.name)} = k.k{number}::{column.native.removeprefix(f'{BACKEND}:')}"
        for number, column in enumerate(named)
    )
    only = "" if table.kind == "p" else "only "
    rest = f" where ({table.where})" if table.where else ""
    return f"select {listed} from (select {given}) as k join {only}{qualified(version.table)} as t on {same}{rest}"


def _printed(value: str) -> str:
    return f"case when {value} is null then null else pg_catalog.format('%s', {value}) end"


def array_literal(texts: pa.ChunkedArray) -> str:
    """A constant of `text[]`, as one text made by Arrow."""
    mark, nothing = pa.scalar('"', VALUE), pa.scalar("", VALUE)
    escaped = pc.replace_substring(pc.replace_substring(texts.cast(VALUE), "\\", "\\\\"), '"', '\\"')
    quoted = pc.fill_null(pc.binary_join_element_wise(mark, escaped, mark, nothing), pa.scalar("NULL", VALUE))
    one = pa.LargeListArray.from_arrays(pa.array([0, len(quoted)], pa.int64()), quoted.combine_chunks())
    return literal(f"{{{pc.binary_join(one, pa.scalar(',', VALUE))[0]}}}")


def read_csv(rows: pa.Buffer, version: TableVersion) -> pa.Table:
    """Texts of COPY: NULL is nothing, and an empty text is quoted."""
    names = [column.name for column in version.columns]
    return pa_csv.read_csv(
        pa.BufferReader(rows),
        # All of it is one block: a row that is longer than a block would be refused.
        pa_csv.ReadOptions(column_names=names, block_size=rows.size),
        pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, VALUE),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
