"""Values that a target cannot hold: one table's trouble, told with its remedy, and healed when the cause is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

# A column, a value of it that does not go in, and what is said of that.
UNFIT = {
    "nan": ("double precision", "'NaN'", "SQLite has no NaN"),
    "negative zero": ("double precision", "'-0'", "SQLite has no negative zero"),
    "nan of a real": ("real", "'NaN'", "SQLite has no NaN"),
}


@pytest.mark.parametrize("by", ["change", "copy"])
@pytest.mark.parametrize("value", list(UNFIT))
def test_a_value_that_does_not_go_in_fails_its_table_alone(make: Callable[..., Stand], value: str, by: str) -> None:
    kind, text, why = UNFIT[value]
    stand = make("sqlite")
    stand.source.execute(
        f"create table odd (id int primary key, a {kind})",
        "insert into odd values (1, 1), (2, 2)",
        "create table others (id int primary key)",
    )
    wrong = f"update odd set a = {text} where id = 2"
    if by == "copy":
        stand.source.execute(wrong)
    stand.start()
    stand.sync()
    if by == "change":
        stand.source.execute(wrong)
    stand.source.execute("insert into others values (1)")
    stand.sync()
    await_true(lambda: stand.state("odd")["phase"] == "failed", 30, lambda: stand.seen)
    assert why in stand.state("odd")["reason"]
    assert f"resync {stand.replication.name} public.odd" in stand.state("odd")["remedy"]
    stand.assert_agrees("others")  # they go on
    if by == "change":
        assert stand.target.query("select a from odd order by id") == [(1.0,), (2.0,)]  # the last that was right
    stand.source.execute("update odd set a = 3 where id = 2", "insert into others values (2)")
    stand.resync("odd")
    stand.sync(settled=True)
    stand.assert_agrees("odd", "others")


def test_what_the_target_itself_refuses_fails_its_table_alone(make: Callable[..., Stand]) -> None:
    stand = make("postgres")
    stand.source.execute("create table odd (id int primary key, a int)", "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.target.execute("alter table odd add constraint small check (a < 100)")
    stand.source.execute(
        "begin; insert into odd values (1, 1000); insert into others values (1); commit",
        "insert into odd values (2, 1)",
    )
    stand.sync()
    await_true(lambda: stand.state("odd")["phase"] == "failed", 30, lambda: stand.seen)
    assert "check constraint" in stand.state("odd")["reason"]
    assert "1000" not in stand.state("odd")["reason"]  # no cell's value is told
    assert stand.state("odd")["remedy"]
    stand.assert_agrees("others")
    stand.target.execute("alter table odd drop constraint small")
    stand.sync(settled=True)  # tried again by itself
    stand.assert_agrees("odd", "others")
