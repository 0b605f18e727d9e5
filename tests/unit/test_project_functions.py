"""`@ps.udf` and `@ps.udaf`: found, checked at load, each mistake told once with its file and line."""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.functions import Misfit, array_of, fitted
from penstock.errors import ConfigError, PenstockError
from penstock.project import decorators, load
from penstock.project.findings import each

Write = Callable[[str], Path]
HEAD = "from __future__ import annotations\nimport datetime\nimport penstock as ps\n\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    path, modules, before = list(sys.path), set(sys.modules), list(decorators.registered.functions)

    def written(module: str) -> Path:
        (tmp_path / "penstock.toml").write_text('[project]\nmodules = ["functions"]\n')
        (tmp_path / "functions.py").write_text(HEAD + module)
        return tmp_path

    yield written
    sys.path[:] = path
    decorators.registered.functions[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def findings(root: Path) -> list[PenstockError]:
    with pytest.raises(PenstockError) as caught:
        load(root)
    return each(caught.value)


@pytest.mark.parametrize(
    ("decorated", "word"),
    [
        ('@ps.udf(returns="decimal(38,2)")\ndef f(a): ...', "decimal(38,2)"),
        ("@ps.udf(returns=ps.Decimal[38, 2])\ndef f(a): ...", "decimal(38,2)"),
        ("@ps.udf\ndef f(a) -> ps.BigInt: ...", "bigint"),
        ("@ps.udaf\ndef f(a, b) -> ps.List[ps.Text]: ...", "text[]"),
        ("@ps.udf(per_row=True)\ndef f(a) -> datetime.date: ...", "date"),
        ("@ps.udf(per_row=True)\ndef f(a) -> int: ...", "bigint"),
        ("@ps.udf\ndef f(a: only.for_a_type_checker) -> ps.Text | None: ...", "text"),
    ],
)
def test_what_it_returns_is_said_in_many_ways(write: Write, decorated: str, word: str) -> None:
    found = load(write(decorated)).functions["f"]
    assert found.word.replace(" ", "") == word
    assert found.place == "functions.py:5"
    assert found.aggregate is ("udaf" in decorated)


@pytest.mark.parametrize(
    ("decorated", "what"),
    [
        ('@ps.udf(returns="decmal(3)")\ndef f(a): ...', "function 'f' returns 'decmal(3)', which is no type"),
        ("@ps.udf\ndef f(a): ...", "what function 'f' returns is not said"),
        ("@ps.udf\ndef f(a) -> int: ...", "what function 'f' returns is not said"),
        ("@ps.udf\ndef f(a) -> Nonsense: ...", "what function 'f' returns is not said"),
        ("@ps.udf(per_row=True)\ndef f(a) -> [int]: ...", "what function 'f' returns is not said"),
        ("@ps.udf\ndef f(a) -> ps.Text | ps.Int: ...", "function 'f' returns no type"),
        ("@ps.udf(per_row=True)\ndef f(a) -> datetime.datetime: ...", "what function 'f' returns is not said"),
        ("@ps.udf(returns=ps.Decimal[99, 2])\ndef f(a): ...", "function 'f' returns no type"),
        ('@ps.udf(returns="numeric")\ndef f(a): ...', "function 'f' returns 'numeric'"),
        ('@ps.udf(returns="text")\ndef f(): ...', "function 'f' takes no argument"),
        ('@ps.udf(returns="text", name="a b")\ndef f(a): ...', "'a b' is no name for a function"),
    ],
)
def test_mistakes_are_told_with_their_line(write: Write, decorated: str, what: str) -> None:
    [found] = findings(write(decorated))
    assert found.what == what
    assert found.place == "functions.py:5"


def test_an_annotation_that_cannot_be_read_is_told_why(write: Write) -> None:
    [found] = findings(write("@ps.udf\ndef f(a) -> ps.Decmal[3, 2]: ..."))
    assert found.what == "what function 'f' returns is not said"
    assert found.why.startswith("its annotation cannot be read: AttributeError: ")
    assert "Decmal" in found.why


def test_a_name_is_taken_once_whatever_its_case(write: Write) -> None:
    [found] = findings(
        write('@ps.udf(returns="text")\ndef f(a): ...\n\n@ps.udf(returns="text", name="F")\ndef g(a): ...')
    )
    assert found.what == "function 'F' is defined twice"
    assert "functions.py:5 and in functions.py:8" in found.why


def test_a_decorated_function_is_still_one() -> None:
    @ps.udf(returns="bigint", per_row=True)
    def twice(number: int) -> int:
        return number * 2

    assert twice(21) == 42
    decorators.registered.functions.remove(twice)
    with pytest.raises(ConfigError, match=r"@ps\.udf is for a function"):
        ps.udf(returns="text")(str)


@pytest.mark.parametrize(
    ("made", "wanted", "why"),
    [
        (pa.array([1.5]), pa.int64(), "it returned double, and is declared to return int64"),
        (pa.array([0.1]), pa.float32(), "it returned double, and is declared to return float"),
        (pa.array([300]), pa.int8(), "it returned a value that int8 cannot hold"),
        (pa.array([2**53 + 1]), pa.float64(), "it returned a value that double cannot hold"),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), "it returned timestamp[us], and is declared"),
        (pa.array([1, 2]), pa.int64(), "it returned 2 values for 1 rows"),
        ([1], pa.int64(), "it returned list, and an Arrow array is wanted"),
    ],
)
def test_a_value_that_would_change_is_a_misfit(made: object, wanted: pa.DataType, why: str) -> None:
    with pytest.raises(Misfit, match="it returned") as caught:
        fitted(made, wanted, 1)
    assert str(caught.value).startswith(why)


