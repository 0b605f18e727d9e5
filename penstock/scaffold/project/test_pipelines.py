"""A test of one's own: the project on a copy, with a shop and a warehouse of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import duckdb

PROJECT = Path(__file__).parent


def test_revenue_is_the_sum_of_a_countrys_orders(tmp_path: Path) -> None:
    for name in ("penstock.toml", "pipelines.py", "shop.py"):
        shutil.copy(PROJECT / name, tmp_path)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    subprocess.run(["penstock", "run", "revenue"], cwd=tmp_path, check=True)
    with duckdb.connect(str(tmp_path / "warehouse.duckdb"), read_only=True) as warehouse:
        rows = warehouse.sql("select country, orders, revenue from revenue order by country").fetchall()
    assert rows == [
        ("DE", 100, Decimal("73867.50")),
        ("FR", 50, Decimal("36382.50")),
        ("GB", 50, Decimal("37485.00")),
    ]
