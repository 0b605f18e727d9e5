"""Local files as sources and targets: Parquet, CSV, JSON Lines and ORC."""

from __future__ import annotations

import os

import pyarrow as pa

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext, Source, TableInfo, Target
from penstock.backends.files.capabilities import CAPABILITIES
from penstock.backends.files.config import FilesConfig, format_of
from penstock.backends.files.manifest import Chain
from penstock.backends.files.place import META, Place, found_files
from penstock.backends.files.read import FilesSource
from penstock.backends.files.write import FilesTarget
from penstock.errors import ConfigError, ConnectionFailed
from penstock.schema import TableName


class FilesBackend(Backend):
    capabilities = CAPABILITIES
    config = FilesConfig

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        return FilesSource(_own(config), request, run)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        return FilesTarget(_own(config), run)

    def test(self, config: ConnectionConfig) -> str:
        root = _own(config).root
        if not root.exists():
            return f"nothing at {root} yet: the first load makes it"
        if not os.access(root, os.R_OK):
            raise ConnectionFailed(f"cannot read {root}", why="permission denied", remedy="make it readable")
        return f"{'a file' if root.is_file() else 'a directory'}, read by pyarrow {pa.__version__}"

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        """Directories and files with data; a directory that only holds others of them is a schema."""
        root = _own(config).root
        if root.is_file():
            return [_info(Place(TableName(None, root.name.partition(".")[0]), root, "file"))]
        found: list[TableInfo] = []
        for entry in sorted(root.iterdir()) if root.is_dir() else ():
            if entry.name.startswith(("_", ".")):
                continue
            if entry.is_file():
                if format_of(entry.name)[0] is not None:
                    found.append(_info(Place(TableName(None, entry.name), entry, "file")))
            elif _is_schema(entry):
                found += [
                    _info(Place(TableName(entry.name, child.name), child, "folder" if child.is_dir() else "file"))
                    for child in sorted(entry.iterdir())
                    if not child.name.startswith(("_", "."))
                ]
            else:
                found.append(_info(Place(TableName(None, entry.name), entry, "folder")))
        return found

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:  # noqa: ARG002  never
        return False, "files run no statement"


def _is_schema(folder: os.PathLike[str]) -> bool:
    """Whether it holds tables of ours rather than being one."""
    with os.scandir(folder) as entries:
        names = {entry.name: entry.is_dir() for entry in entries}
    if META in names:
        return False
    return any(is_folder and os.path.isdir(os.path.join(folder, name, META)) for name, is_folder in names.items())


def _info(place: Place) -> TableInfo:
    chain = Chain.read(place)
    files = found_files(place)
    rows = chain.rows if chain.last is not None else None
    return TableInfo(place.table, "table" if chain.last else "files", rows, sum(file.mark.size for file in files))


def _own(config: ConnectionConfig) -> FilesConfig:
    if not isinstance(config, FilesConfig):
        raise ConfigError(f"connection {config.name!r} is not a files connection")
    return config


__all__ = ["FilesBackend", "FilesConfig"]
