"""How large a source says it is: what seems small is sent whole to every task that joins it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.backends import registry
from penstock.backends.base import Capabilities, ReadRequest, RunContext
from penstock.schema import TableName
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Harness

pytestmark = pytest.mark.postgres

ROWS, WIDE = 200, 1000


def size(harness: Harness, run: RunContext, **request: Any) -> int | None:
    kind = registry.backend(harness.backend)
    source = kind.source(kind.config.model_validate(harness.options()), ReadRequest(**request), run)
    try:
        return source.size()
    finally:
        source.close()


@pytest.mark.parametrize("backend", ["postgres", "duckdb", "sqlite", "memory", "files"])
def test_the_size_of_a_table_is_never_far_too_few(
    backend: str, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    made = FilesHarness(tmp_path / "lake") if backend == "files" else harness(backend)
    # Texts that no compression makes small, of about 200,000 bytes.
    digits = "".join(str(n * n) for n in range(400))
    rows = ", ".join(f"({n}, '{(digits[n:] + digits)[:WIDE]}')" for n in range(ROWS))
    made.execute("create table items (id integer, name text)", f"insert into items values {rows}")
    run = RunContext("0" * 32, "sizes", tmp_path / "staging")
    found = size(made, run, table=TableName(made.schema, "items"))
    assert found is not None
    assert found * 4 >= ROWS * WIDE
    assert found < 100 * ROWS * WIDE
    capabilities: Capabilities = made.capabilities
    if capabilities.queries:
        assert size(made, run, query="select * from items") is None, "nobody knows what a query gives"
