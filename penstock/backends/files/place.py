"""Where a table's files are, and which of them are data.

    <path>/orders/            a table: all files below it, but for names that begin with `_` or `.`
    <path>/orders.csv         a table of one file
    <path>/orders/_penstock/  what Penstock knows of the table: manifests, staging, lock
    <path>/_penstock/orders.csv/   likewise, of a table of one file

Folders called `name=value` are columns. Nothing outside of the connection's path is ever named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import quote, unquote

from penstock.backends.files.config import FileFormat, FilesConfig, format_of
from penstock.errors import PlanRefused, SourceError, SourceMoved
from penstock.schema import TableName

META = "_penstock"
OWN_NAME = re.compile(r"[0-9a-f]{32}-\d{5}-[0-9a-f]{8}\..+")  # how a load calls its files: run, part, attempt
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_GLOB = re.compile(r"[*?\[]")
MAX_NAME_BYTES = 200  # file systems take 255; names beside it are longer


@dataclass(frozen=True, slots=True)
class Mark:
    """Which file it was: one that is replaced or written to is another."""

    inode: int
    size: int
    modified: int

    @staticmethod
    def of(path: Path) -> Mark:
        stat = path.stat()
        return Mark(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is."""

    table: TableName
    root: Path  # its directory, its file, or where its pattern begins
    kind: Literal["folder", "file", "pattern"]
    pattern: str = ""

    @property
    def base(self) -> Path:
        """The directory that its files are named from."""
        return self.root.parent if self.kind == "file" else self.root

    @property
    def meta(self) -> Path:
        return self.root.parent / META / self.root.name if self.kind == "file" else self.root / META

    @property
    def shown(self) -> str:
        return str(self.root / self.pattern) if self.pattern else str(self.root)

    def overlaps(self, other: Place) -> bool:
        """Whether a file may belong to both."""
        mine, theirs = self.root.resolve(), other.root.resolve()
        return mine == theirs or mine.is_relative_to(theirs) or theirs.is_relative_to(mine)


def locate(config: FilesConfig, table: TableName, *, exists: bool) -> Place:
    """The place of a table; with `exists`, one that is there."""
    root = config.root
    if root.is_file() or (not root.is_dir() and format_of(root.name)[0] is not None):
        if table.table not in (root.name, root.name.partition(".")[0]):
            raise PlanRefused(
                f"connection {config.name!r} is one file, and has no table {table}",
                remedy=f"its table is called {root.name.partition('.')[0]}",
            )
        place = Place(table, root, "file")
    else:
        place = _below(root, table)
    if exists and place.kind == "folder" and not place.root.exists():
        place = _file_of(place)
    if exists and place.kind != "pattern" and not place.root.exists() and not place.meta.is_dir():
        raise SourceError(
            f"there is no table {table} in {config.path}",
            why=f"{place.root} does not exist, and no file {place.root.name}.<format> either",
            remedy=f"see what there is: penstock tables list {config.name}",
        )
    return place


def _below(root: Path, table: TableName) -> Place:
    for part in table.parts:
        steps = PurePosixPath(part)
        wrong = steps.is_absolute() or ".." in steps.parts or "\0" in part or part in (".", "")
        if wrong or any(step.startswith(("_", ".")) for step in steps.parts):
            raise PlanRefused(
                f"{table} is no name of a table of files",
                why="it must stay below the connection's path, and names that begin with _ or . are not data",
                remedy="use another name",
            )
        if any(len(step.encode()) > MAX_NAME_BYTES for step in steps.parts):
            raise PlanRefused(f"the name {part!r} is too long for a file", why=f"{MAX_NAME_BYTES} bytes at most")
    folder = _inside(root, root.joinpath(*table.parts[:-1]))
    if _GLOB.search(table.table) and not (folder / table.table).exists():
        return Place(table, folder, "pattern", table.table)
    path = folder / table.table
    if path.is_file() or (not path.is_dir() and format_of(path.name)[0] is not None):
        return Place(table, _inside(root, path.parent) / path.name, "file")
    return Place(table, _inside(root, path), "folder")


def _inside(root: Path, path: Path) -> Path:
    """With links followed: a table that has two names has one lock, and one list of manifests."""
    found = path.resolve()
    if not found.is_relative_to(root):
        raise PlanRefused(
            f"{path} leads out of the connection's path",
            why=f"it is a link to {found}",
            kept="nothing was touched",
            remedy="make a connection of its own for what it leads to",
        )
    return found


def _file_of(place: Place) -> Place:
    """The file `orders.csv` of a table `orders` that has no folder."""
    folder, stem = place.root.parent, place.root.name
    found = []
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            known, _ = format_of(entry.name)
            if known is not None and entry.name.partition(".")[0] == stem and entry.is_file():
                found.append(entry)
    if len(found) > 1:
        raise SourceError(
            f"table {place.table} may be any of several files",
            why=", ".join(path.name for path in found),
            remedy=f"name the file: table = '\"{found[0].name}\"'",
        )
    return Place(place.table, found[0], "file") if found else place


