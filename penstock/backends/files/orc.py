"""ORC, by Spark's own reader and writer: a run goes through Spark.

Spark's ORC moments are not all what they were: one before 1970 with a part of a second came back a second
later, and the days that the calendar left out in 1582 became others. So moments are written without a
zone, in UTC, which ORC files of Spark hold as whole microseconds; dates in those days, and infinite
ones, stop the run. Never reads or writes a row by any other means.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pyarrow as pa

from penstock.backends.base import (
    Load,
    Native,
    ReadRequest,
    ReadsFrames,
    Receipt,
    RunContext,
    Split,
    TargetColumn,
    Verdict,
    Window,
    WritesFrames,
)
from penstock.backends.files import types
from penstock.backends.files.config import FilesConfig
from penstock.backends.files.manifest import DataFile
from penstock.backends.files.pieces import Piece
from penstock.backends.files.place import Mark
from penstock.backends.files.read import FilesSource
from penstock.backends.files.write import FilesLoad, FilesTarget
from penstock.backends.moments import utc_clock, without_zone
from penstock.backends.staging import sync
from penstock.errors import DataError, PlanRefused, SourceError, TargetError
from penstock.schema import Column
from penstock.schema.words import parse

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

# What a task holds of a file that it writes, and of each that it reads: ORC's own 64 MiB held several times as much
# in the JVM, for files that were no smaller and no quicker to read.
STRIPE_BYTES = 16 * 1024 * 1024

# Days since 1970 that come back as they were: from 4714 BC to 9999, but for 5 to 14 October 1582.
_DAYS = (-2_440_588, 2_932_896)
_LEFT_OUT = (-141_437, -141_428)
_OUT_OF_RANGE = "penstock: a date that ORC does not keep, column "

# A session may have been told to leave out what it cannot read: then rows would be missing without a word.
_WHOLE = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


class OrcSource(FilesSource, ReadsFrames):
    """ORC files; their rows are read by Spark, what they are is known from manifests or declared."""

    _asked = False

    def __init__(self, config: FilesConfig, request: ReadRequest, run: RunContext) -> None:
        super().__init__(config, request, run)
        self._limit = request.limit
        if any(entry.dialect.format != "orc" for entry in self.listing.entries):
            raise PlanRefused(f"{self.place.shown} holds ORC and other files", remedy="read them apart")
        self._require_types(config)

    def _require_types(self, config: FilesConfig) -> None:
        """Files of others beside ours: where the table's type does not hold theirs, Spark would give NULL."""
        declared = config.table(self.place.table).columns
        others = [entry for entry in self.listing.entries if not entry.own]
        if not others or self.listing.chain.last is None:
            return
        for there in self.listing.columns:
            column = parse(declared[there.name]).column(there.name)
            if types.wider(column.type, there.type) != there.type:
                raise SourceError(
                    f"{others[0].path} and the table's manifest have different types of column {there.name}",
                    why=f"{column.describe()} and {there.describe()}",
                    remedy="read the files apart, each by its name, or write them with the table's types",
                )

    @property
    def reader(self) -> str:
        return "Spark's own ORC reader"

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        del columns, want, window  # the contract says that nobody asks
        raise PlanRefused("ORC is read by Spark", remedy="leave `path` out")

    def frame(self, spark: SparkSession, columns: Sequence[Column], schema: StructType) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructField, StructType

        known = {column.name: column.type for column in self.listing.columns}
        for column in columns:
            if known[column.name] != column.type:
                raise PlanRefused(
                    f"column {column.name} is read from ORC as it is",
                    why=f"it is {known[column.name]}, and {column.type} was asked for",
                    remedy="cast it in a transform",
                )
        self._asked = True
        held = StructType([StructField(field.name, without_zone(field.dataType), True) for field in schema.fields])
        paths = [_literal(Piece(entry).path()) for entry in self.listing.entries]
        read = spark.read.schema(held).options(**_WHOLE)
        frame = read.orc(paths) if paths else spark.createDataFrame([], held)
        if self._limit is not None:
            frame = frame.limit(self._limit)
        chosen = [f.col(_quoted(field.name)).cast(field.dataType).alias(field.name) for field in schema.fields]
        return frame.select(*chosen)

    def close(self) -> None:
        """All rows are staged: the files must be what they were at planning."""
        if self._asked:
            self._asked = False
            for entry in self.listing.entries:
                Piece(entry).path()


