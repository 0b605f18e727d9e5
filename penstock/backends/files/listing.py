"""What a table is: the files that its manifests name, whatever files others have put there, and its columns.

The list is made once, when a source is opened or a target is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import RunContext
from penstock.backends.files import csv, jsonl, orcschema, parquet, types
from penstock.backends.files.config import Dialect, FilesConfig, format_of
from penstock.backends.files.infer import inferred
from penstock.backends.files.manifest import READS, Chain
from penstock.backends.files.pieces import Entry, Piece
from penstock.backends.files.place import (
    OWN_NAME,
    Found,
    Mark,
    Place,
    agreed_format,
    data_files,
    folder_values,
    found_files,
)
from penstock.errors import PenstockError, PlanRefused, SourceError, SourceMoved
from penstock.schema import Column
from penstock.schema.words import parse


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table and its columns, at one moment."""

    entries: tuple[Entry, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    chain: Chain

    @staticmethod
    def of(config: FilesConfig, place: Place, run: RunContext) -> Listing:
        """The table as it is after one load: another that comes in between begins the list anew."""
        for _ in range(READS):
            chain = Chain(place) if place.kind == "pattern" else Chain.read(place)
            try:
                listing = _listed(config, place, chain, run)
            except PenstockError:
                if chain.is_newest:
                    raise
                continue
            if chain.is_newest:
                return listing
        raise SourceMoved(f"{place.shown} is loaded faster than it is listed")


def _listed(config: FilesConfig, place: Place, chain: Chain, run: RunContext) -> Listing:
    own = _own_entries(chain)
    foreign, notes = _foreign(place, chain)
    if chain.last is not None and foreign and not data_files(place, config, foreign):
        notes += (f"{len(foreign)} files are no data and left out",)
        foreign = []
    others: list[Entry] = []
    # A table's one file that others have replaced is theirs as a whole.
    known = chain.last is not None and not (foreign and place.kind == "file")
    columns: tuple[Column, ...] = chain.last.columns if chain.last and known else ()
    if foreign:
        others, columns, told = _foreign_entries(config, place, foreign, columns, run)
        notes += told
    if chain.last is None and not others:
        empty = "no file matches" if place.kind == "pattern" else "it holds no file"
        raise SourceError(
            f"there is no data in {place.shown}",
            why=f"its files are not {config.table(place.table).format or config.format}" if foreign else empty,
            remedy="correct the name; names that begin with _ or . are not data",
        )
    counted = f"{len(own)} files by {'manifests' if chain.last else 'no manifest'}, {len(others)} files of others"
    return Listing((*own, *others), columns, (counted, *notes), chain)


def _own_entries(chain: Chain) -> list[Entry]:
    entries = []
    for group in chain.groups:
        for file in group.files:
            final, staged = chain.paths(group, file)
            if chain.place.kind == "file" and not staged.exists() and not _still_ours(final, file.size, file.modified):
                continue
            entries.append(
                Entry(
                    final,
                    staged,
                    _mark_of(chain, final, staged, file.size),
                    group.dialect,
                    tuple(c for c in group.columns if c.name not in dict(file.folders)),
                    file.folders,
                    file.rows,
                    own=True,
                    lines=file.lines,
                )
            )
    return entries


def _still_ours(path: Path, size: int, modified: int) -> bool:
    """Whether a table's one file is the one that the manifest tells of: others may have replaced it."""
    try:
        mark = Mark.of(path)
    except FileNotFoundError:
        return False
    return (mark.size, mark.modified) == (size, modified)


def _mark_of(chain: Chain, final: Path, staged: Path, size: int) -> Mark:
    for path in (staged, final, staged, final):
        try:
            mark = Mark.of(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if mark.size != size:
            break
        return mark
    raise SourceError(
        f"{final} is not the file that its manifest tells of",
        why="it was removed, or changed since it was written",
        remedy=f"restore it; {chain.place.meta} tells which load it is of",
    )


def _foreign(place: Place, chain: Chain) -> tuple[list[Found], tuple[str, ...]]:
    """The files that no load of ours has written, and what is to be said of the others."""
    files = found_files(place)
    if place.kind == "file":
        known = [file for group in chain.groups for file in group.files]
        staged = any(chain.paths(group, file)[1].exists() for group in chain.groups for file in group.files)
        ours = [f for f in files if any((f.mark.size, f.mark.modified) == (k.size, k.modified) for k in known)]
        return [] if staged or ours else files, ()
    named = {file.name for group in chain.groups for file in group.files}
    kept = [file for file in files if file.name not in named and chain.removed.get(file.name) != file.mark]
    strays = [file for file in kept if OWN_NAME.fullmatch(file.path.name)]
    if strays and chain.last is None:
        copied = "was it copied without its _penstock? " if place.kind == "folder" else ""
        raise PlanRefused(
            f"{place.shown} holds files that Penstock has written",
            why=f"{strays[0].name} counts only if a manifest names it",
            remedy=f"{copied}name the table that they are of, or give them other names",
        )
    notes = (f"{len(strays)} files are named as Penstock's are, in no manifest, and left out",) if strays else ()
    return [file for file in kept if not OWN_NAME.fullmatch(file.path.name)], notes


def _foreign_entries(
    config: FilesConfig, place: Place, files: Sequence[Found], table: tuple[Column, ...], run: RunContext
) -> tuple[list[Entry], tuple[Column, ...], tuple[str, ...]]:
    """The files of others, and the table's columns: those that are known, or what the files tell."""
    wanted_format, data = agreed_format(place, config, list(files))
    notes: list[str] = []
    if len(data) < len(files):
        notes.append(f"{len(files) - len(data)} files are not {wanted_format} and left out")
    declared = {name: parse(text).column(name) for name, text in config.table(place.table).columns.items()}
    section, infers = config.section(place.table), config.infers(place.table)
    if infers and wanted_format == "orc":
        notes.append("infer has no effect on ORC, whose columns are declared")
    entries = []
    for file in data:
        dialect = config.dialect(place.table, wanted_format, format_of(file.name)[1])
        if wanted_format in ("csv", "jsonl") and format_of(file.name)[1] is None:
            dialect = replace(dialect, compression="")  # the option is about what is written
        folders = folder_values(file.name)
        if folders and wanted_format == "orc":
            raise PlanRefused(
                f"{file.path} is in a folder by value",
                why="Spark reads ORC file by file, and would leave its folder's columns empty",
                remedy="name the folder as a table of its own",
            )
        columns = tuple(_columns_of(file, dialect, declared, section))
        names = [column.name for column in columns] + [name for name, _ in folders]
        clash = [name for name, _ in folders if names.count(name) > 1]
        if clash:
            where = "in itself and in its folder" if any(c.name == clash[0] for c in columns) else "in two folders"
            raise PlanRefused(f"{file.path} has column {clash[0]} {where}", remedy="rename one")
        rows = sum(rows for rows, _ in parquet.row_groups(file.path)) if wanted_format == "parquet" else None
        entries.append(Entry(file.path, None, file.mark, dialect, columns, folders, rows))
    known = tuple(table) or tuple(_unified(entries, declared))
    _require_columns(entries, known, declared, table)
    if table and wanted_format == "parquet":
        _require_types(entries, table)
    if not table and infers:
        open_ = {c.name for c in known if c.name not in declared and pa.types.is_string(c.type) and not c.logical}
        if wanted_format in ("csv", "jsonl") or any(entry.folders for entry in entries):
            known, told = _inferred(entries, known, open_, run)
            notes += told
    typed = {column.name: column for column in known}
    if wanted_format != "parquet":
        entries = [replace(e, columns=tuple(typed[c.name] for c in e.columns)) for e in entries]
    return entries, known, tuple(notes)


def _columns_of(file: Found, dialect: Dialect, declared: dict[str, Column], section: str) -> list[Column]:
    if dialect.format == "parquet":
        return parquet.columns_of(file.path, declared, section)
    if dialect.format == "csv":
        if not dialect.header:
            if not declared:
                raise PlanRefused(
                    f"the columns of {file.path} have no names",
                    why="header = false, and none are declared",
                    remedy='declare the table\'s columns in their order: columns = { id = "bigint", … }',
                )
            names = list(declared)
        else:
            names = csv.header(file.path, dialect)
    elif dialect.format == "jsonl":
        names = list(declared) or jsonl.keys(file.path, dialect)
    elif declared:
        return orcschema.columns_of(file.path, declared)
    else:
        raise PlanRefused(
            f"the columns of {file.path} are not known",
            why="ORC is read by Spark alone, which is not asked at planning, and nothing of it is inferred",
            remedy=f'declare all of them: {section} columns = {{ id = "bigint", … }}',
        )
    return [declared.get(name, Column(name, pa.string())) for name in names]


def _unified(entries: Sequence[Entry], declared: dict[str, Column]) -> list[Column]:
    """The columns of all files: types that differ are widened where every value fits, otherwise told."""
    found: dict[str, tuple[Column, Entry]] = {}
    for entry in entries:
        for column in (*entry.columns, *(Column(name, pa.string()) for name, _ in entry.folders)):
            wanted = declared.get(column.name, column)
            if column.name not in found:
                found[column.name] = (wanted, entry)
                continue
            before, first = found[column.name]
            type_ = types.wider(before.type, wanted.type)
            if type_ is None or before.logical != wanted.logical:
                raise SourceError(
                    f"{first.path} and {entry.path} have different types of column {column.name}",
                    why=f"{before.describe()} and {wanted.describe()}",
                    remedy=f'declare it: columns = {{ "{column.name}" = "text" }}, or read the files apart',
                )
            nullable = before.nullable or wanted.nullable
            found[column.name] = (replace(before, type=type_, nullable=nullable), first)
    return [column for column, _ in found.values()]


def _require_columns(
    entries: Sequence[Entry], known: Sequence[Column], declared: dict[str, Column], table: Sequence[Column]
) -> None:
    """Every file has every column: one that lacks some would silently read as NULL."""
    names = {column.name for column in known}
    for entry in entries:
        have = {column.name for column in entry.columns} | {name for name, _ in entry.folders}
        lost, more = sorted((names | set(declared)) - have), sorted(have - names)
        if entry.dialect.format == "jsonl":
            lost = []  # a member that is missing is NULL
        if not lost and not more:
            continue
        other = "the table's manifest" if table else next((str(e.path) for e in entries if e is not entry), "`columns`")
        raise SourceError(
            f"{entry.path} and {other} have different columns",
            why=f"{', '.join(lost)} is missing in the file" if lost else f"only the file has {', '.join(more)}",
            remedy="read the files apart, each by its name, or write them with the same columns",
        )


def _require_types(entries: Sequence[Entry], table: Sequence[Column]) -> None:
    """Every value of every file is one of the table: what others have put there was not cast to it."""
    typed = {column.name: column for column in table}
    for entry in entries:
        for column in entry.columns:
            there = typed[column.name]
            if types.wider(column.type, there.type) != there.type:
                raise SourceError(
                    f"{entry.path} and the table's manifest have different types of column {column.name}",
                    why=f"{column.describe()} and {there.describe()}",
                    remedy="read the files apart, each by its name, or write them with the table's types",
                )


def _inferred(
    entries: Sequence[Entry], known: tuple[Column, ...], open_: set[str], run: RunContext
) -> tuple[tuple[Column, ...], list[str]]:
    asked = [column for column in known if column.name in open_]
    if not asked:
        return known, []
    batches = (batch for entry in entries for batch in Piece(entry).read(asked, (), run))
    found = inferred(batches, [column.name for column in asked])
    made = tuple(replace(column, type=found.get(column.name, column.type)) for column in known)
    told = ", ".join(f"{column.name} {column.type}" for column in made if column.name in found)
    return made, [f"types inferred from every value: {told or 'none, all stay text'}"]
