"""Cells that are not what their column is read as: SQLite lets a cell be of any class, and turns some into another."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.backends.base import Check
from penstock.backends.sql import KEYS_SHOWN
from penstock.backends.sqlite.types import StoredColumn, joined, literal, toml_key
from penstock.errors import DataError


def wrong_cells(tests: Mapping[str, str], rows: str, where: str, key: str) -> str:
    """A query for the column's name and the key of a few rows of which one of the `tests`, by column, is true."""
    label = " ".join(f"when {test} then {literal(name)}" for name, test in tests.items())
    link = "\nwhere" if not where else f"{where}\n  and"
    any_of = joined(list(tests.values()), "or")
    return f"select case {label} end, {key} from {rows}{link} ({any_of})\nlimit {KEYS_SHOWN}"


def class_check(tests: Mapping[str, str], rows: str, where: str, key: str) -> tuple[Check, ...]:
    """Of a load inside the file, where no worker looks at the cells; nothing where none can be wrong."""
    if not tests:
        return ()
    return (
        Check(
            wrong_cells(tests, rows, where, key),
            "column {0} has cells that are not of its storage class",
            why="SQLite would turn them into it, or refuse them",
            remedy="correct them, or say in a query what they are: cast(… as text)",
            labelled=True,
        ),
    )


def class_error(stored: StoredColumn, keys: tuple[str, ...], place: str) -> DataError:
    return DataError(
        f"column {stored.name!r} holds cells that are no {stored.kind}",
        why=f"it is read as {stored.column.describe()}, and SQLite lets a cell be of any storage class",
        keys=keys,
        kept="nothing was committed",
        remedy=f"correct them, or say in a query what they are: cast({stored.name} as text)",
        place=place,
    )


def value_error(stored: StoredColumn, keys: tuple[str, ...], place: str) -> DataError:
    return DataError(
        f"column {stored.name!r} holds a value that is no {stored.column.describe()}",
        why="it is declared or was loaded as one, and a program has written another value to it",
        keys=keys,
        kept="nothing was committed",
        remedy=f'correct it, or read the column as it stands: columns.{toml_key(stored.name)} = "text"',
        place=place,
    )
