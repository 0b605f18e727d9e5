"""Every end with ORC: a value of every canonical type goes from each source into ORC, and from ORC into each target."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pytest

from penstock.backends.memory.types import field_of
from penstock.errors import DataError
from penstock.run.pipeline import stage_with_spark
from penstock.schema import Column
from penstock.testing.stage import stage_here
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import Flow, Harness, MemoryHarness
from tests.conformance.test_pairs import DATE_INFINITY, ENDS, SQLITE, VALUES, WIDER, end, table, texts, words

__all__ = ["end"]

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.sampled]

KINDS = (*ENDS, "orc")
UNSIGNED = [float("nan"), -0.0]  # NaN is NULL in SQLite, and zero has no sign there
INFINITE = [float("inf"), float("-inf")]


def everything(floats: list[float]) -> pa.Table:
    """What every pair of ends takes but infinite dates, with days and moments that ORC by itself would change."""
    data = table()
    number = next(place for place, (type_, _, _) in enumerate(VALUES) if type_ == pa.date32())
    kept = [value for value in VALUES[number][2] if value != DATE_INFINITY]
    days = [*kept, date(1582, 10, 4), date(1582, 10, 15), date(1, 1, 1)]
    moments = [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1582, 10, 10, 12, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ]
    more = [("day", pa.date32(), days), ("at", pa.timestamp("us", "UTC"), moments)]
    more += [("local", pa.timestamp("us"), [moment.replace(tzinfo=None) for moment in moments])]
    more += [("real", pa.float32(), floats), ("double", pa.float64(), floats)]
    data = data.drop_columns([f"c{number}"])
    for name, type_, values in more:
        cells = pa.array([*values, *[None] * (data.num_rows - len(values))], type_)
        data = data.append_column(field_of(Column(name, type_)), cells)
    return data


@pytest.fixture
def made(end: Callable[[str], Harness], tmp_path: Path) -> Callable[[str], Harness]:
    """An empty end, ORC among them."""
    lakes = iter(range(9))

    def make(kind: str) -> Harness:
        return FilesHarness(tmp_path / f"orc{next(lakes)}", "orc") if kind == "orc" else end(kind)

    return make


def is_orc(end: Harness) -> bool:
    return isinstance(end, FilesHarness) and end.format == "orc"


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_every_type_goes_into_orc_and_back(
    made: Callable[[str], Harness], tmp_path: Path, source: str, target: str
) -> None:
    seed, first, orc, last, home = made("memory"), made(source), made("orc"), made(target), made("memory")
    assert isinstance(seed, MemoryHarness)
    assert isinstance(home, MemoryHarness)
    expected = everything(INFINITE if {source, target} & set(SQLITE) else [*UNSIGNED, *INFINITE])
    seed.store["main.items"] = expected
    for one, other in ((seed, first), (first, orc), (orc, last), (last, home)):
        by_spark = is_orc(one) or is_orc(other)
        record = Flow(one, other, tmp_path, stage_with_spark if by_spark else stage_here).run()
        assert (record.path == "spark") == by_spark
        assert other.leftovers() == []
    found = home.store["main.items"]
    postgres = "postgres" in (source, target)
    assert words(found) == [WIDER.get(word, word) if postgres else word for word in words(expected)]
    assert texts(found) == texts(expected)


@pytest.mark.parametrize("value", UNSIGNED)
@pytest.mark.parametrize("target", SQLITE)
def test_nan_and_negative_zero_of_orc_are_refused_by_sqlite_with_their_key(
    made: Callable[[str], Harness], tmp_path: Path, target: str, value: float
) -> None:
    declared = {"main.items": {"columns": {"id": "bigint", "d": "double"}}}
    source, there = FilesHarness(tmp_path / "orc", "orc", tables=declared), made(target)
    (tmp_path / "orc/main/items").mkdir(parents=True)
    po.write_table(pa.table({"id": [0, 1, 2], "d": [1.0, value, None]}), tmp_path / "orc/main/items/a.orc")
    with pytest.raises(DataError, match="column d ") as caught:
        Flow(source, there, tmp_path, stage_with_spark).run(keys=["id"])
    assert caught.value.keys == ("id=1",)
    assert not there.has_table("items")
    assert there.leftovers() == []
