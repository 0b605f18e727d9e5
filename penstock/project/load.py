"""Finds and loads a project: `penstock.toml`, the environment and the modules it names.

Everything that can be told without a driver or a server is checked here, and all findings are
raised together. What a connection's options hold is checked when it is first used, or by
`Project.check()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError
from penstock.observe import redact
from penstock.project import discover, targets, toml
from penstock.project.build import RawPipeline, build_pipeline, build_section, build_table, check_pipeline
from penstock.project.connections import Connections, Definition, Sources, how_to_define
from penstock.project.decorators import PipelineFunction, Registered, registered
from penstock.project.findings import raise_all, suggestion, unknown_key
from penstock.project.functions import declared_functions
from penstock.project.model import Pipeline, Project, ProjectSection, SparkConfig, StateConfig
from penstock.project.tables import declared_tables
from penstock.project.toml import Document, KeyPath
from penstock.schema.declared import DeclaredTable
from penstock.sparkconf import check_conf

if TYPE_CHECKING:
    from penstock.backends.base import ConnectionConfig
    from penstock.project.replications import Replication

FILE = "penstock.toml"
USER_FILE = Path("penstock") / "connections.toml"
SECTIONS = ("project", "connections", "pipelines", "replications", "spark", "state")


def load(path: Path | str | None = None) -> Project:
    """The project at `path` (a folder or a file), or the one around the working directory."""
    file = find_file(None if path is None else Path(path))
    root = (Path.cwd() if file is None else file.parent).resolve()
    document = Document("Python", {}) if file is None else toml.read(file)
    return _assemble(root, document, os.environ, needs_objects=file is None)


def load_text(file: Path, text: str) -> Project:
    """The project as it would be if `file` held this text."""
    document = toml.parse(toml.shown(file), text.removeprefix("\ufeff"))
    return _assemble(file.parent.resolve(), document, os.environ, needs_objects=False)


def without_file() -> Project:
    """What Python and the environment define, at the working directory; there may be no pipeline in it."""
    return _assemble(Path.cwd().resolve(), Document("Python", {}), os.environ, needs_objects=False)


def find_declared(cls: type) -> DeclaredTable:
    """The table that a class declares; raises all that is wrong with it."""
    tables, findings = _given_tables([{"target": cls}])
    found = targets.resolved({"target": cls}, tables)
    raise_all([*findings, *found.findings])
    assert found.table is not None  # noqa: S101  nothing was found wrong with it
    return found.table


def build_one(project: Project, given: Mapping[str, Any], *, handed: bool = False) -> Pipeline:
    """A pipeline that is no part of the project, checked by the same rules; raises all findings.

    With `handed`, its rows come from the caller and not from a connection.
    """
    tables, findings = _given_tables([given])
    tables = {str(table): table for table in project.tables.values()} | tables
    raw = _raw_object(given, tables, findings)
    if handed:
        raw = replace(raw, refused=raw.refused | {"source"})
    made, errors = build_pipeline(raw, project.connections, os.environ)
    raise_all([*findings, *errors])
    assert made is not None  # noqa: S101  nothing was found wrong with it
    return made


def build_replication(
    project: Project, name: str, options: Mapping[str, Any], place: str, environment: Mapping[str, str]
) -> Replication:
    """A replication that is no part of the project, checked by the same rules; raises all findings."""
    from penstock.project.replications import Replication, shared_buffers

    fixed = {"name": name, "place": place}
    made, findings = build_table(Replication, options, f"replications.{name}", environment, lambda _: place, fixed)
    for key in ("source", "target"):
        connection = getattr(made, key) if made is not None else options.get(key)
        if isinstance(connection, str) and connection not in project.connections:
            remedy = suggestion(connection, project.connections) or how_to_define(connection)
            what = f"replication {name!r} names a connection that does not exist: {connection!r}"
            findings.append(ConfigError(what, remedy=remedy, place=place))
    if made is not None:
        findings += shared_buffers(project.root, (*project.replications.values(), made))
    raise_all(findings)
    assert made is not None  # noqa: S101  nothing was found wrong with it
    return made


def from_objects(
    root: Path,
    connections: Mapping[str, ConnectionConfig | Mapping[str, Any]],
    pipelines: Sequence[Pipeline | Mapping[str, Any]],
    spark: SparkConfig,
    state: StateConfig,
) -> Project:
    """See `Project.from_objects`."""
    known = _given_connections(root, connections)
    tables, findings = _given_tables(pipelines)
    raw = [_raw_object(given, tables, findings) for given in pipelines if isinstance(given, Mapping)]
    made, errors = _pipelines(raw, known, os.environ)
    findings += errors
    for given in pipelines:
        if isinstance(given, Pipeline):
            findings += check_pipeline(given, known, lambda _, p=given: p.place or f"pipeline {p.name!r}")  # type: ignore[misc]  # mypy does not infer defaults of lambdas
            made[given.name] = given
    raise_all(findings)
    return Project(root, known, made, spark, state, {table.title: table for table in tables.values()})


def find_file(path: Path | None) -> Path | None:
    """The project file; None if there is none and only Python objects can make the project."""
    if path is not None:
        file = path / FILE if path.is_dir() else path
        if not file.exists():
            raise ConfigError(f"there is no project at {toml.shown(file)}", remedy="name a folder that holds one")
        return file
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    return None


def _assemble(root: Path, document: Document, environment: Mapping[str, str], *, needs_objects: bool) -> Project:
    content = document.content
    findings: list[PenstockError] = [
        unknown_key(key, SECTIONS, document.file, document.place((key,))) for key in content if key not in SECTIONS
    ]
    section, errors = _section(ProjectSection, "project", document, environment)
    findings += errors
    spark, errors = _section(SparkConfig, "spark", document, environment)
    findings += errors
    try:
        check_conf(spark.conf, document.place(("spark", "conf")))
    except ConfigError as error:
        findings.append(error)
    state, errors = _section(StateConfig, "state", document, environment)
    findings += errors
    redact.register_fields({"url": state.url})
    findings += discover.import_modules(root, section.modules, document.place(("project", "modules")))
    objects = discover.collect(root, section.modules)
    if needs_objects and not (objects.pipelines or objects.connections or objects.tables):
        raise _no_project()
    tables, wrong = declared_tables(objects.tables)
    findings += wrong
    functions, wrong = declared_functions(objects.functions, discover.place_of)
    findings += wrong
    raw, errors = _raw_pipelines(root, document, objects, tables)
    findings += errors
    connections, errors = _connections(root, document, objects, raw, tables, environment)
    findings += errors
    findings += connections.type_problems()
    findings += _table_connections(tables, connections)
    # Told of the class already, and not of every pipeline into it once more.
    raw = [
        replace(one, refused=one.refused | {"target"})
        if one.declared is not None and one.declared.connection not in connections
        else one
        for one in raw
    ]
    pipelines, errors = _pipelines(raw, connections, environment)
    findings += errors
    replications, errors = _replications(root, document, connections, environment)
    findings += errors
    raise_all(findings)
    declared = {table.title: table for table in tables.values()}
    return Project(root, connections, pipelines, spark, state, declared, functions, replications)


def _no_project() -> ConfigError:
    return ConfigError(
        "no project found",
        why=f"no {FILE} in {Path.cwd()} or above",
        remedy="go to the project's folder, or start one: penstock init FOLDER",
    )


def _section(model: Any, name: str, document: Document, environment: Mapping[str, str]) -> tuple[Any, Any]:
    return build_section(
        model, document.content.get(name, {}), name, environment, lambda path: document.place((name, *path))
    )


# ---------------------------------------------------------------- connections


def _connections(
    root: Path,
    document: Document,
    objects: Registered,
    raw: Sequence[RawPipeline],
    tables: Mapping[str, DeclaredTable],
    environment: Mapping[str, str],
) -> tuple[Connections, list[PenstockError]]:
    written, findings = _definitions(document)
    user_file = _user_file(environment)
    user: dict[str, Definition] = {}
    if user_file.is_file():
        user_document = toml.read(user_file)
        findings += [
            unknown_key(key, ("connections",), user_document.file, user_document.place((key,)))
            for key in user_document.content
            if key != "connections"
        ]
        user, errors = _definitions(user_document)
        findings += errors
    python: dict[str, Definition] = {}
    for handle in objects.connections:
        place = discover.place_of(handle.origin)
        earlier = python.get(handle.name) or written.get(handle.name)
        if earlier is not None:
            findings.append(_twice("connection", handle.name, earlier.place, place))
        python[handle.name] = Definition(handle.name, place, handle.options)
    mentioned = frozenset(name for pipeline in raw for name in _mentioned(pipeline.options))
    mentioned |= {table.connection for table in tables.values()}
    files = (document.file, str(user_file))
    return Connections(Sources(root, python, written, user, environment, files, mentioned)), findings


def _definitions(document: Document) -> tuple[dict[str, Definition], list[PenstockError]]:
    tables = document.content.get("connections", {})
    found: dict[str, Definition] = {}
    findings: list[PenstockError] = []
    for name, options in _tables(tables, "connections", document, findings).items():
        path: KeyPath = ("connections", name)
        places = {key: document.place((*path, key)) for key in options}
        found[name] = Definition(name, document.place(path), options, places)
    return found, findings


def _tables(
    tables: Any, section: str, document: Document, findings: list[PenstockError]
) -> dict[str, Mapping[str, Any]]:
    """The named tables of a section; what is not a table is told and left out."""
    if not isinstance(tables, Mapping):
        findings.append(
            ConfigError(f"{section} must hold tables", remedy=f"[{section}.NAME]", place=document.place((section,)))
        )
        return {}
    for name in [name for name, options in tables.items() if not isinstance(options, Mapping)]:
        findings.append(
            ConfigError(
                f"{section}.{name} must be a table", remedy=f"[{section}.{name}]", place=document.place((section, name))
            )
        )
    return {name: options for name, options in tables.items() if isinstance(options, Mapping)}


def _user_file(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / USER_FILE


def _mentioned(options: Mapping[str, Any]) -> list[str]:
    """The connection names a pipeline speaks of, as far as they can be read already."""
    target, inputs = options.get("target"), options.get("inputs")
    names = [options.get("source"), target.get("connection") if isinstance(target, Mapping) else None]
    given = list(inputs.values()) if isinstance(inputs, Mapping) else []
    names += [one.get("source") for one in given if isinstance(one, Mapping)]
    for text in (target, *given):
        if isinstance(text, str):
            from penstock.schema.names import split_name

            with suppress(ConfigError):  # told when the pipeline is built
                names.append(split_name(text)[0])
    return [name for name in names if isinstance(name, str)]


def _given_connections(root: Path, connections: Mapping[str, ConnectionConfig | Mapping[str, Any]]) -> Connections:
    options = {
        name: Definition(name, "Python", dict(given))
        for name, given in connections.items()
        if isinstance(given, Mapping)
    }
    configs = {name: given for name, given in connections.items() if not isinstance(given, Mapping)}
    return Connections.of(root, options, configs)


# ---------------------------------------------------------------- pipelines


def _raw_pipelines(
    root: Path, document: Document, objects: Registered, tables: Mapping[str, DeclaredTable]
) -> tuple[list[RawPipeline], list[PenstockError]]:
    findings: list[PenstockError] = []
    raw: dict[str, RawPipeline] = {}
    for name, options in _tables(document.content.get("pipelines", {}), "pipelines", document, findings).items():
        found = targets.resolved(options, tables)
        raw[name] = RawPipeline(name, found.options, _placed(document, ("pipelines", name)), declared=found.table)
    for function in objects.pipelines:
        place = discover.place_of(function.origin)
        if function.name in raw:
            findings.append(_twice("pipeline", function.name, raw[function.name].place(()), place))
            continue
        options, error = _options_of(root, function, place)
        if error is not None:
            findings.append(error)
        found = targets.resolved(options, tables)
        findings += [ConfigError(one.what, why=one.why, remedy=one.remedy, place=place) for one in found.findings]
        raw[function.name] = RawPipeline(
            function.name,
            found.options,
            lambda _, p=place: p,  # type: ignore[misc]  # mypy does not infer defaults of lambdas
            function.transform_function,
            found.table,
            found.refused,
        )
    return list(raw.values()), findings


def _placed(document: Document, head: KeyPath) -> Callable[[KeyPath], str]:
    return lambda path: document.place((*head, *path))


def _options_of(root: Path, function: PipelineFunction, place: str) -> tuple[dict[str, Any], ConfigError | None]:
    """The decorator's arguments, and the query that the function returns."""
    options = dict(function.options)
    try:
        query = function()
    except Exception as error:  # noqa: BLE001  whatever a user's function raises is their message
        why = f"{type(error).__name__}: {error}"
        where = discover.failure_place(root, error, place)
        return options | {"query": "?"}, ConfigError(
            f"pipeline {function.name!r} failed to give its query", why=why, place=where
        )
    if isinstance(query, str):
        # SQL made by Python is final: `${…}` in it is not a reference.
        options["query"] = query.replace("${", "$${")
    elif query is not None or not (options.get("table") or options.get("tables")):
        error_ = ConfigError(
            f"pipeline {function.name!r} must return its query as text",
            why=f"it returned {type(query).__name__}",
            place=place,
        )
        return options | {"query": "?"}, error_
    return options, None


