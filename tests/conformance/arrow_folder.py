"""A backend that Penstock knows nothing of: tables as Arrow files in a folder, each with a manifest.

Rows count once a manifest names their file, and a manifest is replaced in one step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

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
    TableInfo,
    Target,
    TargetColumn,
    TargetTable,
    Verdict,
    Window,
)
from penstock.errors import SourceError
from penstock.schema import Column, Ddl, Schema, TableName

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


@dataclass
class Manifest:
    """What a table is made of."""

    schema: str  # Arrow's, serialised
    files: list[str] = field(default_factory=list)

    @staticmethod
    def read(folder: Path, table: str) -> Manifest | None:
        path = folder / f"{table}.json"
        return Manifest(**json.loads(path.read_text())) if path.exists() else None

    def write(self, folder: Path, table: str) -> None:
        beside = folder / f".{table}.json"
        beside.write_text(json.dumps(vars(self)))
        beside.replace(folder / f"{table}.json")

    @property
    def arrow(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self.schema)))


@dataclass(frozen=True)
class FilePartition(Partition):
    file: Path
    columns: tuple[Column, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self.file)) as opened:
            for batch in pa.ipc.open_stream(opened):
                yield pa.RecordBatch.from_arrays(
                    [batch.column(column.name).cast(column.type) for column in self.columns],
                    schema=pa.schema([pa.field(c.name, c.type, c.nullable) for c in self.columns]),
                )


class FolderSource(Source):
    def __init__(self, folder: Path, request: ReadRequest) -> None:
        assert request.table is not None, "its capabilities say that it runs no query"
        found = Manifest.read(folder, request.table.table)
        if found is None:
            raise SourceError(f"there is no table {request.table}", kept="nothing was touched")
        self.folder, self.manifest = folder, found

    def schema(self) -> Schema:
        return Schema.of([Column(f.name, f.type, nullable=f.nullable) for f in self.manifest.arrow])

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
    schema: pa.Schema

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        beside, final = (self.folder / f"{self.run_id}-{name}" for name in (f"{part}.{os.getpid()}", f"{part}.arrow"))
        rows = 0
        with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_stream(file, self.schema) as out:
            for batch in batches:
                arrays = [batch.column(name) for name in self.schema.names]
                out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
                rows += batch.num_rows
        beside.rename(final)
        return Receipt(0, part, rows, final.stat().st_size, final.name, os.getpid())


class FolderLoad(Load):
    def __init__(self, folder: Path, plan: LoadPlan) -> None:
        self.folder, self.plan, [self.load] = folder, plan, plan.tables
        self.schema = pa.schema([pa.field(s.column.name, s.column.type) for s in self.load.columns])

    def sink(self, table: int) -> Sink:
        return FileSink(self.folder, self.plan.run.run_id, self.schema)

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        name = self.load.table.table
        found = Manifest.read(self.folder, name) or Manifest(self.schema.serialize().to_pybytes().hex())
        kept = [] if self.load.replaces else found.files
        Manifest(found.schema, [*kept, *(receipt.ref for receipt in receipts)]).write(self.folder, name)
        rows = sum(receipt.rows for receipt in receipts)
        self.result = LoadResult(rows, rows, 0, 0)
        return self.result

    def abort(self) -> None:
        for file in self.folder.glob(f"{self.plan.run.run_id}-*"):
            file.unlink()

    def close(self) -> None:
        """Nothing is held."""


class FolderTarget(Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def inspect(self, table: TableName) -> TargetTable | None:
        found = Manifest.read(self.folder, table.table)
        return found and TargetTable(table, tuple(TargetColumn(f.name, str(f.type)) for f in found.arrow))

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        sql = str(column.type)
        fits = cast is None and (existing is None or existing.type_sql == sql)
        return Native(sql, Verdict.EXACT if fits else Verdict.REFUSED)

    def render(self, ddl: Ddl) -> list[str]:
        return []

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        return None

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
        return FolderTarget(config.path)

    def test(self, config: Any) -> str:
        return f"Arrow files, pyarrow {pa.__version__}"

    def tables(self, config: Any) -> list[TableInfo]:
        return [TableInfo(TableName(None, path.stem), "table", None, None) for path in config.path.glob("[!.]*.json")]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        return False, "its capabilities say that it runs no statement"
