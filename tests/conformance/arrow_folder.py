"""A backend that Penstock knows nothing of: tables as Arrow files in a folder, each with a manifest.

Rows count once a manifest names their file, and a manifest is replaced in one step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from penstock.backends import arrowtypes
from penstock.backends.base import (
    Backend,
    Capabilities,
    ConnectionConfig,
    Cursor,
    Load,
    LoadPlan,
    LoadResult,
    Native,
    Partition,
    ReadRequest,
    Receipt,
    RunContext,
    Sink,
    Source,
    Split,
    StagedColumn,
    TableInfo,
    Target,
    TargetColumn,
    TargetTable,
    Window,
)
from penstock.backends.guard import heed
from penstock.errors import SourceError
from penstock.schema import Column, Ddl, Schema, TableName
from penstock.schema.words import parse, spell

CAPABILITIES = Capabilities(
    name="arrowfolder",
    title="Arrow files",
    extra="",
    reads=True,
    writes=True,
    modes=frozenset({"append", "truncate"}),
    deletes=frozenset(),
    transactional=False,
    atomic_across_tables=False,
    many_writers=False,
    user_sql=False,
    incremental=False,
    max_identifier_bytes=20,
    case_insensitive=True,
    same_database_sql=False,
    queries=False,
)


class FolderConfig(ConnectionConfig):
    path_base: ClassVar[str] = "path"
    schemes: ClassVar[tuple[str, ...]] = ("arrow",)

    type: Literal["arrowfolder"] = "arrowfolder"
    path: Path


@dataclass(frozen=True)
class Manifest:
    """What a table is made of."""

    columns: dict[str, str]  # names with the words of their types
    files: list[str]
    rows: int
    pipelines: dict[str, list[str]]  # that have loaded it, with the columns they brought
    watermarks: dict[str, str | None]  # of pipelines: they count with the rows, in the same step

    @staticmethod
    def read(folder: Path, table: str) -> Manifest | None:
        path = folder / f"{table}.json"
        return Manifest(**json.loads(path.read_text())) if path.exists() else None

    def write(self, folder: Path, table: str) -> None:
        beside = folder / f".{table}.json"
        beside.write_text(json.dumps(asdict(self)))
        beside.replace(folder / f"{table}.json")

    @property
    def schema(self) -> Schema:
        return Schema.of([parse(word).column(name) for name, word in self.columns.items()])


@dataclass(frozen=True)
class FilePartition(Partition):
    file: Path
    columns: tuple[Column, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([pa.field(column.name, column.type) for column in self.columns])
        with pa.OSFile(str(self.file)) as opened:
            for batch in pa.ipc.open_stream(opened):
                # A file from before a column came has none of its values, and may have a narrower type.
                arrays = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class FolderSource(Source):
    def __init__(self, folder: Path, request: ReadRequest) -> None:
        assert request.table is not None, "its capabilities say that it runs no query"
        found = Manifest.read(folder, request.table.table)
        if found is None:
            raise SourceError(f"there is no table {request.table}", kept="nothing was touched")
        self.folder, self.manifest = folder, found  # files are never changed: what it names is one moment

    def schema(self) -> Schema:
        return self.manifest.schema

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        return Split(
            tuple(FilePartition(self.folder / name, tuple(columns)) for name in self.manifest.files), "by file"
        )

    def primary_key(self) -> tuple[str, ...]:
        return ()

    def upper(self, cursor: Cursor) -> str:
        raise AssertionError("its capabilities say that it cannot")


@dataclass(frozen=True)
class FileSink(Sink):
    folder: Path
    run_id: str
    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        beside, final = (self.folder / f"{self.run_id}-{name}" for name in (f"{part}.{os.getpid()}", f"{part}.arrow"))
        schema = pa.schema([pa.field(staged.column.name, arrowtypes.held_type(staged)) for staged in self.columns])
        rows = 0
        with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_stream(file, schema) as out:
            for batch in batches:
                out.write_batch(arrowtypes.cast_batch(batch, self.columns, self.keys))
                rows += batch.num_rows
        beside.rename(final)
        return Receipt(0, part, rows, final.stat().st_size, final.name, os.getpid())


class FolderLoad(Load):
    def __init__(self, folder: Path, plan: LoadPlan) -> None:
        self.folder, self.plan, [self.load] = folder, plan, plan.tables

    def sink(self, table: int) -> Sink:
        return FileSink(self.folder, self.plan.run.run_id, self.load.columns, self.plan.key_columns)

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        name, pipeline = self.load.table.table, self.plan.run.pipeline
        brought = {staged.column.name: spell(arrowtypes.held(staged)) for staged in self.load.columns}
        found = Manifest.read(self.folder, name) or Manifest({}, [], 0, {}, {})
        rows = sum(receipt.rows for receipt in receipts)
        if self.load.guard is not None:
            heed(self.load.guard, self.load.table, found.rows, rows)
        gone = found.rows if self.load.replaces else 0
        Manifest(
            found.columns | brought,
            [*([] if self.load.replaces else found.files), *(receipt.ref for receipt in receipts)],
            found.rows - gone + rows,
            found.pipelines | {pipeline: list(brought)},
            found.watermarks | {pipeline: self.plan.watermark},
        ).write(self.folder, name)
        self.result = LoadResult(rows, rows, 0, gone)
        return self.result

    def abort(self) -> None:
        for file in self.folder.glob(f"{self.plan.run.run_id}-*"):
            file.unlink()

    def close(self) -> None:
        """Nothing is held."""


class FolderTarget(Target):
    def __init__(self, folder: Path, run: RunContext) -> None:
        self.folder, self.run = folder, run
        folder.mkdir(exist_ok=True)

    def inspect(self, table: TableName) -> TargetTable | None:
        found = Manifest.read(self.folder, table.table)
        return found and TargetTable(
            table,
            tuple(TargetColumn(name, word) for name, word in found.columns.items()),
            owners=frozenset(found.pipelines),
            loaded=frozenset(found.pipelines.get(self.run.pipeline, ())),
            rows=found.rows,
        )

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return arrowtypes.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:
        return []

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        found = Manifest.read(self.folder, table.table)
        return found.watermarks.get(pipeline) if found is not None else None

    def begin(self, plan: LoadPlan) -> Load:
        return FolderLoad(self.folder, plan)

    def qualify(self, table: TableName) -> TableName:
        return table

    def has_schema(self, schema: str) -> bool:
        return True


class ArrowFolder(Backend):
    capabilities = CAPABILITIES
    config = FolderConfig

    def source(self, config: Any, request: ReadRequest, run: RunContext) -> Source:
        return FolderSource(config.path, request)

    def target(self, config: Any, run: RunContext) -> Target:
        return FolderTarget(config.path, run)

    def test(self, config: Any) -> str:
        return f"Arrow files, pyarrow {pa.__version__}"

    def tables(self, config: Any) -> list[TableInfo]:
        return [TableInfo(TableName(None, path.stem), "table", None, None) for path in config.path.glob("[!.]*.json")]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        return False, "its capabilities say that it runs no statement"
