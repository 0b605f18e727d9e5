"""The whole way, once per target: copy, changes, a stop and a start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from penstock.backends.base import Receipt, RunContext
from penstock.engine.task import Work
from penstock.project import Project
from penstock.project.replications import TableOptions
from penstock.replicate.copy import stage_with_spark
from tests.replication.conftest import TARGETS
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

ITEMS = (
    "create table items (id bigint primary key, name text, price numeric(20,4), at timestamptz, tags text[],"
    " doc jsonb)",
    "insert into items select i, 'item ' || i, i / 7.0, timestamptz '2020-01-01 00:00:00+00' + i * interval '1.5 s',"
    " array['a', null, 'b' || i], jsonb_build_object('i', i) from generate_series(1, 2000) i",
)


def test_copy_then_changes_then_a_restart(stand: Stand) -> None:
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.assert_agrees("items")
    stand.source.execute(
        "update items set name = upper(name) where id % 3 = 0",
        "delete from items where id % 5 = 0",
        "insert into items (id, name) values (5, 'again'), (100001, '')",
        "update items set id = -id where id between 1 and 9",
    )
    stand.sync()
    stand.assert_agrees("items")
    stand.stop()
    stand.source.execute("update items set price = -price", "delete from items where id < 0")
    stand.start()
    stand.sync()
    stand.assert_agrees("items")


@pytest.mark.spark
@pytest.mark.parametrize("target", TARGETS)
def test_spark_copies_the_tables_and_folds_large_flushes(target: str, make: Callable[..., Stand]) -> None:
    ran: list[str] = []

    def stage(project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
        receipts = stage_with_spark(project, pieces, run)
        ran.extend(type(piece).__name__ for piece in pieces)
        assert os.getpid() not in {receipt.pid for receipt in receipts}
        return receipts

    stand = make(target, stage=stage, apply_in_driver_rows=1000)
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    assert set(ran) == {"Piece"}
    stand.source.execute("update items set name = 'one' where id = 1")
    stand.sync()
    assert set(ran) == {"Piece"}  # a small one is folded here
    stand.source.execute("update items set name = upper(name), price = price + 1")
    stand.sync()
    assert "FoldPiece" in ran
    stand.assert_agrees("items")


def test_a_table_without_a_key_is_kept_as_a_bag(stand: Stand) -> None:
    stand.source.execute(
        "create table words (word text, weight float8, doc json)",
        "alter table words replica identity full",
        "insert into words select 'w' || i % 3, 1.5, '{\"a\": 1}' from generate_series(1, 30) i",
    )
    stand.start()
    stand.sync()
    stand.assert_agrees("words")
    stand.source.execute(
        "delete from words where ctid in (select ctid from words where word = 'w1' limit 4)",
        "update words set word = null where ctid in (select ctid from words where word = 'w2' limit 2)",
        "insert into words values ('w1', 1, null), ('w1', 1, null)",
        "truncate words",
        "insert into words values ('x', 0.1, '[]'), ('x', 0.1, '[]'), ('x', 0.1, '[]')",
        "delete from words where ctid in (select ctid from words limit 1)",
    )
    stand.sync()
    stand.assert_agrees("words")


def test_columns_rows_and_names_as_they_are_asked_for(stand: Stand) -> None:
    stand.replication = stand.replication.model_copy(
        update={
            "options": {
                "public.items": TableOptions(
                    exclude=("doc",), where="id > 10", rename={"id": "item_id", "name": "title"}, target="things"
                )
            }
        }
    )
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.source.execute(
        "update items set name = 'changed' where id between 5 and 15",
        "update items set id = 5000 where id = 1",  # into what is asked for
        "update items set id = -20 where id = 20",  # and out of it
        "alter table items add column extra int default 7",
        "delete from items where id = 30",
    )
    stand.sync()
    source = stand.source.query("select id, name, price::text from items where id > 10 order by id")
    target = stand.target.query("select item_id, title, cast(price as varchar) from things order by item_id")
    assert [tuple(map(str, row)) for row in target] == [tuple(map(str, row)) for row in source]
    assert "doc" not in stand.target.columns("things")
