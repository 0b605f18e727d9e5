"""Types remembered in `_penstock.columns`: whoever may write there must not be able to run anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres]


@pytest.mark.parametrize("backend", ["postgres", "duckdb"])
def test_remembered_spelling_of_duckdb_is_never_run(
    harness: Callable[[str], Harness], tmp_path: Path, backend: str
) -> None:
    """A first load leaves the memory, someone changes it, and a second load reads the table."""
    middle, last, written = harness(backend), harness("duckdb"), tmp_path / "written"
    first = Flow(harness("duckdb"), middle, tmp_path)
    first.source.execute("create table items as select 1 as id, 'a' as v")
    first.run()
    spelling = f"int); copy (select 1) to '{written}'; select cast(null as int".replace("'", "''")
    middle.execute(
        f"update _penstock.columns set native = 'duckdb:{spelling}', logical = '{{\"kind\": \"native\"}}'"
        " where name = 'v'"
    )
    Flow(middle, last, tmp_path).run(path="fused")
    assert last.rows("items") == [(1, "a")]
    assert last.query("select distinct typeof(v) from items") == [("VARCHAR",)]
    assert not written.exists()
