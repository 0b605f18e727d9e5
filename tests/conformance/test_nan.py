"""NaN as NULL: asked for by `nan = "null"`, and without another type for the column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

VALUES = (
    "create table items (id int primary key, f float8, r real, d numeric(10,2), n numeric)",
    "insert into items values (1, 'NaN', 'NaN', 'NaN', 'NaN'), (2, 1.5, 1.5, 1.5, 1.5), (3, null, null, null, null),"
    " (4, '-0', 'Infinity', 0, '1e40')",
)
NULL = {name: {"nan": "null"} for name in "frdn"}


def seeded(source: Harness, target: Harness, root: Path) -> Flow:
    source.execute(*VALUES)
    return Flow(source, target, root)


def test_nan_becomes_null_in_duckdb_and_columns_keep_their_types(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    flow = seeded(harness("postgres"), harness("duckdb"), tmp_path)
    for mode in ("append", "truncate"):  # into a new table, and into the one that is there
        flow.run(mode=mode, columns=NULL)
        assert flow.target.query("select typeof(f), typeof(r), typeof(d), typeof(n) from items limit 1") == [
            ("DOUBLE", "FLOAT", "DECIMAL(10,2)", "VARCHAR")
        ]
        rows = flow.target.query("select id, f::varchar, r::varchar, d::varchar, n from items order by id")
        assert rows == [
            (1, None, None, None, None),
            (2, "1.5", "1.5", "1.50", "1.5"),
            (3, None, None, None, None),
            (4, "-0.0", "inf", "0.00", "1" + 40 * "0"),
        ]


@pytest.mark.parametrize("path", ["native", "fused"])
def test_nan_becomes_null_in_postgres_and_columns_keep_their_types(
    harness: Callable[[str], Harness], tmp_path: Path, path: str
) -> None:
    here = harness("postgres")
    flow = seeded(here, here, tmp_path)
    options: dict[str, Any] = {"target": "to.public.copied", "columns": NULL, "path": path}
    for mode in ("append", "truncate"):
        flow.run(mode=mode, **options)
        types = (
            "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = '{}'::regclass and attnum > 0"
        )
        assert here.query(types.format("copied")) == here.query(types.format("items"))
        assert here.query("select copied::text from copied where id > 1 order by id") == here.query(
            "select items::text from items where id > 1 order by id"
        )
        assert here.query("select count(*) from copied where id = 1 and num_nulls(f, r, d, n) = 4") == [(1,)]


def test_nan_becomes_null_before_a_cast(harness: Callable[[str], Harness], tmp_path: Path) -> None:
    flow = seeded(harness("postgres"), harness("duckdb"), tmp_path)
    columns = {"f": {"nan": "null", "type": "decimal(10,2)"}, "r": {"nan": "null", "type": "text"}}
    flow.run(query="select id, f, r from items where id < 4", columns=columns)
    assert flow.target.query("select id, f::varchar, r from items order by id") == [
        (1, None, None),
        (2, "1.50", "1.5"),
        (3, None, None),
    ]
