"""A durable log of changes: the buffer of a replication, and a target and source of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.base import Backend, ConnectionConfig, ReadRequest, RunContext, Source, TableInfo, Target
from penstock.backends.change_source import ChangeSource, LogNames, ReadsChanges, TableRequest
from penstock.backends.changelog.capabilities import CAPABILITIES
from penstock.backends.changelog.config import ChangelogConfig
from penstock.errors import ConfigError, ConnectionFailed, Unsupported

if TYPE_CHECKING:
    from penstock.backends.changelog.source import ChangelogSource


class ChangelogBackend(Backend, ReadsChanges):
    capabilities = CAPABILITIES
    config = ChangelogConfig

    def change_source(self, config: ConnectionConfig, names: LogNames, tables: Sequence[TableRequest]) -> ChangeSource:
        del names  # nothing is made there
        return _opened(config, tables)

    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        del request, run
        raise _not_for_pipelines(config)

    def target(self, config: ConnectionConfig, run: RunContext) -> Target:
        del run
        raise _not_for_pipelines(config)

    def test(self, config: ConnectionConfig) -> str:
        folder = _mine(config).folder
        if not folder.is_dir():
            raise ConnectionFailed(
                f"there is no log at {folder}", why="the folder does not exist", remedy="correct the path"
            )
        source = _opened(config, ())
        end = source.end
        return f"{len(source.known())} tables" + (f", up to {end.commit:X}" if end is not None else ", no changes yet")

    def tables(self, config: ConnectionConfig) -> list[TableInfo]:
        return _opened(config, ()).known()

    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        del a, b
        return False, "a log runs no statement"


def _opened(config: ConnectionConfig, tables: Sequence[TableRequest]) -> ChangelogSource:
    from penstock.backends.changelog.source import ChangelogSource

    return ChangelogSource(_mine(config), tables)


def _mine(config: ConnectionConfig) -> ChangelogConfig:
    if not isinstance(config, ChangelogConfig):
        raise ConfigError(f"connection {config.name!r} is not a changelog connection")
    return config


def _not_for_pipelines(config: ConnectionConfig) -> Unsupported:
    return Unsupported(
        f"connection {config.name!r} is a log of changes: a pipeline neither reads nor writes it",
        remedy=f'[replications.NAME] source = "{config.name}" brings its tables into a database',
    )


__all__ = ["ChangelogBackend", "ChangelogConfig"]
