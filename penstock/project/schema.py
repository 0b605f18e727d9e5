"""The JSON Schema of `penstock.toml`, for editors and the reference.

It must never flag what the loader takes: an editor that is wrong once is not believed again. What
only the loader can tell (names of connections, keys that exclude each other) it lets pass.
"""

from __future__ import annotations

from typing import Any

from penstock.backends import registry
from penstock.errors import DriverMissing
from penstock.project.model import INTERNAL_FIELDS, MODE_ALIASES, Pipeline, ProjectSection, SparkConfig, StateConfig
from penstock.project.replications import Replication

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# A text with a reference may become any value when it is filled in: `parallel = "${WORKERS:-4}"`.
REFERENCE = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    "description": "${VAR} or ${VAR:-default}",
}
NARROW_TYPES = ("integer", "number", "boolean")
NARROW_KEYS = frozenset({"enum", "pattern"})
ABOUT = ("title", "description", "default")  # of the key, whatever form its value has


def json_schema() -> dict[str, Any]:
    """The whole file. Loads the installed backends: their options are part of it."""
    definitions: dict[str, Any] = {}
    pipeline = _written(Pipeline.model_json_schema(by_alias=True), definitions)
    pipeline["properties"]["mode"]["enum"] += sorted(MODE_ALIASES)
    pipeline["properties"]["lag"]["anyOf"].append({"type": "integer", "minimum": 0})
    spark = _hoisted(SparkConfig.model_json_schema(), definitions)
    # A table, where the dots of a setting's name are not quoted.
    spark["properties"]["conf"]["additionalProperties"] = {"type": ["string", "number", "boolean", "object"]}
    # The short forms that validators accept besides the tables.
    for name in ("ColumnOption", "Input", "TargetName"):
        definitions[name] = {"anyOf": [{"type": "string"}, definitions[name]]}
    definitions["Pipeline"] = pipeline
    definitions["Replication"] = _written(Replication.model_json_schema(by_alias=True), definitions)
    whole = {
        "$schema": DIALECT,
        "title": "penstock.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "project": _hoisted(ProjectSection.model_json_schema(), definitions),
            "connections": {"type": "object", "additionalProperties": _connection(definitions)},
            "pipelines": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Pipeline"}},
            "replications": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Replication"}},
            "spark": spark,
            "state": _hoisted(StateConfig.model_json_schema(), definitions),
        },
        "$defs": definitions,
    }
    return _with_references(whole)


def _written(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """What a user writes of it, without what the loader adds."""
    made = _hoisted(schema, definitions)
    for name in INTERNAL_FIELDS:
        made["properties"].pop(name, None)
    made["required"] = [name for name in made["required"] if name not in INTERNAL_FIELDS]
    return made


def _connection(definitions: dict[str, Any]) -> dict[str, Any]:
    """One alternative for each backend; of one whose driver is missing, only its type is known."""
    alternatives = []
    for name in registry.names():
        try:
            model = registry.backend(name).config
        except DriverMissing:
            alternatives.append({"type": "object", "required": ["type"], "properties": {"type": {"const": name}}})
            continue
        schema = _hoisted(model.model_json_schema(by_alias=True), definitions)
        schema["properties"].pop("name", None)
        schema["properties"]["type"] = {"const": name}
        schema["required"] = sorted({*schema.get("required", []), "type"})
        alternatives.append(schema)
    # Which backend it is, the environment says: so none of its options is known.
    alternatives.append({"type": "object", "required": ["type"], "properties": {"type": REFERENCE}})
    return {"oneOf": alternatives}


def _with_references(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, where every value that is not any text may also be a reference."""
    made = dict(schema)
    for word in ("properties", "$defs"):
        if word in made:
            made[word] = {name: _with_references(inner) for name, inner in made[word].items()}
    if "oneOf" in made:
        made["oneOf"] = [_with_references(inner) for inner in made["oneOf"]]
    if "anyOf" in made:
        forms = [form for inner in map(_with_references, made["anyOf"]) for form in inner.get("anyOf", [inner])]
        made["anyOf"] = [form for form in forms if form is not REFERENCE]
        if len(made["anyOf"]) < len(forms):
            made["anyOf"].append(REFERENCE)
    for word in ("items", "additionalProperties"):
        if isinstance(made.get(word), dict):
            made[word] = _with_references(made[word])
    if made == REFERENCE or (made.get("type") not in NARROW_TYPES and not NARROW_KEYS & made.keys()):
        return made
    about = {word: made.pop(word) for word in ABOUT if word in made}
    return about | {"anyOf": [made, REFERENCE]}


def _hoisted(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    definitions.update(schema.pop("$defs", {}))
    return schema
