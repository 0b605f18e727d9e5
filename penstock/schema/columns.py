"""Columns and schemas: Arrow's types, plus a logical word where Arrow has none.

The canonical forms, and nothing else, travel between a source and a target:

  bool, int8 … int64, uint8 … uint64, float, double, decimal128(p ≤ 38, s), string, binary,
  date32, time64[us|ns], timestamp[s|ms|us|ns] with zone UTC or none, list<one of these>,
  struct and map of these,
  arrow.uuid (16 bytes), arrow.json (string),
  and `string` with a `Logical`: the canonical text of a type that Arrow has no word for.

±infinity: date32 ±(2³¹−1), timestamps ±(2⁶³−1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

DATE_INFINITY = 2**31 - 1
TIMESTAMP_INFINITY = 2**63 - 1

# Kinds of `Logical` that several backends know. Everything else is `NATIVE`.
NUMERIC = "numeric"  # digits of any length, NaN, ±Infinity
INTERVAL = "interval"  # "1 year 2 mons -3 days +04:05:06.789": Postgres' own output style
ENUM = "enum"
JSON = "json"  # json held as text where the path has no json type (Spark)
UUID = "uuid"  # uuid held as text, likewise
TIME = "time"  # time of day held as text, likewise
NATIVE = "native"  # the source's own text form of its own type
OPAQUE = "opaque"  # likewise, but the text says less than the value: taken only where it is asked for


@dataclass(frozen=True, slots=True)
class Logical:
    """What a column means beyond its Arrow type."""

    kind: str
    labels: tuple[str, ...] = ()  # of an enum, in order

    def to_record(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": list(self.labels)}

    @staticmethod
    def from_record(record: dict[str, Any]) -> Logical:
        return Logical(record["kind"], tuple(record.get("labels", ())))


@dataclass(frozen=True, slots=True)
class Column:
    """One column in canonical form.

    `native` is how the source spells the type, with its backend: "postgres:numeric(38,12)". A
    target of the same backend uses that very type, so a varchar(5) stays a varchar(5).
    """

    name: str
    type: pa.DataType
    logical: Logical | None = None
    native: str = ""
    nullable: bool = True

    def renamed(self, name: str) -> Column:
        return replace(self, name=name)

    def native_in(self, backend: str) -> str | None:
        """The type as `backend` spells it, when that is where the column comes from."""
        head, _, tail = self.native.partition(":")
        return tail if head == backend and tail else None

    def as_text(self) -> Column:
        """The same column in its text form, which every source can give for every type."""
        if self.logical is not None and pa.types.is_string(self.type):
            return self
        return replace(self, type=pa.string(), logical=self.logical or Logical(text_kind(self.type)))

    def describe(self) -> str:
        """For people: the source's own spelling, or the Arrow type."""
        if self.native:
            return self.native.partition(":")[2]
        return str(self.type) if self.logical is None else self.logical.kind


def text_kind(type_: pa.DataType) -> str:
    """The logical kind that the text form of an Arrow type has."""
    if pa.types.is_decimal(type_):
        return NUMERIC
    if isinstance(type_, pa.UuidType):
        return UUID
    if isinstance(type_, pa.JsonType):
        return JSON
    if pa.types.is_time(type_):
        return TIME
    return NATIVE


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns in order; looked up by name, never by position."""

    columns: tuple[Column, ...]

    @staticmethod
    def of(columns: Sequence[Column]) -> Schema:
        return Schema(tuple(columns))

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: str) -> bool:
        return any(column.name == name for column in self.columns)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type, c.nullable) for c in self.columns])