# ---------------------------------------------------------------- the files of a place


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is there, named from its table's base."""

    name: str
    path: Path
    mark: Mark


def found_files(place: Place) -> list[Found]:
    """Every file of the place that may be data, by name."""
    if place.kind == "file":
        return [Found(place.root.name, place.root, Mark.of(place.root))] if place.root.is_file() else []
    paths = _matched(place) if place.kind == "pattern" else list(_walk(place.root))
    names = ((str(path.relative_to(place.base).as_posix()), path) for path in paths)
    return [Found(name, path, _marked(path)) for name, path in sorted(names)]


def _marked(path: Path) -> Mark:
    try:
        return Mark.of(path)
    except FileNotFoundError as error:
        raise SourceMoved(f"{path} was removed while the table's files were listed") from error


def _matched(place: Place) -> list[Path]:
    paths = []
    for path in place.root.glob(place.pattern):
        steps = path.relative_to(place.root).parts
        if any(_hidden(step) for step in steps):
            continue
        for folder in reversed(path.relative_to(place.root).parents):
            _require_no_link(place.root / folder, place.root)
        _require_no_link(path, place.root)
        if path.is_file():
            paths.append(path)
    return paths


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _hidden(entry.name):
            continue
        _require_no_link(entry, folder)
        if entry.is_dir():
            if not (entry / META).is_dir():  # a table of its own
                yield from _walk(entry)
        elif entry.is_file():
            yield entry


def _require_no_link(entry: Path, root: Path) -> None:
    """Behind a link to a directory may lie what is not this table's, and what a truncate would remove there."""
    if entry != root and entry.is_symlink() and not entry.is_file():
        raise PlanRefused(
            f"{entry} is a link to {'a directory' if entry.is_dir() else 'nothing'}",
            why="a table's files lie in its own folder",
            kept="nothing was touched",
            remedy="remove the link, or name what it leads to as a table of its own",
        )


def matches(pattern: str, name: PurePosixPath) -> bool:
    """Whether a pattern takes a name: `**` any number of folders, everything else one."""
    return _match(tuple(pattern.split("/")), name.parts)


def _match(pattern: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    if not pattern:
        return not steps
    if pattern[0] == "**":
        return any(_match(pattern[1:], steps[count:]) for count in range(len(steps) + 1))
    return bool(steps) and fnmatchcase(steps[0], pattern[0]) and _match(pattern[1:], steps[1:])


def _hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def data_files(place: Place, config: FilesConfig, files: list[Found]) -> list[Found]:
    """The files that are data: others may lie beside them in a folder, but what one file holds is its table's."""
    wanted = config.table(place.table).format or config.format
    if place.kind == "file":
        return files
    return [file for file in files if (told := format_of(file.name)[0]) is not None and wanted in (None, told)]


def agreed_format(place: Place, config: FilesConfig, files: list[Found]) -> tuple[FileFormat, list[Found]]:
    """The format of a table's files, and those that are of it."""
    wanted = config.table(place.table).format or config.format
    told: dict[FileFormat | None, list[Found]] = {}
    for file in files:
        told.setdefault(format_of(file.name)[0], []).append(file)
    if wanted is not None:
        exact = place.kind != "folder"  # named by the user: whatever it is called
        return wanted, files if exact else told.get(wanted, [])
    known = sorted(name for name in told if name is not None)
    if len(known) > 1:
        raise SourceError(
            f"{place.shown} holds files of several formats",
            why=", ".join(f"{told[name][0].name} is {name}" for name in known),
            remedy="set `format`, or name the files: table = '\"orders/*.csv\"'",
        )
    if not known:
        names = ", ".join(file.name for file in files[:3])
        raise SourceError(
            f"there is no data in {place.shown}",
            why=f"it holds {names}, whose names tell no format" if files else "no file matches",
            remedy="set `format`, or correct the name",
        )
    return known[0], told[known[0]]


# ---------------------------------------------------------------- folders that are columns


def folder_values(name: str) -> tuple[tuple[str, str | None], ...]:
    """The columns that a file's folders give it: `region=eu/…`."""
    values = []
    for step in PurePosixPath(name).parts[:-1]:
        key, mark, value = step.partition("=")
        if mark and key:
            text = unquote(value)
            values.append((unquote(key), None if text == HIVE_NULL else text))
    return tuple(values)


def folder_name(column: str, value: str | None) -> str:
    """The folder of a value, as Hive and Spark call it."""
    text = HIVE_NULL if value is None else quote(value, safe=" !$&'()+,;@._-~")
    return f"{quote(column, safe=' _-.')}={text}"
