"""Files hold every value as it was: from Postgres into each format and back, compared as the server prints it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness
from tests.conformance.test_exactness import EVERY, POSTGRES_SETUP, agree, seed, texts
from tests.conformance.values import DOMAINS, POSTGRES_PRINTED

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
