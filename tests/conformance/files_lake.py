"""A directory of files that others have written."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.backends.base import ReadRequest, RunContext
from penstock.backends.files.config import FilesConfig
from penstock.backends.files.read import FilesSource
from penstock.schema import TableName

RUN = RunContext("0" * 32, "p", Path("unused"), batch_bytes=1 << 20, batch_rows=1000)


class Lake:
    """A directory that others have filled."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def parquet(self, name: str, table: pa.Table, **options: Any) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        return path

    def source(
        self, table: str, *, keys: tuple[str, ...] = (), limit: int | None = None, **options: Any
    ) -> FilesSource:
        own = {key: options.pop(key) for key in ("columns", "infer") if key in options}
        name = TableName.parse(table)
        given = {"name": "lake", "path": str(self.root), **options}
        if own:
            given["tables"] = {str(name): own}
        return FilesSource(FilesConfig.model_validate(given), ReadRequest(name, keys=keys, limit=limit), RUN)

    def read(self, table: str, want: int = 1, **options: Any) -> list[dict[str, Any]]:
        source = self.source(table, **options)
        columns = list(source.schema())
        rows: list[dict[str, Any]] = []
        for part in source.partitions(columns, want).partitions:
            for batch in pickle.loads(pickle.dumps(part)).read():  # noqa: S301  as Spark sends it
                assert batch.schema.names == [column.name for column in columns]
                rows += batch.to_pylist()
        return rows