def _given_tables(
    pipelines: Sequence[Pipeline | Mapping[str, Any]],
) -> tuple[dict[str, DeclaredTable], list[PenstockError]]:
    """The tables that classes among the targets declare."""
    classes = [given.get("target") for given in pipelines if isinstance(given, Mapping)]
    handles = [handle for handle in registered.tables if any(handle.cls is cls for cls in classes)]
    tables, findings = declared_tables(handles)
    return tables, list(findings)


def _raw_object(
    given: Mapping[str, Any], tables: Mapping[str, DeclaredTable], findings: list[PenstockError]
) -> RawPipeline:
    options = dict(given)
    name, place = str(options.pop("name", "")), str(options.pop("place", ""))
    function = options.pop("transform_function", None)
    found = targets.resolved(options, tables)
    findings += found.findings
    where = place or f"pipeline {name!r}"
    return RawPipeline(name, found.options, lambda _: where, function, found.table, found.refused)


def _table_connections(tables: Mapping[str, DeclaredTable], connections: Connections) -> list[PenstockError]:
    findings: list[PenstockError] = []
    for table in tables.values():
        if table.connection not in connections:
            findings.append(
                ConfigError(
                    f"{table.title} is declared in a connection that does not exist: {table.connection!r}",
                    remedy=suggestion(table.connection, connections) or how_to_define(table.connection),
                    place=table.place,
                )
            )
    return findings


