"""Raw values, from TOML or from a decorator, into checked models; all findings, none raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.errors import ConfigError, PenstockError
from penstock.project.connections import Connections, how_to_define
from penstock.project.findings import nearest, reason, suggestion, unknown_key
from penstock.project.interpolate import Place, interpolate
from penstock.project.model import LIST_KEYS, PIPELINE_KEYS, ColumnOption, Input, Model, Pipeline, TargetName, Ttl
from penstock.project.rules import broken
from penstock.project.written import mistyped
from penstock.schema.declared import DeclaredTable

M = TypeVar("M", bound=Model)

# Fill in for required keys that are missing or wrong, so that the other rules can still be checked.
_STAND_INS = {"source": "?", "target": {"connection": "?", "table": "?"}, "mode": "append"}
# Of the options that are tables themselves.
_INNER_KEYS = {
    key: [info.alias or name for name, info in model.model_fields.items()]
    for key, model in (("columns", ColumnOption), ("target", TargetName), ("ttl", Ttl), ("inputs", Input))
}


@dataclass(frozen=True, slots=True)
class RawPipeline:
    """A pipeline as it was written down."""

    name: str
    options: Mapping[str, Any]
    place: Place  # of a key inside it; of `()`, the pipeline
    transform_function: Callable[..., Any] | None = None
    declared: DeclaredTable | None = None
    refused: frozenset[str] = frozenset()  # keys whose values were told to be wrong already


def build_pipeline(
    raw: RawPipeline, connections: Connections, environment: Mapping[str, str]
) -> tuple[Pipeline | None, list[PenstockError]]:
    """The pipeline, or what is wrong with it."""
    findings: list[PenstockError] = []
    options, unset = interpolate(dict(raw.options), environment, raw.place)
    findings += unset
    for key in [key for key in options if key not in PIPELINE_KEYS]:
        del options[key]
        findings.append(unknown_key(key, PIPELINE_KEYS, f"pipeline {raw.name!r}", raw.place((key,))))
    invalid: set[str] = set(raw.refused)
    for path, why in mistyped(Pipeline, raw.options):
        findings.append(ConfigError(f"{'.'.join(path)} is wrong", why=why, place=raw.place(path)))
        options.pop(path[0], None)
        invalid.add(path[0])
    for key in sorted(LIST_KEYS & options.keys()):
        if isinstance(options[key], str):
            findings.append(
                ConfigError(f'{key} must be a list: {key} = ["{options.pop(key)}"]', place=raw.place((key,)))
            )
            invalid.add(key)
    pipeline = _validated(raw, options, findings, invalid)
    if pipeline is None:
        return None, findings
    findings += check_pipeline(pipeline, connections, raw.place, frozenset(invalid))
    return (None if findings else pipeline), findings


def check_pipeline(
    pipeline: Pipeline, connections: Connections, place: Place, invalid: frozenset[str] = frozenset()
) -> list[PenstockError]:
    """What a well-formed pipeline's fields contradict, in themselves and in its connections."""
    dialect = _dialect(connections, pipeline, invalid)
    findings: list[PenstockError] = [
        ConfigError(f.what, why=f.why, remedy=f.remedy, place=place(tuple(f.key.split("."))))
        for f in broken(pipeline, dialect, invalid)
    ]
    return findings + _connection_names(pipeline, connections, place, invalid)


