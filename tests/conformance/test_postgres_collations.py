"""Keys under collations that find different texts equal; the suite's own server has none, older builds do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.harness import Flow
from tests.conformance.postgres_versions import OldServer, emptied, old

__all__ = ["emptied", "old"]

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("path", ["native", "fused"])
def test_collations_of_the_source_do_not_decide_at_the_target(old: OldServer, tmp_path: Path, path: str) -> None:
    """To the source 'A' and 'a' are equal, to the target they are two keys."""
    here = old.one
    here.execute(
        "create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "create table words (k text collate blind, c char(3) collate blind)",
        "insert into words values ('A', 'x')",
        "create table items (k text primary key, c char(3))",
        "insert into items values ('a', 'y')",
    )
    record = Flow(here, here, tmp_path).run(table="public.words", mode="merge", keys=["k"], path=path)
    assert (record.inserted, record.updated) == (1, 0)
    assert here.query('select k, c from items order by k collate "C"') == [("A", "x  "), ("a", "y  ")]
