"""Two versions of a table: what differs, and rows of the old one in the form of the new one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.backends import changes
from penstock.backends.changes import ChangedColumn, StoredChanges, TableChanges, TableVersion
from penstock.replicate.versions import Differences, aligned, differences, newest
from tests.unit.changelog_rows import rows, version


def column(
    name: str, number: int = 0, *, key: bool = False, native: str = "text", missing: str | None = None
) -> ChangedColumn:
    return ChangedColumn(name, f"postgres:{native}", key, number, missing)


ID, NAME = column("id", 1, key=True), column("name", 2)
OLD = version(ID, NAME)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (version(ID, NAME), Differences()),
        (version(NAME, ID), Differences()),
        (version(ID, NAME, column("x", 3)), Differences(added=(column("x", 3),))),
        (version(ID, column("title", 2)), Differences(renamed=(("name", "title"),))),
        (version(ID), Differences(dropped=("name",))),
        # Dropped and added under the same name: another column, whatever it is called.
        (
            version(ID, column("name", 3, native="bigint")),
            Differences(added=(column("name", 3, native="bigint"),), dropped=("name",)),
        ),
        # And of the same type: nobody can tell which of the two a change is of.
        (
            version(ID, column("name", 3)),
            Differences(added=(column("name", 3),), dropped=("name",), rewritten=True),
        ),
        (
            version(ID, column("name", 2, native="varchar(5)")),
            Differences(retyped=((NAME, column("name", 2, native="varchar(5)")),)),
        ),
        (version(ID, column("name", 2, key=True)), Differences(rekeyed=True)),
        (version(NAME), Differences(dropped=("id",), rekeyed=True)),
        (
            version(ID, NAME, column("k", 3, key=True)),
            Differences(added=(column("k", 3, key=True),), rekeyed=True),
        ),
        # Two that have changed their names with each other.
        (
            version(column("name", 1, key=True), column("id", 2)),
            Differences(renamed=(("id", "name"), ("name", "id"))),
        ),
    ],
)
def test_what_differs(new: TableVersion, expected: Differences) -> None:
    found = differences(OLD, new)
    assert found == expected
    assert bool(found) == (expected != Differences())


def test_without_numbers_columns_go_by_their_names() -> None:
    old, new = version(column("id", key=True), column("a")), version(column("id", key=True), column("b"))
    assert differences(old, new) == Differences(added=(column("b"),), dropped=("a",))


@pytest.mark.parametrize(
    ("old", "new", "rewritten"),
    [
        (("1", "x"), ("1", "x"), False),
        (("1", "x"), ("2", "x"), False),  # VACUUM FULL: another file, the same columns
        (("1", "x"), ("1", "y"), False),  # a column was added, no row was touched
        (("1", "x"), ("2", "y"), True),  # an ALTER that gave every row another value
        (("", ""), ("2", "y"), False),  # nothing is known of the one before
    ],
)
def test_rows_that_were_rewritten_without_a_change(
    old: tuple[str, str], new: tuple[str, str], *, rewritten: bool
) -> None:
    made = [version(ID, NAME, file=file, stamp=stamp) for file, stamp in (old, new)]
    assert differences(*made).rewritten is rewritten


def _changes(of: TableVersion, given: dict[str, list[object]]) -> TableChanges:
    count = len(given["n0"])
    kinds = {"u": pa.bool_()}
    columns = {"tx": pa.array([0] * count, pa.int32()), "seq": pa.array(range(count), pa.int64())}
    columns["op"] = pa.array([changes.UPDATE] * count, pa.int8())
    columns |= {name: pa.array(values, kinds.get(name[0], changes.VALUE)) for name, values in given.items()}
    return TableChanges(of, pa.table(columns))


def test_rows_keep_their_values_masks_and_old_values_where_columns_have_moved() -> None:
    new = version(column("title", 2), ID)
    old = _changes(OLD, {"n0": ["1", "2"], "n1": ["a", None], "u1": [False, True], "o0": ["9", None]})
    found = aligned([old], new).to_pydict()
    assert (found["n0"], found["u0"], found["n1"], found["o1"]) == (["a", None], [False, True], ["1", "2"], ["9", None])
    assert "o0" not in found


def test_a_column_that_is_new_has_what_older_rows_have_of_it() -> None:
    new = version(ID, NAME, column("at", 3, missing="2020-01-01"), column("none", 4))
    later = _changes(new, {"n0": ["2"], "n1": ["b"], "n2": [None], "n3": ["x"]})
    found = aligned([_changes(OLD, {"n0": ["1"], "n1": ["a"]}), later], new)
    assert found["n2"].to_pylist() == ["2020-01-01", None]
    assert found["n3"].to_pylist() == [None, "x"]


def test_an_old_row_under_full_identity_has_the_new_column_too() -> None:
    """It is what a delete looks for: without the value that old rows have, it would find none."""
    old = version(ID, NAME, identity="full")
    new = version(ID, NAME, column("extra", 3, missing="7"), identity="full")
    found = aligned([_changes(old, {"n0": ["1"], "n1": ["b"], "o0": ["1"], "o1": ["a"]})], new)
    assert (found["n2"].to_pylist(), found["o2"].to_pylist()) == (["7"], ["7"])


def test_a_column_that_is_gone_is_left_out() -> None:
    found = aligned([_changes(OLD, {"n0": ["1"], "n1": ["a"], "u1": [True]})], version(ID))
    assert found.column_names == ["tx", "seq", "op", "n0"]


def test_the_newest_version_is_that_of_the_last_change() -> None:
    new = version(ID)
    first = TableChanges(OLD, rows([(0, 5, "a"), (1, 1, "b")]))
    assert newest([first, TableChanges(new, rows([(1, 2, "c")]))]) == new
    assert newest([TableChanges(new, rows([(0, 9, "c")])), first]) == OLD
    # Pieces of a large transaction have no places here: they come in their order.
    pieces = [StoredChanges(one, "f", 1, 1, 2) for one in (OLD, new)]
    assert newest([first, *pieces]) == new
    assert newest([StoredChanges(new, "f", 1, 1, 0), first]) == OLD
