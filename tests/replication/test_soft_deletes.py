"""`deletes = "soft"`: a row that is gone at the source stays in the target, marked, as it was last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.conftest import TARGETS
from tests.replication.stand import BAG, Stand

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]
# A change of a key brings a value out of line only if it has changed itself.
ITEMS = (
    "create table items (id int primary key, name text, body text)",
    "alter table items alter body set storage external",
    "insert into items select i, 'item ' || i, repeat(i::text, 4000) from generate_series(1, 4) i",
)


@pytest.fixture
def soft(make: Make) -> Callable[..., Stand]:
    """It has copied the items."""

    def started(target: str, **options: Any) -> Stand:
        stand = make(target, deletes="soft", **options)
        stand.source.execute(*ITEMS)
        stand.start()
        stand.sync()
        assert kept(stand) == [(i, f"item {i}", str(i), False) for i in range(1, 5)]
        return stand

    return started


def kept(stand: Stand) -> list[tuple[Any, ...]]:
    """Whether a row is marked is a number where there are no booleans."""
    body = "case when length(body) = 4000 then substr(body, 1, 1) else body end"
    rows = stand.target.query(f"select id, name, {body}, _penstock_deleted from items order by id")
    return [(*values, bool(marked)) for *values, marked in rows]


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_that_is_deleted_stays_marked_until_its_key_comes_again(soft: Make, target: str) -> None:
    stand = soft(target)
    stand.source.execute("update items set name = 'last' where id = 2")
    stand.sync()
    stand.source.execute("delete from items where id in (2, 3)")
    stand.sync()
    assert kept(stand) == [
        (1, "item 1", "1", False),
        (2, "last", "2", True),
        (3, "item 3", "3", True),
        (4, "item 4", "4", False),
    ]
    stand.stop()
    stand.source.execute("insert into items values (2, 'again', null)")
    stand.start()
    stand.sync()
    assert kept(stand) == [
        (1, "item 1", "1", False),
        (2, "again", None, False),
        (3, "item 3", "3", True),
        (4, "item 4", "4", False),
    ]
    stand.source.execute("delete from items where id = 2")
    stand.sync()
    assert kept(stand)[1] == (2, "again", None, True)


@pytest.mark.parametrize("target", TARGETS)
def test_a_key_that_changes_leaves_a_marked_row(soft: Make, target: str) -> None:
    stand = soft(target)
    stand.source.execute("delete from items where id = 4")
    stand.sync()
    # One to a key that never was, and one to that of a marked row: the value out of line comes from the old key.
    stand.source.execute("update items set id = 9 where id = 1", "update items set id = 4, name = 'new' where id = 2")
    stand.sync()
    assert kept(stand) == [
        (1, "item 1", "1", True),
        (2, "item 2", "2", True),
        (3, "item 3", "3", False),
        (4, "new", "2", False),
        (9, "item 1", "1", False),
    ]


@pytest.mark.parametrize(
    ("target", "truncate_with"), [("postgres", "truncate"), ("duckdb", "truncate"), ("sqlite", "delete")]
)
def test_a_truncate_marks_every_row(soft: Make, target: str, truncate_with: str) -> None:
    """However it is asked for: TRUNCATE would leave nothing to mark."""
    stand = soft(target, truncate_with=truncate_with)
    stand.source.execute("delete from items where id = 1", "truncate items")
    stand.sync()
    gone = [(i, f"item {i}", str(i), True) for i in range(1, 5)]
    assert kept(stand) == gone
    stand.source.execute("insert into items values (2, 'between', 'b'), (3, 'between', 'c')")
    stand.sync()
    stand.source.execute("truncate items", "insert into items values (3, 'after', 'd')")
    stand.sync()
    assert kept(stand) == [gone[0], (2, "between", "b", True), (3, "after", "d", False), gone[3]]


@pytest.mark.parametrize("target", TARGETS)
def test_of_equal_rows_without_a_key_as_many_are_marked_as_go(make: Make, target: str) -> None:
    stand = make(target, deletes="soft")
    stand.source.execute(*BAG, "insert into bag values ('a'), ('a'), ('a'), ('b')")
    stand.start()
    stand.sync()
    one = "delete from bag where ctid in (select ctid from bag where v = 'a' limit 1)"
    stand.source.execute(one)
    stand.sync()
    assert bag(stand) == {("a", True): 1, ("a", False): 2, ("b", False): 1}
    stand.source.execute(one, one)
    stand.sync()
    assert bag(stand) == {("a", True): 3, ("b", False): 1}
    # Of one that comes and goes again it is that one, and none that is marked already.
    stand.source.execute("insert into bag values ('a')")
    stand.sync()
    assert bag(stand) == {("a", True): 3, ("a", False): 1, ("b", False): 1}
    stand.source.execute(one)
    stand.sync()
    assert bag(stand) == {("a", True): 4, ("b", False): 1}


def bag(stand: Stand) -> dict[tuple[str, bool], int]:
    """How often each row is there, marked and not."""
    rows = stand.target.query("select v, _penstock_deleted, count(*) from bag group by v, _penstock_deleted")
    return {(value, bool(marked)): count for value, marked, count in rows}
