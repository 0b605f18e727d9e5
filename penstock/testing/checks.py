"""What a table holds, as Python values, and whether that is what a test expects. For small tables only."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.backends.base import ConnectionConfig, ReadRequest, RunContext
from penstock.backends.registry import backend
from penstock.schema import TableName

SHOWN = 5  # rows of a difference


def rows(connection: ConnectionConfig, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table, read as a pipeline would read them; all columns, or those that are named."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        run = RunContext("0" * 32, "test", Path(folder) / "run")
        source = backend(connection.type).source(connection, ReadRequest(TableName.parse(table)), run)
        try:
            schema = source.schema()
            wanted = [schema[name] for name in columns] if columns is not None else list(schema)
            split = source.partitions(wanted, 1)
            source.hand_out()
            return [row for partition in split.partitions for batch in partition.read() for row in batch.to_pylist()]
        finally:
            source.close()


def assert_rows(
    connection: ConnectionConfig,
    table: str,
    expected: Sequence[Mapping[str, Any] | Sequence[Any]],
    *,
    ordered: bool = False,
) -> None:
    """Assert that a table holds exactly these rows, in any order unless `ordered`.

    A row is a mapping, of which only the columns that it names are compared, or a sequence of all
    columns in the table's order.
    """
    named = [row for row in expected if isinstance(row, Mapping)]
    if named and len(named) < len(expected):
        raise TypeError("the expected rows are mappings or sequences, not both")
    columns = list(dict.fromkeys(name for row in named for name in row)) if named else None
    found = [tuple(row.values()) for row in rows(connection, table, columns)]
    if columns is not None:
        wanted = [tuple(row.get(name) for name in columns) for row in named]
    else:
        wanted = [tuple(row) for row in expected]
    if (found if ordered else _sorted(found)) != (wanted if ordered else _sorted(wanted)):
        raise AssertionError(_difference(table, found, wanted))


def _sorted(values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(values, key=repr)


def _difference(table: str, found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> str:
    missing, extra = list(wanted), []
    for row in found:
        if row in missing:
            missing.remove(row)
        else:
            extra.append(row)
    lines = [f"{table} holds {len(found)} rows, {len(wanted)} were expected"]
    lines += [f"  missing: {row!r}" for row in missing[:SHOWN]] + [f"  extra:   {row!r}" for row in extra[:SHOWN]]
    if not missing and not extra:
        lines.append("  the rows are the same, in another order")
    return "\n".join(lines)
