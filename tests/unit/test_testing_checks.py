"""`penstock.testing.assert_rows`: equal is equal, and a difference is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import duckdb
import pytest

from penstock.backends.base import ConnectionConfig
from penstock.testing import assert_rows, project

EAST = timezone(timedelta(hours=2))


@pytest.fixture
def shop(tmp_path: Path) -> ConnectionConfig:
    file = tmp_path / "shop.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "create table t (id int, name text, moment timestamptz);"
            "insert into t values (1, 'x', '2024-01-09 23:00+00'), (2, 'y', '2024-01-10 21:00+00')"
        )
    return project(tmp_path, {"shop": {"type": "duckdb", "path": str(file)}}).connection("shop")


def test_equal_values_are_equal_however_they_are_written(shop: ConnectionConfig) -> None:
    later = {"moment": datetime(2024, 1, 10, 23, tzinfo=EAST)}
    assert_rows(shop, "main.t", [{"moment": datetime(2024, 1, 10, 1, tzinfo=EAST)}, later])
    assert_rows(shop, "main.t", [later, {"moment": datetime(2024, 1, 9, 23, tzinfo=UTC)}])
    assert_rows(shop, "main.t", [{"id": 2.0}, {"id": 1}])
    assert_rows(shop, "main.t", [{"name": "x", "id": 1}, {"id": 2, "name": "y"}], ordered=True)


def test_a_difference_is_told(shop: ConnectionConfig) -> None:
    with pytest.raises(AssertionError, match=r"holds 2 rows, 3 were expected\n  missing: \(2,\)$"):
        assert_rows(shop, "main.t", [{"id": 2}, {"id": 1}, {"id": 2}])
    with pytest.raises(AssertionError, match=r"missing: \(1, 'y'\)\n  extra:   \(1, 'x'\)$"):
        assert_rows(shop, "main.t", [{"id": 1, "name": "y"}, {"id": 2, "name": "y"}])
    with pytest.raises(AssertionError, match="the same, in another order"):
        assert_rows(shop, "main.t", [{"id": 2}, {"id": 1}], ordered=True)
    with pytest.raises(AssertionError, match="0 were expected"):
        assert_rows(shop, "main.t", [])


def test_rows_that_name_different_columns_are_refused(shop: ConnectionConfig) -> None:
    with pytest.raises(TypeError, match="do not all name the same columns"):
        assert_rows(shop, "main.t", [{"id": 1, "name": "x"}, {"id": 2}])
