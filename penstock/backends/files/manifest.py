"""Manifests: what a table of files is made of. A load is committed when its manifest is there.

    <meta>/00000001.json, 00000002.json, …      one per load, written once, never changed
    <meta>/staging/<run>/…                      files on their way; see backends/staging.py

A manifest is linked into place only if its number is free, after every file that it names is whole
and on the disk. The files are moved to where others see them afterwards: a run that dies in between
is finished by the next one. Until then they are found in staging, so that whoever reads by manifests
sees a load as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.backends.files.config import Dialect
from penstock.backends.files.place import Mark, Place
from penstock.backends.staging import sync, sync_folders
from penstock.errors import PlanStale, StateError
from penstock.observe.failpoints import failpoint
from penstock.schema import Column
from penstock.schema.columns import Logical
from penstock.schema.words import parse, spell_type

FORMAT = 1  # of manifests; a newer one is refused
STAGING = "staging"
# Every so many loads a manifest lists the whole table, so that no reader goes through thousands.
WHOLE_EVERY = 50
READS = 3  # of a chain that is shortened meanwhile
_NAME = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a load, named from the table's base."""

    name: str
    rows: int
    size: int
    modified: int = 0
    folders: tuple[tuple[str, str | None], ...] = ()  # columns that are in its path, not in itself
    lines: bool = True  # of CSV: no value holds a line break, so that it may be cut at any

    def to_record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rows": self.rows,
            "bytes": self.size,
            "modified": self.modified,
            "folders": [list(pair) for pair in self.folders],
            "lines": self.lines,
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> DataFile:
        folders = tuple((name, value) for name, value in record["folders"])
        return DataFile(record["name"], record["rows"], record["bytes"], record["modified"], folders, record["lines"])


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one load: who wrote them, how, and which columns they hold."""

    run: str
    dialect: Dialect
    columns: tuple[Column, ...]
    files: tuple[DataFile, ...]

    def to_record(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "dialect": self.dialect.to_record(),
            "columns": [column_record(column) for column in self.columns],
            "files": [file.to_record() for file in self.files],
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> Group:
        return Group(
            record["run"],
            Dialect(**record["dialect"]),
            tuple(column_of(column) for column in record["columns"]),
            tuple(DataFile.from_record(file) for file in record["files"]),
        )


@dataclass(frozen=True, slots=True)
class Loader:
    """A pipeline that loads into the table."""

    mode: str
    watermark: str | None
    loaded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One load, and what the table is after it."""

    number: int
    run: str
    pipeline: str
    mode: str
    committed_at: str
    rows: int
    columns: tuple[Column, ...]  # of the table, newest schema
    groups: tuple[Group, ...]  # this load's; all of the table's where it is `whole`
    whole: bool
    loaders: dict[str, Loader]
    removes: tuple[tuple[str, Mark], ...] = ()  # files that this load has replaced

    def to_json(self) -> str:
        record = {
            "format": FORMAT,
            "number": self.number,
            "run": self.run,
            "pipeline": self.pipeline,
            "mode": self.mode,
            "committed_at": self.committed_at,
            "rows": self.rows,
            "columns": [column_record(column) for column in self.columns],
            "whole": self.whole,
            "groups": [group.to_record() for group in self.groups],
            "loaders": {
                name: {"mode": one.mode, "watermark": one.watermark, "loaded": list(one.loaded)}
                for name, one in self.loaders.items()
            },
            "removes": [[name, mark.inode, mark.size, mark.modified] for name, mark in self.removes],
        }
        return json.dumps(record, ensure_ascii=False, indent=1)

    @staticmethod
    def from_json(text: str, path: Path) -> Manifest:
        try:
            record = json.loads(text)
            if record["format"] > FORMAT:
                raise StateError(
                    "the table was written by a newer Penstock",
                    why=f"{path} has format {record['format']}, this version knows {FORMAT}",
                    remedy="upgrade penstock",
                )
            return Manifest(
                record["number"],
                record["run"],
                record["pipeline"],
                record["mode"],
                record["committed_at"],
                record["rows"],
                tuple(column_of(column) for column in record["columns"]),
                tuple(Group.from_record(group) for group in record["groups"]),
                record["whole"],
                {
                    name: Loader(one["mode"], one["watermark"], tuple(one["loaded"]))
                    for name, one in record["loaders"].items()
                },
                tuple((name, Mark(*mark)) for name, *mark in record["removes"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} is not a manifest",
                why="it was changed, or only half of it is there",
                remedy="restore it from a copy; without it the rows of its load do not count",
            ) from error


def column_record(column: Column) -> dict[str, Any]:
    """Everything that a column is: what comes back is the same column."""
    return {
        "name": column.name,
        "type": spell_type(column.type),
        "logical": column.logical.to_record() if column.logical else None,
        "native": column.native,
        "nullable": column.nullable,
    }


def column_of(record: dict[str, Any]) -> Column:
    logical = Logical.from_record(record["logical"]) if record["logical"] else None
    return Column(record["name"], parse(record["type"]).type, logical, record["native"], record["nullable"])


# ---------------------------------------------------------------- the chain


@dataclass(frozen=True, slots=True)
class Chain:
    """A table by its manifests, as they are at one moment."""

    place: Place
    last: Manifest | None = None
    groups: tuple[Group, ...] = ()
    removed: dict[str, Mark] = field(default_factory=dict)  # that may still lie there

    @staticmethod
    def read(place: Place) -> Chain:
        for _ in range(READS):
            try:
                return _read(place)
            except FileNotFoundError:
                continue  # the newest run has just removed manifests that it made needless: look again
        return _read(place)

    @property
    def is_newest(self) -> bool:
        """Whether no load was committed since this was read."""
        found = [] if self.place.kind == "pattern" else _numbers(self.place.meta)  # a pattern has none
        return (found[-1][0] if found else 0) == (self.last.number if self.last else 0)

    @property
    def rows(self) -> int:
        return sum(file.rows for group in self.groups for file in group.files)

    def loader(self, pipeline: str) -> Loader | None:
        return None if self.last is None else self.last.loaders.get(pipeline)

    def paths(self, group: Group, file: DataFile) -> tuple[Path, Path]:
        """Where the file is, and where it is while its run has not moved it there."""
        return self.place.base / file.name, staging_base(self.place) / group.run / file.name

    def write(self, manifest: Manifest) -> None:
        """Commit: the manifest appears whole under its number, or not at all if that is taken."""
        meta = self.place.meta
        path = meta / f"{manifest.number:08d}.json"
        # In the run's own staging: if we died before the link, the next sweep takes it away.
        temporary = staging_base(self.place) / manifest.run / "manifest"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            failpoint("commit.loaded")
            # If we died here, no manifest names the files: the next run sweeps them.
            os.link(temporary, path)
            sync(meta)
        except FileExistsError as error:
            raise PlanStale(
                "another run has loaded since this one was planned",
                why=f"{path.name} is there already",
                place=str(self.place.table),
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    def committed(self, number: int, run: str) -> bool:
        """Whether the load is there, looked for in the chain itself."""
        path = self.place.meta / f"{number:08d}.json"
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"), path).run == run
        except FileNotFoundError:
            return False

    def publish(self) -> int:
        """Move the newest load's files to where others see them, and remove what it has replaced. Safe twice.

        If we died anywhere in here, the next run finds the same manifest and goes on.
        """
        if self.last is None:
            return 0
        moved: list[Path] = []
        for group in self.groups:
            for file in group.files if group.run == self.last.run else ():
                final, staged = self.paths(group, file)
                if staged.exists():
                    final.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(staged, final)
                    moved.append(final)
                    failpoint("publish.file")
        # Before anything is removed: what was moved has its place whatever happens.
        sync_folders(moved, self.place.base)
        base = self.place.base.resolve()
        for name, mark in self.last.removes:
            path = self.place.base / name
            if not path.parent.resolve().is_relative_to(base):
                continue  # its folder has become a link since: what lies there is not this table's
            with suppress(FileNotFoundError):
                if Mark.of(path) == mark:  # another file of this name is somebody's new one
                    path.unlink()
                    _remove_empty(path.parent, self.place.base)
                    failpoint("publish.removed")
        return len(moved)

    def forget(self) -> None:
        """Remove manifests that no reader needs: older than the last but one that lists the whole table."""
        wholes = [number for number, whole in _numbers(self.place.meta, wholes=True) if whole]
        for number, _ in _numbers(self.place.meta) if len(wholes) > 1 else ():
            if number < wholes[-2]:
                with suppress(OSError):
                    (self.place.meta / f"{number:08d}.json").unlink()


def staging_base(place: Place) -> Path:
    return place.meta / STAGING


def next_manifest(chain: Chain, manifest: Manifest) -> Manifest:
    """The same load with its number, listing the whole table where it is time for that."""
    number = chain.last.number + 1 if chain.last else 1
    if manifest.whole or number % WHOLE_EVERY:
        return replace(manifest, number=number)
    return replace(manifest, number=number, whole=True, groups=(*chain.groups, *manifest.groups))


def _read(place: Place) -> Chain:
    numbers = [number for number, _ in _numbers(place.meta)]
    manifests: list[Manifest] = []
    for number in reversed(numbers):
        path = place.meta / f"{number:08d}.json"
        manifests.append(Manifest.from_json(path.read_text(encoding="utf-8"), path))
        if manifests[-1].whole:
            break
    if not manifests:
        return Chain(place)
    _require_unbroken(place, manifests)
    groups = tuple(group for manifest in reversed(manifests) for group in manifest.groups)
    return Chain(place, manifests[0], groups, dict(manifests[0].removes))


def _require_unbroken(place: Place, manifests: Sequence[Manifest]) -> None:
    newest = manifests[0].number
    found = [manifest.number for manifest in manifests]
    complete = manifests[-1].whole or manifests[-1].number == 1
    if found != list(range(newest, newest - len(found), -1)) or not complete:
        raise StateError(
            f"a manifest of {place.table} is missing",
            why=f"{place.meta} holds numbers {', '.join(str(number) for number in reversed(found[-3:]))} …",
            remedy="restore it from a copy; without it the rows of its load do not count",
        )


def _numbers(meta: Path, *, wholes: bool = False) -> list[tuple[int, bool]]:
    try:
        names = sorted(entry.name for entry in meta.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
    if not wholes:
        return [(number, False) for number in numbers]
    texts = ((number, (meta / f"{number:08d}.json").read_text(encoding="utf-8")) for number in numbers)
    return [(number, bool(json.loads(text)["whole"])) for number, text in texts]


def _remove_empty(folder: Path, base: Path) -> None:
    while folder != base and folder.is_relative_to(base):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