class OrcTarget(FilesTarget, WritesFrames):
    """A connection whose format is ORC."""

    by_spark = True

    @property
    def writer(self) -> str:
        return "Spark's own ORC writer"

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        made = super().native(column, existing, cast)
        if made.verdict not in (Verdict.EXACT, Verdict.REFUSED):
            note = "Spark writes ORC, and no value is cast on the way"
            return replace(made, verdict=Verdict.REFUSED, note=note, remedy="cast it in a transform")
        if made.verdict is Verdict.EXACT and _holds_dates(column.type) and not pa.types.is_date32(column.type):
            note = "dates inside of other types are not kept exactly by Spark's ORC"
            return replace(made, verdict=Verdict.REFUSED, note=note, remedy=f'columns.{column.name} = "text"')
        return made

    def write_frame(self, load: Load, table: int, frame: DataFrame) -> list[Receipt]:
        if not isinstance(load, FilesLoad):
            raise TargetError("the load is not of files")
        from pyspark.sql import functions as f

        folder = load.folder / f"orc-{uuid.uuid4().hex}"
        chosen = [_kept(field.name, field.dataType) for field in frame.schema.fields]
        try:
            frame.select(*chosen).write.option("orc.stripe.size", STRIPE_BYTES).orc(str(folder))
        except Exception as error:
            if _OUT_OF_RANGE not in str(error):
                raise
            name = str(error).partition(_OUT_OF_RANGE)[2].partition("\n")[0].split("'")[0].split(" SQLSTATE")[0]
            raise DataError(
                f"column {name.strip()} has a date that ORC does not keep",
                why="it is infinite, before 4714 BC, after 9999, or one of the days left out in October 1582",
                remedy=f'columns.{name.strip()} = "text"',
            ) from error
        counted = (
            frame.sparkSession.read.options(**_WHOLE)
            .orc(_literal(folder))
            .select(f.col("_metadata.file_path").alias("path"))
            .groupBy("path")
            .count()
            .collect()  # a row per file
        )
        return [
            _receipt(load, table, part, Path(unquote(urlparse(row["path"]).path)), int(row["count"]))
            for part, row in enumerate(sorted(counted, key=lambda row: str(row["path"])))
        ]


def _receipt(load: FilesLoad, table: int, part: int, path: Path, rows: int) -> Receipt:
    name = f"{load.run_id}-{part:05d}-{uuid.uuid4().hex[:8]}.orc"
    path.rename(load.folder / name)
    sync(load.folder / name)
    mark = Mark.of(load.folder / name)
    ref = json.dumps([DataFile(name, rows, mark.size, mark.modified).to_record()])
    return Receipt(table, part, rows, mark.size, ref, os.getpid())


def _kept(name: str, type_: DataType) -> SparkColumn:
    """A column in the form that comes back as it was."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DateType

    column = f.col(_quoted(name))
    if isinstance(type_, DateType):
        days = f.unix_date(column)
        kept = column.isNull() | (days.between(*_DAYS) & ~days.between(*_LEFT_OUT))
        refused = f.raise_error(f.lit(f"{_OUT_OF_RANGE}{name}")).cast(type_)
        return f.when(kept, column).otherwise(refused).alias(name)
    return utc_clock(column, type_).alias(name)


def _holds_dates(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _holds_dates(type_.key_type) or _holds_dates(type_.item_type)
    if pa.types.is_nested(type_):
        return any(_holds_dates(type_.field(place).type) for place in range(type_.num_fields))
    return bool(pa.types.is_date(type_))


def _literal(path: Path) -> str:
    """As Spark takes it for one path: in brackets it would see a pattern, and read whatever matches that."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