def _validated(
    raw: RawPipeline, options: dict[str, Any], findings: list[PenstockError], invalid: set[str]
) -> Pipeline | None:
    """The model; what pydantic refuses is told and left out, so that the rest can be checked too."""
    fixed = {
        "name": raw.name,
        "place": raw.place(()),
        "transform_function": raw.transform_function,
        "declared": raw.declared,
    }
    try:
        return Pipeline(**options, **fixed)
    except ValidationError as error:
        for detail in error.errors(include_input=False, include_url=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            findings.append(_told(raw, detail["loc"], detail))
            invalid.add(key)
            options.pop(key, None)
    for key in _STAND_INS.keys() & invalid:
        options[key] = _STAND_INS[key]
    try:
        return Pipeline(**options, **fixed)
    except ValidationError:  # the findings above say why
        return None


def _told(raw: RawPipeline, loc: tuple[int | str, ...], detail: Mapping[str, Any]) -> ConfigError:
    key = str(loc[0])
    path = tuple(str(part) for part in loc)
    shown = ".".join(path)
    place = raw.place(path)
    if detail["type"] == "missing" and len(loc) == 1:
        remedy = "one of append, truncate, merge, scd2" if key == "mode" else ""
        return ConfigError(f"pipeline {raw.name!r} has no {key}", remedy=remedy, place=raw.place(()))
    if detail["type"] == "extra_forbidden":
        return unknown_key(path[-1], _INNER_KEYS[key], ".".join(path[:-1]), place)
    if detail["type"] == "missing":
        return ConfigError(f"{shown} is missing", place=place)
    value = raw.options.get(key)
    allowed = detail.get("ctx", {}).get("expected", "") if detail["type"] == "literal_error" else ""
    if allowed and isinstance(value, str):
        close = nearest(value, [word.strip("' ") for word in allowed.replace(" or ", ",").split(",")])
        return ConfigError(
            f"{shown} = {value!r} is not known",
            why=f"it may be {allowed}",
            remedy=f"did you mean {close!r}?" if close else "",
            place=place,
        )
    return ConfigError(f"{shown} is wrong", why=reason(detail), place=place)


def _dialect(connections: Connections, pipeline: Pipeline, invalid: frozenset[str]) -> str:
    if "target" in invalid or not (pipeline.transforms_pre or pipeline.transforms_post):
        return ""
    try:
        return connections.type_of(pipeline.target.connection)
    except ConfigError:  # told elsewhere: here it only chooses how quotes are read
        return ""


def _connection_names(
    pipeline: Pipeline, connections: Connections, place: Place, invalid: frozenset[str]
) -> list[PenstockError]:
    findings: list[PenstockError] = []
    named: list[tuple[tuple[str, ...], str]] = [
        (("source",), pipeline.source),
        (("target",), pipeline.target.connection),
    ]
    named += [(("inputs", view), given.source) for view, given in pipeline.inputs.items()]
    for key, name in named:
        if key[0] in invalid:
            continue
        try:
            known = name in connections
        except PenstockError as error:  # the environment contradicts itself about it
            findings.append(error)
            continue
        if not known:
            findings.append(
                ConfigError(
                    f"pipeline {pipeline.name!r} names a connection that does not exist: {name!r}",
                    remedy=suggestion(name, connections) or how_to_define(name),
                    place=place(key),
                )
            )
    return findings


def build_section(
    model: type[M], table: Any, subject: str, environment: Mapping[str, str], place: Place
) -> tuple[M, list[PenstockError]]:
    """One of the plain tables: `[project]`, `[spark]`, `[state]`."""
    if not isinstance(table, Mapping):
        return model(), [ConfigError(f"{subject} must be a table", remedy=f"[{subject}]", place=place(()))]
    made, findings = build_table(model, table, subject, environment, place)
    return made or model(), findings


def build_table(
    model: type[M],
    table: Mapping[str, Any],
    subject: str,
    environment: Mapping[str, str],
    place: Place,
    fixed: Mapping[str, Any] | None = None,
) -> tuple[M | None, list[PenstockError]]:
    """A table of the file as its model; `fixed` are fields that no key sets."""
    findings: list[PenstockError] = []
    options, unset = interpolate(dict(table), environment, place)
    findings += unset
    given = dict(fixed or {})
    keys = [key for key in model.model_fields if key not in given]
    for key in [key for key in options if key not in keys]:
        del options[key]
        findings.append(unknown_key(key, keys, f"[{subject}]", place((key,))))
    for path, why in mistyped(model, table):
        findings.append(ConfigError(f"{'.'.join(path)} of [{subject}] is wrong", why=why, place=place(path)))
        options.pop(path[0], None)
    try:
        return model(**options, **given), findings
    except ValidationError as error:
        for detail in error.errors(include_input=False, include_url=False):
            path = tuple(str(part) for part in detail["loc"])
            what = f"{'.'.join(path)} of [{subject}] is wrong" if path else f"[{subject}] contradicts itself"
            findings.append(ConfigError(what, why=reason(detail), place=place(path)))
        return None, findings
