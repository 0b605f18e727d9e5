"""The user's functions in a transform's SQL: by name, on Arrow arrays, exactly of the types they declare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.engine import session
from penstock.errors import TransformError
from penstock.project import SparkConfig, decorators
from penstock.project.model import Pipeline
from penstock.run.pipeline import run
from penstock.state import RunRecord, open_store
from tests.conformance.harness import DuckDBHarness, Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

MODULE = """
import decimal

import penstock as ps
import pyarrow as pa
import pyarrow.compute as pc

import rates


@ps.udf(returns="decimal(38,2)")
def gross(price, rate):
    made = pc.multiply(price.cast(pa.decimal128(20, 4)), rate.cast(pa.decimal128(10, 4)))
    return pc.round(pc.multiply(made, pa.scalar(rates.vat())), 2).cast(pa.decimal128(38, 2))


@ps.udf(per_row=True)
def initials(name: str) -> str:
    return None if name is None else "".join(word[0] for word in name.split())


@ps.udaf(returns="bigint")
def spread(values):
    found = pc.min_max(values).as_py()
    return None if found["max"] is None else found["max"] - found["min"]


@ps.udf(per_row=True)
def picky(number: int) -> int:
    if number == 4711:
        raise ValueError(f"secret {number}")
    return number


@ps.udf(returns="bigint", per_row=True)
def half(number):
    return number / 2


@ps.udf(returns="decimal(10,2)", per_row=True)
def third(number):
    return decimal.Decimal(number) / 3


@ps.udf(returns="bigint")
def short(numbers):
    return numbers[:1]


@ps.udf(returns="uuid")
def ident(numbers):
    return numbers


@ps.udf(returns="text", name="UPPER")
def shout(texts):
    return texts
"""


MIXED = "count(*) as n from source"


class Site:
    def __init__(self, root: Path, source: Harness) -> None:
        self.root, self.source = root, source
        self.target = DuckDBHarness(root / "warehouse.duckdb")
        self.project = ps.load_project(root)

    def run(self, transform: str, target: str = "items") -> RunRecord:
        given = {"name": "p", "source": "shop", "table": "public.items", "mode": "truncate", "place": "test"}
        pipeline = Pipeline.model_validate(given | {"target": f"warehouse.main.{target}", "transform": transform})
        return run(self.project, pipeline, open_store("memory:"))[-1]

    def line(self, text: str) -> int:
        return (self.root / "functions.py").read_text().splitlines().index(text) + 1


@pytest.fixture
def site(harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A project whose modules no worker can find: Spark was started for another one."""
    (tmp_path / "elsewhere").mkdir()
    session.spark(SparkConfig(), tmp_path / "elsewhere")
    source = harness("postgres")
    source.execute(
        "create table items (id int primary key, name text, price numeric(10,2), rate numeric(4,2))",
        "insert into items values (1, 'Ann Lee', 10.05, 0.5), (2, 'Bob', 99.99, 1), (3, null, null, 1),"
        " (4711, '', 0, 0)",
    )
    (tmp_path / "rates.py").write_text("import decimal\n\ndef vat():\n    return decimal.Decimal('1.19')\n")
    (tmp_path / "functions.py").write_text(MODULE)
    (tmp_path / "penstock.toml").write_text(
        '[project]\nmodules = ["functions"]\n[connections.shop]\ntype = "postgres"\ndsn = "${SHOP_DSN}"\n'
        '[connections.warehouse]\ntype = "duckdb"\npath = "warehouse.duckdb"\n'
    )
    monkeypatch.setenv("SHOP_DSN", source.options()["dsn"])
    path, functions = list(sys.path), list(decorators.registered.functions)
    yield Site(tmp_path, source)
    sys.path[:] = path
    decorators.registered.functions[:] = functions
    for name in ("functions", "rates"):
        sys.modules.pop(name, None)


def test_functions_are_called_by_name(site: Site) -> None:
    site.run("select id, gross(price, rate) as gross, Initials(name) as initials from source")
    assert site.target.query("select id, cast(gross as varchar), initials from items order by id") == [
        (1, "5.98", "AL"),
        (2, "118.99", "B"),
        (3, None, None),
        (4711, "0.00", ""),
    ]
    [(type_,)] = site.target.query("select data_type from duckdb_columns() where column_name = 'gross'")
    assert type_ == "DECIMAL(38,2)"
    site.run("select id % 2 as odd, spread(id) as spread from source group by id % 2", "groups")
    assert site.target.query("select odd, spread from groups order by odd") == [(0, 0), (1, 4710)]


def test_an_error_names_the_function_and_its_line_and_no_value(site: Site) -> None:
    with pytest.raises(TransformError, match="the function picky failed") as caught:
        site.run("select picky(id) as id from source")
    error = caught.value
    assert (error.why, error.kept) == ("ValueError", "nothing was committed")
    line = site.line('        raise ValueError(f"secret {number}")')
    assert error.place == f"{site.root / 'functions.py'}:{line}"
    assert "4711" not in repr(error.to_record())
    assert not site.target.has_table("items")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        # Spark itself would make 0 of 0.5 and 0.33 of a third.
        ("half(id)", "it returned double, and is declared to return int64"),
        ("third(id)", "it returned a value that decimal128(10, 2) cannot hold"),
        ("short(id)", "it returned 1 values for"),
    ],
)
def test_what_a_function_returns_is_what_it_declares(site: Site, call: str, why: str) -> None:
    with pytest.raises(TransformError, match=r"the function \w+ failed") as caught:
        site.run(f"select {call} as id from source")
    assert why in caught.value.why
    assert "functions.py:" in caught.value.place


@pytest.mark.parametrize(
    ("call", "what", "why"),
    [
        ("gross(price)", "the function gross is called with 1 arguments", "it takes price, rate"),
        ("spread(id)", "an aggregate function of yours stands where Spark cannot call it", "not both"),
        ("ident(id)", "the function ident cannot be used", "Spark has no type for"),
        ("upper(name)", "the function UPPER cannot be used", "Spark has a function of that name"),
    ],
)
def test_what_cannot_be_called_is_told_before_a_row_moves(site: Site, call: str, what: str, why: str) -> None:
    with pytest.raises(TransformError, match=what) as caught:
        site.run(f"select {call} as x from source" if "spread" not in call else f"select {call} as x, {MIXED}")
    assert caught.value.kept == "nothing was touched"
    assert why in caught.value.why
