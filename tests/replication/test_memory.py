"""A memory store as the target: Arrow tables of this process that follow a database, whole transactions at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow.compute as pc
import pytest

from penstock.backends.memory import memory
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres]


@pytest.fixture
def stand(make: Callable[..., Stand]) -> Stand:
    return make("memory")


def test_copy_then_changes_then_a_new_form(stand: Stand) -> None:
    stand.source.execute(
        "create table items (id bigint primary key, name text, price numeric(20,4), at timestamptz, tags text[])",
        "insert into items select i, 'item ' || i, i / 7.0, timestamptz '2020-01-01 00:00:00+00' + i * interval '1 s',"
        " array['a', null, 'b' || i] from generate_series(1, 2000) i",
        "create table bag (word text)",
        "alter table bag replica identity full",
        "insert into bag select 'w' from generate_series(1, 30) i",
    )
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "bag")
    stand.source.execute(
        "update items set name = upper(name) where id % 3 = 0",
        "delete from items where id % 5 = 0",
        "update items set id = -id where id between 1 and 9",
        "delete from bag where ctid in (select ctid from bag limit 4)",
        "alter table items add column extra int default 7",
        "update items set extra = 8 where id % 2 = 0",
    )
    stand.sync()
    stand.assert_agrees("items", "bag")


def test_a_reader_of_the_store_sees_whole_transactions_only(stand: Stand) -> None:
    stand.source.execute(
        "create table one (id int primary key, balance int)",
        "create table two (id int primary key, balance int)",
        "insert into one values (1, 1000)",
        "insert into two values (1, 1000)",
    )
    stand.start()
    stand.sync()
    store = memory(stand.target.options()["store"])
    sums: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            tables = store.snapshot().tables.values()
            sums.add(sum(pc.sum(table.data["balance"]).as_py() for table in tables))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for amount in range(1, 40):
            stand.source.execute(
                f"begin; update one set balance = balance - {amount}; update two set balance = balance + {amount};"
                " commit"
            )
        stand.sync()
    finally:
        over.set()
        watcher.join()
    assert sums == {2000}
    stand.assert_agrees("one", "two")
