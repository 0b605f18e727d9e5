"""Local files as sources and targets: Parquet, CSV, JSON Lines and ORC."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import (
    Backend,
    ConnectionConfig,
    PartitionField,
    ReadRequest,
    RunContext,
    Source,
    TableInfo,
    Target,
)
from penstock.backends.change_target import Applier, AppliesChanges
from penstock.backends.files import forms
from penstock.backends.files.capabilities import CAPABILITIES
from penstock.backends.files.config import FilesConfig, format_of
from penstock.backends.files.manifest import STAGING, Chain
from penstock.backends.files.place import META, Place, found_files
from penstock.backends.files.read import FilesSource
from penstock.backends.files.write import FilesTarget
from penstock.errors import ConfigError, ConnectionFailed, Unsupported
from penstock.schema import TableName


class FilesBackend(Backend, AppliesChanges):
    capabilities = CAPABILITIES
    config = FilesConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        source = FilesSource(_own(config), request, run)
        if "orc" not in source.formats:
            return source
        from penstock.backends.files.orc import OrcSource

        return OrcSource(_own(config), request, run)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        if _own(config).format == "orc":
            from penstock.backends.files.orc import OrcTarget

            return OrcTarget(_own(config), run)
        return FilesTarget(_own(config), run)

    def unable(
        self, config: ConnectionConfig, table: TableName, partition_by: Sequence[PartitionField]
    ) -> Iterable[Unsupported]:
        return forms.unable(_own(config), table, partition_by)

    def applier(self, config: ConnectionConfig, replication: str) -> Applier:
        from penstock.backends.changelog.apply import LogApplier

        return LogApplier(self.log_of(config, replication))

    def log_of(self, config: ConnectionConfig, replication: str) -> Path:
        """A folder of its own: several replications may write into one connection."""
        return _own(config).root / replication

    def test(self, config: ConnectionConfig) -> str:
        root = _own(config).root
        if not root.exists():
            return f"nothing at {root} yet: the first load makes it"
        if not os.access(root, os.R_OK):
            raise ConnectionFailed(f"cannot read {root}", why="permission denied", remedy="make it readable")
        orc = "orc" in (_own(config).format, format_of(root.name)[0] if root.is_file() else None)
        reader = f"Spark {version('pyspark')}" if orc else f"pyarrow {pa.__version__}"
        return f"{'a file' if root.is_file() else 'a directory'}, read by {reader}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        """Directories and files with data; a directory that only holds others of them is a schema."""
        root = _own(config).root
        places = (
            [Place(TableName(None, root.name.partition(".")[0]), root, "file")] if root.is_file() else _places(root)
        )
        found = [(place, Chain.read(place), found_files(place)) for place in places]
        return [
            TableInfo(
                place.table,
                "table" if chain.last else "files",
                chain.rows if chain.last else None,
                sum(file.mark.size for file in files),
            )
            for place, chain, files in found
            if chain.last or any(format_of(file.name)[0] for file in files)
        ]

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:  # noqa: ARG002  never
        return False, "files run no statement"


def _places(root: Path, schema: str | None = None) -> list[Place]:
    """Directories and files that may be tables, one level of schemas deep."""
    places: list[Place] = []
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir() and schema is None and _is_schema(entry):
            places += _places(entry, entry.name)
        else:
            places.append(Place(TableName(schema, entry.name), entry, "folder" if entry.is_dir() else "file"))
    return places


def _is_schema(folder: Path) -> bool:
    """Whether it holds tables of ours rather than being one."""
    if (folder / META).is_dir():
        return any(child.is_dir() and child.name != STAGING for child in (folder / META).iterdir())
    return any((child / META).is_dir() for child in folder.iterdir())


def _own(config: ConnectionConfig) -> FilesConfig:
    if not isinstance(config, FilesConfig):
        raise ConfigError(f"connection {config.name!r} is not a files connection")
    return config


__all__ = ["FilesBackend", "FilesConfig"]
