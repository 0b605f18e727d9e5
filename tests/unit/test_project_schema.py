"""The JSON Schema of penstock.toml says what the loader accepts."""

from __future__ import annotations

import json

from penstock.project import json_schema
from penstock.project.model import PIPELINE_KEYS


def test_the_schema_holds_every_key_and_no_internal_one() -> None:
    schema = json_schema()
    pipeline = schema["$defs"]["Pipeline"]
    assert set(pipeline["properties"]) == set(PIPELINE_KEYS)
    assert sorted(pipeline["required"]) == ["mode", "source", "target"]
    assert pipeline["properties"]["mode"]["enum"] == ["append", "truncate", "merge", "scd2", "scd1"]
    assert set(schema["properties"]) == {"project", "connections", "pipelines", "spark", "state"}


def test_the_schema_knows_the_options_of_every_backend() -> None:
    alternatives = json_schema()["properties"]["connections"]["additionalProperties"]["oneOf"]
    by_type = {one["properties"]["type"]["const"]: one for one in alternatives}
    assert {"duckdb", "postgres"} <= set(by_type)
    assert by_type["duckdb"]["required"] == ["path", "type"]
    assert "dsn" in by_type["postgres"]["properties"]
    assert not any("name" in one["properties"] for one in alternatives)


def test_every_reference_is_defined() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    names = {part.partition('"')[0] for part in text.split("#/$defs/")[1:]}
    assert names <= set(schema["$defs"])