def _pipelines(
    raw: Sequence[RawPipeline], connections: Connections, environment: Mapping[str, str]
) -> tuple[dict[str, Pipeline], list[PenstockError]]:
    made: dict[str, Pipeline] = {}
    findings: list[PenstockError] = []
    for given in raw:
        pipeline, errors = build_pipeline(given, connections, environment)
        findings += errors
        if pipeline is not None:
            made[given.name] = pipeline
    return made, findings


def _replications(
    root: Path, document: Document, connections: Connections, environment: Mapping[str, str]
) -> tuple[dict[str, Replication], list[PenstockError]]:
    made: dict[str, Replication] = {}
    findings: list[PenstockError] = []
    given = _tables(document.content.get("replications", {}), "replications", document, findings)
    if not given:
        return made, findings
    # A project without one need not build its models.
    from penstock.project.replications import Replication, shared_buffers

    for name, options in given.items():
        head = ("replications", name)
        place = _placed(document, head)
        found, errors = build_table(
            Replication, options, f"replications.{name}", environment, place, {"name": name, "place": place(())}
        )
        findings += errors
        if found is None:
            continue
        made[name] = found
        for key in ("source", "target", "copy_from"):
            connection = getattr(found, key)
            if connection is None or (key == "source" and found.source_replication is not None):
                continue  # a log is asked for below, when all are known
            if connection not in connections:
                findings.append(
                    ConfigError(
                        f"replication {name!r} names a connection that does not exist: {connection!r}",
                        remedy=suggestion(connection, connections) or how_to_define(connection),
                        place=place((key,)),
                    )
                )
    for name, found in made.items():
        written = found.source_replication
        if written is not None and (written not in given or written == name):
            findings.append(
                ConfigError(
                    f"replication {name!r} reads the log of a replication that does not exist: {written!r}",
                    remedy=suggestion(written, [other for other in given if other != name]),
                    place=_placed(document, ("replications", name))(("source",)),
                )
            )
    return made, findings + shared_buffers(root, made.values())


def _twice(kind: str, name: str, first: str, second: str) -> ConfigError:
    return ConfigError(
        f"{kind} {name!r} is defined twice", why=f"in {first} and in {second}", remedy="rename one", place=second
    )
