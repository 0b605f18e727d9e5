"""What a value kept as text sorts by, against the order of the values themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_sqlite import dbapi

from penstock.backends.sorting import number_order
from penstock.backends.sqlite.dialect import moment_order
from penstock.backends.sqlite.encode import text_of
from penstock.schema.columns import DATE_INFINITY, TIMESTAMP_INFINITY

DAYS = [-DATE_INFINITY, -2_440_588, -740_000, -719_163, 0, 19_000, 2_932_897, 40_000_000, DATE_INFINITY]


def numbers() -> list[str]:
    chance = random.Random(7)  # noqa: S311  no secret
    made = ["0", "0.00", "0.5", "-0.5", "-0.05", "9", "10", "-9", "-10", "1.5", "1.50", "1.49", "-1.4", "-1.45", "-1"]
    made += ["99999999999999999999", "18446744073709551615", "-12345678901234567890.1", "0.000001", "-0.000001"]
    for _ in range(300):
        whole = str(chance.randrange(10 ** chance.randrange(1, 30)))
        part = "".join(chance.choice("0123456789") for _ in range(chance.randrange(5)))
        made.append(f"{chance.choice(['', '-'])}{whole}{'.' if part else ''}{part}")
    return ["-Infinity", *sorted(made, key=Decimal), "Infinity", "NaN"]


def by_sqlite(expression: str, texts: list[str]) -> list[str]:
    values = ", ".join(f"('{text}')" for text in texts)
    with dbapi.connect(":memory:") as connection, connection.cursor() as cursor:
        cursor.execute(f"select v, {expression} from (select column1 as v from (values {values}))")
        keys = dict(cursor.fetchall())
    return [keys[text] for text in texts]


def by_duckdb(expression: str, texts: list[str]) -> list[str]:
    values = ", ".join(f"('{text}')" for text in texts)
    keys = dict(duckdb.sql(f"select v, {expression} from (values {values}) as t(v)").fetchall())
    return [keys[text] for text in texts]


@pytest.mark.parametrize("engine", [by_sqlite, by_duckdb])
def test_numbers_kept_as_text_sort_as_numbers(engine: Callable[[str, list[str]], list[str]]) -> None:
    texts = numbers()
    keys = engine(number_order("v"), texts)
    assert keys == sorted(keys)
    assert len(set(keys)) == len({Decimal(text) for text in texts})  # 1.5 and 1.50 are one number


@pytest.mark.parametrize(
    "array",
    [
        pa.array(DAYS, pa.int32()).cast(pa.date32()),
        pa.array([-TIMESTAMP_INFINITY, -(2**62), -(10**12), 0, 1, 10**10, 3 * 10**11, 2**62, TIMESTAMP_INFINITY]).cast(
            pa.timestamp("s")
        ),
        pa.array([-(10**17), -(10**17) + 1, -1, 0, 1, 500_000, 10**18, 10**18 + 1]).cast(pa.timestamp("us", "UTC")),
    ],
)
def test_moments_kept_as_text_sort_as_moments(array: pa.Array) -> None:
    texts = text_of(array).to_pylist()
    keys = by_sqlite(moment_order("v"), texts)
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
