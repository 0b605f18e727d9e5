"""Columns of times: which of them a moment can be told from.

A moment needs a date or a timestamp, and one without a zone needs to be told its zone: nothing is
guessed from the machine or the session.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from penstock.backends.base import StagedColumn

TimeKind = Literal["zoned", "naive", "date", ""]


def time_kind(staged: StagedColumn) -> TimeKind:
    """What kind of time the target holds in a column; "" of what is none."""
    type_sql = staged.native.sql.lower()
    if type_sql.startswith("timestamp"):
        return "zoned" if "with time zone" in type_sql or type_sql.startswith("timestamptz") else "naive"
    if type_sql == "date":
        return "date"
    return _arrow_kind(staged.column.type)


def _arrow_kind(type_: pa.DataType) -> TimeKind:
    if pa.types.is_timestamp(type_):
        return "zoned" if type_.tz is not None else "naive"
    return "date" if pa.types.is_date(type_) else ""
