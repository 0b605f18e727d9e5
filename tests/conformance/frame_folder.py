"""A backend whose ends are Spark's own: tables as Parquet files that Spark reads and writes itself.

Rows count once a manifest names their file. Besides, what the arrow folder says of itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from penstock.backends.base import (
    Load,
    LoadPlan,
    ReadRequest,
    ReadsFrames,
    Receipt,
    RunContext,
    Sink,
    Source,
    Split,
    Target,
    Window,
    WritesFrames,
)
from penstock.schema import Column
from tests.conformance.arrow_folder import (
    CAPABILITIES,
    ArrowFolder,
    FolderConfig,
    FolderLoad,
    FolderSource,
    FolderTarget,
)


class FrameConfig(FolderConfig):
    schemes = ("frames",)

    type: Literal["framefolder"] = "framefolder"  # type: ignore[assignment]  # its own word


class FrameSource(FolderSource, ReadsFrames):
    reader = "Spark's own Parquet reader"

    def frame(self, spark: Any, columns: Sequence[Column], schema: Any) -> Any:
        return spark.read.schema(schema).parquet(*(str(self.folder / name) for name in self.manifest.files))

    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        raise AssertionError("Spark reads it")


class FrameLoad(FolderLoad):
    @property
    def staging(self) -> Path:
        return self.folder / f"{self.plan.run.run_id}-staging"

    def sink(self, table: int) -> Sink:
        raise AssertionError("Spark writes it")

    def abort(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)


class FrameTarget(FolderTarget, WritesFrames):
    writer = "Spark's own Parquet writer"

    def begin(self, plan: LoadPlan) -> Load:
        return FrameLoad(self.folder, plan)

    def write_frame(self, load: Load, table: int, frame: Any) -> list[Receipt]:
        assert isinstance(load, FrameLoad)
        frame.write.parquet(str(load.staging))
        files = sorted(load.staging.glob("part-*.parquet"))
        return [
            Receipt(
                table, part, pq.read_metadata(file).num_rows, file.stat().st_size, f"{load.staging.name}/{file.name}"
            )
            for part, file in enumerate(files)
        ]


class FrameFolder(ArrowFolder):
    capabilities = replace(CAPABILITIES, name="framefolder", title="Spark's files")
    config = FrameConfig

    def source(self, config: Any, request: ReadRequest, run: RunContext) -> Source:
        return FrameSource(config.path, request)

    def target(self, config: Any, run: RunContext) -> Target:
        return FrameTarget(config.path, run)
