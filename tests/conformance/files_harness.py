"""Files as an end of the suite: seeded by statements through DuckDB, read back by Penstock's own reader.

A statement runs in a database of the harness's own; what it makes is then laid out as files, as
somebody else's program would. What Penstock has loaded is read by manifests and asked by SQL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from penstock.backends.base import ReadRequest, RunContext
from penstock.backends.files import FilesBackend
from penstock.backends.files.config import FilesConfig
from penstock.backends.files.place import META
from penstock.backends.files.read import FilesSource
from penstock.backends.files.texts import text_of
from penstock.schema import TableName
from tests.conformance.harness import Harness

RUN = RunContext("0" * 32, "harness", Path("unused"))


class FilesHarness(Harness):
    backend = "files"
    schema: ClassVar[str] = "main"

    def __init__(self, root: Path, file_format: str = "parquet", **more: Any) -> None:
        self.root = root
        self.format = file_format
        self._more = more

    def options(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self.root), "format": self.format, **self._more}

    @property
    def config(self) -> FilesConfig:
        return FilesConfig.model_validate(self.options() | {"name": "h"})

    # ------------------------------------------------------------ reading back

    def table(self, name: str, schema: str | None = None) -> pa.Table:
        """All rows of a table, as a source gives them."""
        source = FilesSource(self.config, ReadRequest(TableName(schema or self.schema, name)), RUN)
        columns = list(source.schema())
        batches = [batch for part in source.partitions(columns, 4).partitions for batch in part.read()]
        return pa.Table.from_batches(batches, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            for name in self._tables():
                data = self.table(name)
                quoted = name.replace('"', '""')
                connection.register("_arrow", data)
                connection.execute(f'create table "{quoted}" as select * from _arrow')
                connection.unregister("_arrow")
            return connection.execute(sql).fetchall()

    def _tables(self) -> list[str]:
        folder = self.root / self.schema
        found = FilesBackend().tables(self.config) if folder.is_dir() else []
        return [info.name.table for info in found if info.name.schema == self.schema]

    def has_table(self, table: str) -> bool:
        return table in self._tables()

    def texts(self, table: str) -> list[list[str | None]]:
        """Every cell as its canonical text."""
        data = self.table(table).combine_chunks()
        columns = [text_of(column.combine_chunks()).to_pylist() for column in data.columns]
        return [list(row) for row in zip(*columns, strict=True)]

    def leftovers(self) -> list[str]:
        beside = [path for meta in self.root.rglob(META) for path in meta.rglob("*")]
        staged = [path for path in beside if path.name == "staging" or (path.is_file() and path.suffix != ".json")]
        return [str(path) for path in (*staged, *self.root.rglob("*.penstock.lock"))]

    # ------------------------------------------------------------ seeding

    def execute(self, *statements: str) -> None:
        """Run statements on a database beside, and lay its tables out as files of others."""
        with duckdb.connect(str(self.root.with_suffix(".seed"))) as connection:
            for statement in statements:
                connection.execute(statement)
            tables = [name for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()]
            for name in tables:
                folder = self.root / self.schema / name
                folder.mkdir(parents=True, exist_ok=True)
                quoted, path = name.replace('"', '""'), str(folder / "seed.parquet").replace("'", "''")
                connection.execute(f"copy \"{quoted}\" to '{path}' (format parquet)")
