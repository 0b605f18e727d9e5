"""What `arrow_folder.py` brings to inherit the suite, and the package that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.backends import registry
from penstock.schema import Column
from penstock.schema.words import spell
from tests.conformance.arrow_folder import FilePartition, Manifest
from tests.conformance.harness import Harness

METADATA = "Metadata-Version: 2.1\nName: penstock-arrow-folder\nVersion: 1.0\n"
POINTS = """[penstock.backends]
arrowfolder = tests.conformance.arrow_folder:ArrowFolder
driverless = tests.conformance.no_such_driver:Backend
"""


class FolderHarness(Harness):
    """It runs no SQL: a DuckDB reads its tables, and makes those that a test wants to be there."""

    backend = "arrowfolder"
    schema = "main"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self) -> dict[str, Any]:
        return {"type": "arrowfolder", "path": str(self.folder)}

    def execute(self, *statements: str) -> None:
        with self._database() as database:
            for statement in statements:
                database.execute(statement)
            for (table,) in database.execute("select table_name from duckdb_tables()").fetchall():
                self._keep(table, database.sql(f'from "{table}"').to_arrow_table())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._database() as database:
            return database.execute(sql).fetchall()

    def leftovers(self) -> list[str]:
        named = {file for manifest in self._manifests().values() for file in manifest.files}
        return sorted(path.name for path in self.folder.glob("*-*") if path.name not in named)

    def _manifests(self) -> dict[str, Manifest]:
        found = {path.stem: Manifest.read(self.folder, path.stem) for path in self.folder.glob("[!.]*.json")}
        return {table: manifest for table, manifest in found.items() if manifest is not None}

    @contextmanager
    def _database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with duckdb.connect(":memory:") as database:
            database.execute("set timezone = 'UTC'")
            for table, manifest in self._manifests().items():
                columns = tuple(manifest.schema)
                batches = [
                    batch for name in manifest.files for batch in FilePartition(self.folder / name, columns).read()
                ]
                schema = pa.schema([pa.field(column.name, column.type) for column in columns])
                database.register("held", pa.Table.from_batches(batches, schema))
                database.execute(f'create table "{table}" as from held')
                database.unregister("held")
            yield database

    def _keep(self, table: str, data: pa.Table) -> None:
        self.folder.mkdir(exist_ok=True)
        file = f"{table}-seed.arrow"
        with pa.OSFile(str(self.folder / file), "wb") as opened, pa.ipc.new_stream(opened, data.schema) as out:
            out.write_table(data)
        before = Manifest.read(self.folder, table)
        Manifest(
            {field.name: spell(Column(field.name, field.type)) for field in data.schema},
            [file],
            data.num_rows,
            before.pipelines if before is not None else {},
            before.watermarks if before is not None else {},
        ).write(self.folder, table)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages with one in it that brings a backend."""
    folder = tmp_path / "site"
    info = folder / "penstock_arrow_folder-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(folder)
    for cached in (registry._points, registry.backend):
        cached.cache_clear()
    yield folder
    for cached in (registry._points, registry.backend):
        cached.cache_clear()


@pytest.fixture
def folder(site: Path, tmp_path: Path) -> FolderHarness:
    return FolderHarness(tmp_path / "lake")
