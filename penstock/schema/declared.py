"""A table as a class declares it: what should exist, in words. Plain data; brings no Arrow."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.schema.names import TableName


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    name: str
    word: str  # the type, see `words.py`
    nullable: bool = False
    key: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table of a connection. Its class is the truth about its columns: the table follows it."""

    title: str  # the class's name, for people
    connection: str
    table: TableName
    columns: tuple[DeclaredColumn, ...]
    place: str = ""  # file:line of the class

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.key)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> DeclaredColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def identity(self) -> tuple[str, str | None, str]:
        """What tells two declared tables apart."""
        return self.connection, self.table.schema, self.table.table

    def __str__(self) -> str:
        return f"{TableName(None, self.connection)}.{self.table}"