def test_what_fits_is_made_exactly_the_declared_type() -> None:
    for made, wanted in (
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array([None]), pa.string()),
        (pa.chunked_array([["a"]], pa.large_string()), pa.string()),
        (pa.array([[1]], pa.large_list(pa.int32())), pa.list_(pa.int64())),
    ):
        assert fitted(made, wanted, 1).type == wanted


ZONED = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
PLAIN = datetime.datetime(2024, 1, 2, 23, 59)
DAY = datetime.date(2024, 1, 1)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([DAY, PLAIN], "it holds date, datetime"),
        ([ZONED, PLAIN], "it holds times with a zone and without"),
        ([PLAIN, None, ZONED], "it holds times with a zone and without"),
        ([pd.Timestamp("2024-01-01 00:00:00.123456789")], "it holds nanoseconds"),
        ([pd.Timedelta(1001, "ns")], "it holds nanoseconds"),
        ([[DAY, PLAIN]], "inside, it holds date, datetime"),
        ([[[DAY]], [[PLAIN]]], "inside, inside, it holds date, datetime"),
        ([{"at": DAY}, {"at": PLAIN}], "inside, it holds date, datetime"),
        ([b"a", "s"], "it holds bytes, str"),
        ([datetime.time(1, tzinfo=datetime.UTC)], "it holds times of day with a zone"),
        ([1.5, True], "it holds bool, float"),
        ([np.array([True]), [2]], "inside, it holds bool, int"),
        ([object()], "it holds object, which is no column type"),
        ([2**70], "it returned values that are of no one type"),
        ([2**53 + 1, 0.5], "it returned values that are of no one type"),
    ],
)
def test_what_a_function_returned_for_rows_is_of_one_kind(values: list[object], why: str) -> None:
    """In either order: which row comes first is a matter of how the rows were cut into batches."""
    for order in (values, values[::-1]):
        with pytest.raises(Misfit) as caught:
            array_of(order)
        assert why in str(caught.value)


def test_whole_numbers_may_stand_among_others() -> None:
    assert array_of([1, 2.5, None]).to_pylist() == [1.0, 2.5, None]
    assert array_of([1, decimal.Decimal("2.5")]).to_pylist() == [1, decimal.Decimal("2.5")]
    assert array_of([pd.Timestamp("2024-01-02 23:59"), PLAIN]).to_pylist() == [PLAIN, PLAIN]
    assert array_of([(1, 2), [3], None]).to_pylist() == [[1, 2], [3], None]
