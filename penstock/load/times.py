"""Columns of times: which of them tell a moment.

That takes a date or a timestamp; one without a zone must be told its zone: nothing is guessed from
the machine or the session.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.backends.base import Capabilities, Dialect, StagedColumn, TimeKind
from penstock.load.columns import ColumnsPlan
from penstock.project.model import Pipeline


@dataclass(frozen=True, slots=True)
class Moment:
    """A column of the target that tells when."""

    column: str
    kind: TimeKind
    zone: str  # of a kind that has none of its own

    def instant(self, dialect: Dialect, alias: str) -> str:
        """The moment of a row, as the dialect's `timestamp_type`."""
        return dialect.instant(f"{alias}.{dialect.quote(self.column)}", self.kind, self.zone)


def time_kind(staged: StagedColumn, *, sql: bool) -> TimeKind:
    """What kind of time a target holds in a column; one without SQL has the wire's own types."""
    if not sql:
        return _arrow_kind(staged.column.type)
    type_sql = staged.native.sql.lower()
    if type_sql.startswith("timestamp"):
        return "zoned" if "with time zone" in type_sql or type_sql.startswith("timestamptz") else "naive"
    return "date" if type_sql == "date" else ""


def _arrow_kind(type_: pa.DataType) -> TimeKind:
    if pa.types.is_timestamp(type_):
        return "zoned" if type_.tz is not None else "naive"
    return "date" if pa.types.is_date(type_) else ""


def find_moment(
    option: str, source: str | None, pipeline: Pipeline, columns: ColumnsPlan, capabilities: Capabilities
) -> tuple[Moment | None, list[str]]:
    """The column that an option names, or why it tells no moment."""
    if source is None:
        return None, []
    [name] = columns.named([source])
    staged = next((staged for staged in columns.columns if staged.column.name == name), None)
    if staged is None:
        if any(refused.column.name == name for refused in columns.refused):
            return None, []  # said already
        return None, [f"{option} names {source}, which is no column that is loaded"]
    kind = time_kind(staged, sql=True)
    if not kind:
        return None, [f"{option} needs a timestamp or a date, and {name} is {staged.native.sql}"]
    if kind != "zoned" and pipeline.cursor_timezone is None:
        return None, [
            f"{option} = {source!r} has no time zone, being a {staged.native.sql}:"
            ' say which one its writers mean, cursor_timezone = "UTC"'
        ]
    if kind != "zoned" and not capabilities.time_zones and pipeline.cursor_timezone != "UTC":
        return None, [
            f"{option} = {source!r} is in {pipeline.cursor_timezone}, and {capabilities.title} knows no time zone"
            " but UTC: give it its zone in the query"
        ]
    return Moment(name, kind, pipeline.cursor_timezone or "UTC"), []


def counts_nanoseconds(staged: StagedColumn) -> bool:
    in_target = staged.native.sql.lower().endswith("_ns")
    return in_target or (pa.types.is_timestamp(staged.column.type) and staged.column.type.unit == "ns")
