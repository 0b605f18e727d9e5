"""The JSON Schema of penstock.toml says what the loader accepts."""

from __future__ import annotations

import json
import tomllib

from penstock.project import json_schema
from penstock.project.load import SECTIONS
from penstock.project.model import INTERNAL_FIELDS, PIPELINE_KEYS, Pipeline, SparkConfig
from penstock.project.replications import Replication
from penstock.project.schema import REFERENCE


def test_the_schema_holds_every_key_and_no_internal_one() -> None:
    schema = json_schema()
    pipeline = schema["$defs"]["Pipeline"]
    assert set(pipeline["properties"]) == set(PIPELINE_KEYS)
    assert sorted(pipeline["required"]) == ["mode", "source", "target"]
    assert pipeline["properties"]["mode"]["anyOf"][0]["enum"] == ["append", "truncate", "merge", "scd2", "scd1"]
    assert set(schema["properties"]) == set(SECTIONS)


def test_the_schema_holds_every_key_of_a_replication() -> None:
    schema = json_schema()
    replication = schema["$defs"]["Replication"]
    assert set(replication["properties"]) == set(Replication.model_fields) - INTERNAL_FIELDS
    assert sorted(replication["required"]) == ["source", "tables", "target"]
    assert {"include", "exclude", "where", "rename", "target"} <= set(schema["$defs"]["TableOptions"]["properties"])
    assert "max_bytes" in schema["$defs"]["BufferConfig"]["properties"]


def test_the_schema_knows_the_options_of_every_backend() -> None:
    alternatives = json_schema()["properties"]["connections"]["additionalProperties"]["oneOf"]
    *alternatives, unknown = alternatives
    assert unknown["properties"]["type"] == REFERENCE  # which one it is, the environment says
    by_type = {one["properties"]["type"]["const"]: one for one in alternatives}
    assert {"duckdb", "postgres"} <= set(by_type)
    assert by_type["duckdb"]["required"] == ["path", "type"]
    assert "dsn" in by_type["postgres"]["properties"]
    assert not any("name" in one["properties"] for one in alternatives)


def test_the_schema_takes_the_forms_that_the_loader_takes() -> None:
    """In TOML a lag may be a number, and so may a Spark setting, or a table where its dots are not quoted."""
    text = """
        lag = 1000
        [conf]
        "spark.sql.shuffle.partitions" = 4
        "spark.memory.fraction" = 0.5
        "spark.ui.enabled" = true
        spark.cores.max = "2"
    """
    given = tomllib.loads(text)
    pipeline = Pipeline(name="p", source="a", target="b.c", mode="append", incremental="id", lag=given["lag"])
    assert pipeline.lag == "1000"
    assert len(SparkConfig(conf=given["conf"]).conf) == len(given["conf"])
    schema = json_schema()
    assert "integer" in {one["type"] for one in schema["$defs"]["Pipeline"]["properties"]["lag"]["anyOf"]}
    taken = set(schema["properties"]["spark"]["properties"]["conf"]["additionalProperties"]["type"])
    words = {int: "number", float: "number", bool: "boolean", str: "string", dict: "object"}
    assert {words[type(value)] for value in given["conf"].values()} <= taken


def test_every_reference_is_defined() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    names = {part.partition('"')[0] for part in text.split("#/$defs/")[1:]}
    assert names <= set(schema["$defs"])
