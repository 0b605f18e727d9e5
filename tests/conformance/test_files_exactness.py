"""Files hold every value as it was: from Postgres into each format and back, compared as the server prints it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import DataError
from penstock.run.pipeline import stage_with_spark
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness
from tests.conformance.test_exactness import EVERY, POSTGRES_SETUP, agree, seed, texts
from tests.conformance.values import DOMAINS, DUCKDB, DUCKDB_ONLY, POSTGRES, POSTGRES_PRINTED

pytestmark = pytest.mark.postgres

FORMATS = ("parquet", "csv", "jsonl")
TYPES_OF = (
    "select attname, format_type(atttypid, atttypmod) from pg_attribute"
    " where attrelid = 'items'::regclass and attnum > 0 order by attnum"
)


@pytest.fixture(params=FORMATS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FilesHarness:
    return FilesHarness(tmp_path / "lake", request.param)


def test_postgres_to_files_and_back(files: FilesHarness, harness: Callable[[str], Harness], tmp_path: Path) -> None:
    source, home = harness("postgres"), harness("postgres")
    expected = seed(source, EVERY)
    Flow(source, files, tmp_path).run()
    home.execute(*POSTGRES_SETUP)
    Flow(files, home, tmp_path).run()
    agree(EVERY, texts(home, EVERY), expected)
    # A domain is its base type elsewhere, and what no server reads is text.
    base = DOMAINS | dict.fromkeys([*POSTGRES_PRINTED, *(f"{name}[]" for name in POSTGRES_PRINTED)], "text")
    wanted = [(name, base.get(type_, type_)) for name, type_ in source.query(TYPES_OF)]
    assert home.query(TYPES_OF) == wanted


@pytest.mark.spark
def test_postgres_to_orc_and_back(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    """By Spark's own writer and reader, whose ORC would change moments before 1970 and days of 1582."""
    source, home, orc = harness("postgres"), harness("postgres"), FilesHarness(tmp_path / "lake", "orc")
    types = {name: values for name, values in EVERY.items() if name not in ("date", "date[]")}
    types["date"] = ("'4713-01-01 BC'", "'9999-12-31'", "'1582-10-15'", "'1582-10-04'")
    types["timestamptz"] += ("'1969-12-31 23:59:59.999999+00'", "'1582-10-10 12:00+00'", "'9999-12-31 23:59:59+00'")
    expected = seed(source, types)
    out = Flow(source, orc, tmp_path, stage_with_spark)
    first = out.run()
    assert (first.path, first.rows) == ("spark", len(expected))
    home.execute(*POSTGRES_SETUP)
    back = Flow(orc, home, tmp_path, stage_with_spark)
    assert back.run().rows == len(expected)
    agree(types, texts(home, types), expected)
    assert out.run(mode="append").rows == len(expected)
    assert back.run().rows == 2 * len(expected)
    assert orc.leftovers() == []
    source.execute("create table d (id int primary key, day date)", "insert into d values (1, 'infinity')")
    with pytest.raises(DataError, match="column day has a date that ORC does not keep"):
        out.run(table="public.d", target="to.main.d")
    assert not (tmp_path / "lake" / "main" / "d").exists()


def test_duckdb_through_every_format_and_back(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    """Parquet, CSV, JSON Lines and Parquet again: every format as a source of every other."""
    types = DUCKDB | {name: values for name, values in DUCKDB_ONLY.items() if name != "INTEGER[2]"}
    source = harness("duckdb")
    expected = seed(source, types)
    at: Harness = source
    for place, file_format in enumerate(("parquet", "csv", "jsonl", "csv", "parquet", "jsonl", "parquet")):
        following = FilesHarness(tmp_path / f"lake{place}", file_format)
        Flow(at, following, tmp_path).run()
        at = following
    home = harness("duckdb")
    Flow(at, home, tmp_path).run()
    agree(types, texts(home, types), expected)


@pytest.mark.parametrize("backend", ["sqlite", "memory"])
def test_other_ends_through_files_and_back(
    files: FilesHarness, harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    source, there, home = harness("postgres"), harness(backend), harness("postgres")
    # A double that SQLite does not keep, NaN and -0, stays at home.
    types = {name: values for name, values in POSTGRES.items() if name not in ("real", "double precision")}
    expected = seed(source, types)
    home.execute(*POSTGRES_SETUP)
    Flow(source, there, tmp_path).run()
    Flow(there, files, tmp_path).run()
    again = harness(backend)
    Flow(files, again, tmp_path).run()
    Flow(again, home, tmp_path).run()
    agree(types, texts(home, types), expected)
