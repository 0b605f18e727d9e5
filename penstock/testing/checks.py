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
    """Assert that a table holds exactly these rows, in any order unless `ordered`; values are compared by `==`.

    A row is a mapping, and all of them name the columns that are compared, or a sequence of all
    columns in the table's order.
    """
    named = [row for row in expected if isinstance(row, Mapping)]
    if named and len(named) < len(expected):
        raise TypeError("the expected rows are mappings or sequences, not both")
    if any(row.keys() != named[0].keys() for row in named):
        # What a row leaves out would have to be guessed: NULL, or anything.
        raise TypeError("the expected rows do not all name the same columns")
    columns = list(named[0]) if named else None
    found = [tuple(row.values()) for row in rows(connection, table, columns)]
    wanted = [tuple(row[name] for name in columns or ()) for row in named] or [tuple(row) for row in expected]
    missing, extra = _difference(found, wanted)
    if missing or extra or (ordered and found != wanted):
        raise AssertionError(_told(table, (len(found), len(wanted)), missing, extra))


Row = tuple[Any, ...]


def _difference(found: list[Row], wanted: list[Row]) -> tuple[list[Row], list[Row]]:
    """What is missing and what is too much, each row as often as it is. Equal values need not sort or hash alike."""
    missing, extra = list(wanted), []
    for row in found:
        if row in missing:
            missing.remove(row)
        else:
            extra.append(row)
    return missing, extra


def _told(table: str, counts: tuple[int, int], missing: list[Row], extra: list[Row]) -> str:
    lines = [f"{table} holds {counts[0]} rows, {counts[1]} were expected"]
    lines += [f"  missing: {row!r}" for row in missing[:SHOWN]] + [f"  extra:   {row!r}" for row in extra[:SHOWN]]
    if not missing and not extra:
        lines.append("  the rows are the same, in another order")
    return "\n".join(lines)
