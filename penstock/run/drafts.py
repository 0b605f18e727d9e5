"""Pipelines that are written by looking at tables: what `penstock add` proposes.

Only what the source itself says becomes an option: its primary key, its columns. What would be a
guess, such as which column tells that a row is new, stands there as a comment.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.backends import registry
from penstock.backends.base import Capabilities, ReadRequest, RunContext, TableInfo
from penstock.errors import UNTOUCHED, ConfigError, Unsupported
from penstock.project import Project
from penstock.project.append import Block, string
from penstock.project.findings import suggestion
from penstock.project.model import MODE_ALIASES, Pipeline, TargetName
from penstock.project.patterns import clash, match_tables
from penstock.schema import Column, TableName
from penstock.schema.names import split_name

KEYED = frozenset({"merge", "scd2"})
# Names that applications give to the time of a row's last change.
_CHANGED_AT = re.compile(r"(updated|modified|changed)(_?(at|on|time|ts|date))?|(last|date)_?(update|modified|change)d?")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user said; the rest is looked up."""

    source: str
    patterns: tuple[str, ...]
    target: str | None = None  # a connection, or a whole target, which may hold {schema} and {table}
    mode: str | None = None
    keys: tuple[str, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A pipeline that `penstock add` writes."""

    pipeline: str
    table: str
    target: str
    mode: str
    keys: tuple[str, ...]
    toml: str


def drafts(project: Project, wish: Wish) -> list[tuple[Draft, Block]]:
    """One pipeline for each table that the patterns mean. Opens the source, writes nothing."""
    config = project.connection(wish.source)
    backend = registry.backend(config.type)
    if not backend.capabilities.reads:
        raise Unsupported(f"{wish.source} cannot be a source", why=f"{backend.capabilities.title} is only loaded into")
    known = backend.tables(config)
    tables = _tables(wish, known)
    if len(tables) > 1 and wish.name is not None:
        raise ConfigError(
            f"--name is for one table, and these are {len(tables)}", kept=UNTOUCHED, remedy="leave --name out"
        )
    own = dict(zip((table.name for table in tables), _names(tables), strict=True))
    names = {table: wish.name or name for table, name in own.items()}
    _check_names(project, wish, names)
    target = _target(project, wish, several=len(tables) > 1)
    able = registry.backend(project.connections.type_of(target.connection)).capabilities
    placed = {table: _placed(wish, target, table, name) for table, name in own.items()}
    made = [_draft(project, wish, names[table.name], table, placed[table.name], able) for table in tables]
    _check_targets(project, wish, known, placed, only_adds=all(draft.mode == "append" for draft, _ in made))
    return made


def _tables(wish: Wish, known: Sequence[TableInfo]) -> list[TableInfo]:
    matched, idle = match_tables(wish.patterns, known)
    if idle:
        raise ConfigError(
            f"{wish.source} has no table {idle[0]}",
            kept=UNTOUCHED,
            remedy=suggestion(idle[0], [str(info.name) for info in known])[:200]
            or f"penstock tables list {wish.source} shows what it has",
        )
    if not matched:
        raise ConfigError(
            f"no table of {wish.source} fits {' '.join(wish.patterns)}",
            why="a pattern with * takes tables, not views" if known else "the connection shows no tables",
            kept=UNTOUCHED,
            remedy=f"penstock tables list {wish.source} shows what it has",
        )
    return [info for info in known if info.name in matched]


def _names(tables: Sequence[TableInfo]) -> list[str]:
    """A pipeline's name is its table's; with the schema where two tables share it."""
    plain = [info.name.table for info in tables]
    return [info.name.table if plain.count(info.name.table) == 1 else "_".join(info.name.parts) for info in tables]


def _check_names(project: Project, wish: Wish, names: dict[TableName, str]) -> None:
    taken = [(table, name) for table, name in names.items() if name in project.pipelines]
    if not taken:
        return
    _, name = taken[0]
    own = f"{wish.source}_{name}"
    free = next(word for word in (own, *(f"{own}_{n}" for n in range(2, 1000))) if word not in project.pipelines)
    without = " ".join(shlex.quote(f"!{table}") for table, _ in taken)
    raise ConfigError(
        f"there is a pipeline {name!r} already" + (f", and {len(taken) - 1} more" if len(taken) > 1 else ""),
        why=project.pipelines[name].place and f"in {project.pipelines[name].place}",
        kept=UNTOUCHED,
        remedy=f"--name {shlex.quote(free)}" if len(names) == 1 else f"leave them out: {without}",
    )


def _target(project: Project, wish: Wish, *, several: bool) -> TargetName:
    """Where the tables go; parts may hold {schema} and {table}."""
    if wish.target is None:
        others = [name for name in project.connections if name != wish.source]
        if len(others) != 1:
            raise ConfigError(
                "it is not clear where to load to",
                why=f"the project has {len(others)} other connections" + (f": {', '.join(others)}" if others else ""),
                kept=UNTOUCHED,
                remedy="--target CONNECTION, or --target CONNECTION.SCHEMA.TABLE",
            )
        return TargetName(connection=others[0], schema=None, table="{table}")
    parts = split_name(wish.target)
    if len(parts) > 3:
        raise ConfigError(
            f"{wish.target!r} is not a target",
            why="a target is connection, connection.table or connection.schema.table",
            kept=UNTOUCHED,
        )
    project.connections.type_of(parts[0])  # raises for one that does not exist
    if len(parts) == 1:
        return TargetName(connection=parts[0], schema=None, table="{table}")
    found = TargetName(connection=parts[0], schema=parts[1] if len(parts) == 3 else None, table=parts[-1])
    if several and not found.placeholders:
        raise ConfigError(
            f"several tables cannot go to {wish.target}",
            kept=UNTOUCHED,
            remedy=f"--target {TableName(None, found.connection)}, or put {{table}} into the name",
        )
    return found


def _placed(wish: Wish, target: TargetName, table: TableName, name: str) -> TargetName:
    """Where one table goes: into a table of its own name, with the schema where two tables share it."""
    whole = wish.target is not None and len(split_name(wish.target)) > 1
    found = target.filled(table) if whole else TableName(None, name)
    placed = TargetName(connection=target.connection, schema=found.schema, table=found.table)
    if placed.placeholders:
        raise ConfigError(
            f"{table} cannot go to {placed}",
            why="{table} and {schema} stand for the source's name there, and it would be filled in once more",
            kept=UNTOUCHED,
            remedy=f"--target {TableName(None, target.connection)}.NAME, with another name",
        )
    return placed


def _check_targets(
    project: Project,
    wish: Wish,
    known: Sequence[TableInfo],
    placed: dict[TableName, TargetName],
    *,
    only_adds: bool,
) -> None:
    """Two tables that are merged into one would overwrite each other's rows."""
    connection = next(iter(placed.values())).connection
    folding = registry.backend(project.connections.type_of(connection)).capabilities.case_insensitive
    going = [(f"{wish.source}.{table}", target.name) for table, target in placed.items()]
    there: dict[str, str] = {}
    beside: list[tuple[str, TableName]] = []
    # Of a pipeline that only adds rows, none is overwritten.
    for pipeline in project.pipelines.values() if not only_adds else ():
        if pipeline.target_connection == connection and pipeline.handed is None:
            loads = _loads(pipeline, wish, known)
            there |= {source: f"pipeline {pipeline.name!r} loads {source}" for source, _ in loads}
            beside += loads
    found = clash(going, folding=folding, beside=beside)
    if found is None:
        return
    one, other, target = found
    raise ConfigError(
        f"{one} and {other} would both be loaded into {connection}.{target}",
        why="they would overwrite each other's rows" + (f"; {there[one]} already" if one in there else ""),
        kept=UNTOUCHED,
        remedy="--target CONNECTION.SCHEMA.TABLE, a table of its own; of several, with {schema} and {table}",
    )


def _loads(pipeline: Pipeline, wish: Wish, known: Sequence[TableInfo]) -> list[tuple[str, TableName]]:
    """What a pipeline of the project loads, and into which table; of another source only what it names itself."""
    patterns = pipeline.tables or ((pipeline.table,) if pipeline.table else ())
    if pipeline.source == wish.source and patterns:
        tables, _ = match_tables(patterns, known)
        return [(f"{wish.source}.{table}", pipeline.target_table(table)) for table in tables]
    if pipeline.tables:
        return []
    return [(f"{pipeline.source}.{pipeline.table or 'query'}", pipeline.target_table())]


def _draft(
    project: Project, wish: Wish, name: str, table: TableInfo, target: TargetName, able: Capabilities
) -> tuple[Draft, Block]:
    key, columns = _looked_at(project, wish.source, table.name)
    keys = wish.keys or key
    unknown = [one for one in wish.keys if one not in {column.name for column in columns}]
    if unknown:
        raise ConfigError(
            f"{table.name} has no column {unknown[0]!r}",
            kept=UNTOUCHED,
            remedy=suggestion(unknown[0], [column.name for column in columns]),
        )
    mode = MODE_ALIASES.get(wish.mode or "", wish.mode) or ("merge" if keys and "merge" in able.modes else "truncate")
    if mode not in able.modes:
        raise ConfigError(
            f"{target.connection} does not take mode {mode}",
            why=f"{able.title} takes {', '.join(sorted(able.modes))}",
            kept=UNTOUCHED,
            remedy="--mode with one of these",
        )
    if mode in KEYED and not keys:
        raise ConfigError(
            f"mode {mode} needs keys, and {table.name} has no primary key",
            kept=UNTOUCHED,
            remedy="--keys with the columns that make a row unique, or --mode truncate",
        )
    options: dict[str, str | Sequence[str]] = {
        "source": wish.source,
        "table": str(table.name),
        "target": str(target),
        "mode": mode,
    }
    comments = {}
    if mode in KEYED:
        options["keys"] = keys
        comments["keys"] = "" if wish.keys else "the table's primary key"
    elif wish.mode is None:
        comments["mode"] = "the table has no primary key to merge by" if not keys else f"{able.title} has no merge"
    block = Block(name, options, comments, _hints(mode, columns))
    used = tuple(keys) if mode in KEYED else ()
    return Draft(name, str(table.name), str(options["target"]), mode, used, block.text()), block


def _looked_at(project: Project, source: str, table: TableName) -> tuple[tuple[str, ...], list[Column]]:
    config = project.connection(source)
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        run = RunContext(run_id="0" * 32, pipeline="add", staging=Path(folder))
        opened = registry.backend(config.type).source(config, ReadRequest(table=table), run)
        try:
            return opened.primary_key(), list(opened.schema())
        finally:
            opened.close()


def _hints(mode: str, columns: Sequence[Column]) -> tuple[str, ...]:
    """What may be worth a thought; whether it holds, only the user knows."""
    if mode not in ("merge", "append"):
        return ()
    found = [
        column
        for column in columns
        if pa.types.is_timestamp(column.type) and _CHANGED_AT.fullmatch(column.name.lower())
    ]
    if not found:
        return ()
    zone = "" if found[0].type.tz else '; cursor_timezone = "…", which it has none of'
    return (
        f"incremental = {string(found[0].name)}   # if every change of a row sets it: only what is new is read{zone}",
        'lag = "5m"   # longer than the longest transaction of the source',
    )
