"""The log as a target and as a source: what one capture has written fills other targets, without the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.backends.change_target import Flush
from penstock.backends.changelog.apply import LogApplier
from penstock.backends.changelog.chain import Chain, Fenced
from penstock.backends.changelog.snapshots import Snapshots
from penstock.errors import PlanRefused, StateError
from penstock.project import Project
from penstock.replicate.agent import Agent
from tests.replication.conftest import TARGETS
from tests.replication.slt import Suite
from tests.replication.stand import Stand, stage_here
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

TYPES = Path(__file__).parent / "suites" / "types.slt"
ITEMS = (
    "create table items (id bigint primary key, name text, price numeric(20,4), at timestamptz, tags text[],"
    " doc jsonb)",
    "insert into items select i, 'item ' || i, i / 7.0, timestamptz '2020-01-01 00:00:00+00' + i * interval '1.5 s',"
    " array['a', null, 'b' || i], jsonb_build_object('i', i) from generate_series(1, 2000) i",
)
BAG = (
    "create table bag (word text, weight float8)",
    "alter table bag replica identity full",
    "insert into bag select 'w' || i % 3, 1.5 from generate_series(1, 30) i",
)
CHANGES = (
    "update items set name = upper(name) where id % 3 = 0",
    "delete from items where id % 5 = 0",
    "insert into items (id, name) values (5, 'again'), (100001, '')",
    "update items set id = -id where id between 1 and 9",
)


@pytest.fixture
def log(make: Callable[..., Stand]) -> Stand:
    return make("files")


@pytest.mark.parametrize("target", TARGETS)
def test_a_log_fills_a_target_and_feeds_it(target: str, log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS, *BAG)
    log.start()
    log.sync()
    log.source.execute(*CHANGES, "delete from bag where ctid in (select ctid from bag where word = 'w1' limit 4)")
    log.sync()
    copy = make(target, of=log)
    copy.start()
    copy.sync()
    copy.assert_agrees("items", "bag")
    log.source.execute("update items set price = -price", "insert into bag values ('w1', 1), ('w1', 1)")
    log.sync()
    copy.sync()
    copy.assert_agrees("items", "bag")


def test_each_target_has_a_watermark_of_its_own_and_a_part_of_the_tables(
    log: Stand, make: Callable[..., Stand]
) -> None:
    log.source.execute(*ITEMS, *BAG)
    log.start()
    log.sync()
    whole, part = make("duckdb", of=log), make("sqlite", of=log, tables=["public.bag"])
    for one in (whole, part):
        one.start()
        one.sync()
    part.stop()
    log.source.execute(*CHANGES, "truncate bag", "insert into bag values ('x', 0.1), ('x', 0.1)")
    log.sync()
    whole.sync()
    whole.assert_agrees("items", "bag")
    log.stop()
    part.start()
    part.sync(mark=whole.position)
    part.assert_agrees("bag")
    assert not part.target.has_table("items")


def test_the_form_of_a_table_changes_in_order_with_its_rows(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    early = make("duckdb", of=log)
    early.start()
    early.sync()
    log.source.execute(
        "insert into items (id, name) values (5001, 'before')",
        "alter table items add column extra int default 7",
        "update items set extra = 8 where id % 2 = 0",
        "alter table items rename column name to title",
        "alter table items drop column doc",
        "insert into items (id, title, extra) values (5002, 'after', null)",
    )
    log.sync()
    early.sync()
    early.assert_agrees("items")
    late = make("sqlite", of=log)
    late.start()
    late.sync()
    late.assert_agrees("items")


def test_rows_that_were_rewritten_without_a_word_are_copied_again_into_the_log_and_behind_it(
    log: Stand, make: Callable[..., Stand]
) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync()
    log.source.execute(
        "alter table items alter price type numeric(20,2) using price * 2",
        "insert into items (id, price) values (9001, 1.25)",
    )
    log.sync()
    copy.sync(settled=True)
    copy.assert_agrees("items")


def test_a_table_that_is_copied_again_into_the_log_is_copied_again_from_it(
    log: Stand, make: Callable[..., Stand]
) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync()
    # As after changes that no log tells of: the target lacks rows, and nothing but a new copy brings them.
    copy.stop()
    copy.target.execute("delete from items where id < 1000")
    copy.start()
    copy.sync()
    before = len(Snapshots(log.log).all())
    log.resync("items")
    await_true(lambda: len(Snapshots(log.log).all()) > before, 30.0, lambda: log.seen)
    log.sync()
    copy.sync(settled=True)
    copy.assert_agrees("items")


def test_a_transaction_too_large_to_be_held_comes_through_the_log(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute("create table many (id int primary key, v text)", "insert into many values (0, 'first')")
    log.start()
    log.sync()
    log.source.execute("insert into many select i, repeat(md5(i::text), 4) from generate_series(1, 400000) i")
    log.sync(120.0)
    assert list(log.log.glob("*.changes"))
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync(120.0)
    copy.assert_agrees("many")


def test_a_log_without_copies_is_refused_as_the_source_of_an_empty_target(make: Callable[..., Stand]) -> None:
    plain = make("duckdb")
    plain.source.execute(*ITEMS)
    plain.start()
    plain.sync()
    plain.source.execute("update items set name = ''")
    plain.sync()
    copy = make("sqlite", of=plain)
    with pytest.raises(PlanRefused, match=r"the log has no copy of public\.items") as refused:
        copy.start().sync()
    assert "keep_copy" in refused.value.remedy
    copy.error = None


def test_a_log_that_has_lost_its_beginning_is_a_gap(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync()
    copy.stop()
    log.source.execute(*CHANGES)
    log.sync()
    log.source.execute("update items set name = 'later'")
    log.sync()
    log.stop()
    chain = Chain(log.log)
    chain.remove_until(chain.numbers()[-2])
    with pytest.raises(StateError, match=": gap"):
        copy.start().sync()
    copy.error = None


def test_of_two_agents_that_write_one_log_the_first_is_fenced(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    log.stop()
    first, second = LogApplier(log.log), LogApplier(log.log)
    position = first.claim().position
    assert second.claim().position == position
    with pytest.raises(Fenced):
        first.flush(Flush(position, position))
    second.flush(Flush(position, position))
    log.source.execute(*CHANGES)
    log.start()
    log.sync()
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync()
    copy.assert_agrees("items")


def test_a_buffer_that_keeps_the_copy_fills_another_target(make: Callable[..., Stand]) -> None:
    plain = make("duckdb", buffer={"segment_ms": 5, "keep_copy": True, "retain": "1ms"})
    plain.source.execute(*ITEMS, *BAG)
    plain.start()
    plain.sync()
    await_true(lambda: len(Snapshots(plain.log).newest()) == 2, 30.0, lambda: plain.seen)
    plain.source.execute(*CHANGES, "insert into bag values ('w1', 1), ('w1', 1)")
    plain.sync()
    copy = make("sqlite", of=plain)
    copy.start()
    copy.sync()
    copy.assert_agrees("items", "bag")
    # A table that is copied again into the target is copied again into the buffer, and from there.
    before = Snapshots(plain.log).newest()
    plain.resync("bag")
    await_true(lambda: Snapshots(plain.log).newest() != before, 30.0, lambda: plain.seen)
    plain.source.execute("delete from bag where word = 'w1'")
    plain.sync()
    copy.sync(settled=True)
    copy.assert_agrees("items", "bag")


def test_a_copy_beside_the_buffer_goes_on_after_a_stop(make: Callable[..., Stand]) -> None:
    plain = make("sqlite", buffer={"segment_ms": 5, "keep_copy": True}, apart=True, range_bytes=1 << 14)
    plain.source.execute(*ITEMS)
    reached = plain.root / "reached"
    plain.start(f"copy.loaded=once:{reached}:kill")  # of the first of the two copies
    plain.sync()
    assert reached.exists()
    plain.kill()
    plain.start()
    await_true(lambda: bool(Snapshots(plain.log).newest()), 30.0, lambda: plain.seen)
    plain.source.execute(*CHANGES)
    plain.sync()
    copy = make("duckdb", of=plain)
    copy.start()
    copy.sync()
    copy.assert_agrees("items")


def test_the_log_of_a_replication_is_named_by_it(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS)
    log.start()
    log.sync()
    copy = make("duckdb")
    copy.replication = copy.replication.model_copy(update={"source": f"replication:{log.replication.name}"})
    ends = {"to": copy.target.options(), "from_": log.source.options(), "logs": log.target.options()}
    writes = log.replication.model_copy(update={"target": "logs"})
    project = replace(
        Project.from_objects(log.root, connections=ends),
        replications={writes.name: writes, copy.replication.name: copy.replication},
    )
    Agent(project, copy.replication, stage=stage_here).run(until_caught_up=True)
    copy.source = log.source
    copy.assert_agrees("items")


def test_a_table_that_the_log_tells_no_more_of_is_said_to_have_failed(log: Stand, make: Callable[..., Stand]) -> None:
    log.source.execute(*ITEMS, *BAG)
    log.start()
    log.sync()
    copy = make("duckdb", of=log)
    copy.start()
    copy.sync()
    log.stop()
    every = log.replication
    log.replication = every.model_copy(update={"tables": ("public.items",)})
    log.start()
    log.source.execute(*CHANGES, "insert into bag values ('unseen', 0)")
    log.sync()
    copy.sync()
    await_true(lambda: copy.state("bag")["phase"] == "failed", 30.0, lambda: copy.seen)
    assert "left the table out" in copy.state("bag")["reason"]
    copy.assert_agrees("items")
    log.stop()
    log.replication = every
    log.start()
    log.sync()
    copy.sync(settled=True)
    copy.assert_agrees("items", "bag")


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
def test_values_of_every_type_come_through_the_log(target: str, log: Stand, make: Callable[..., Stand]) -> None:
    suite = Suite.read(TYPES)
    log.source.execute(*suite.setup)
    log.start()
    log.sync()
    early = make(target, of=log)
    early.start()
    early.sync()
    steps = [step for case in suite.cases for step in case.steps]
    log.source.execute(*(step.text for step in steps if step.word == "source"))
    log.sync()
    asked = [step.text.partition(" ") for step in steps if step.word == "agree"]
    # What a target refuses, it refuses from a log too.
    refused = {table for table, _, unless in asked if unless.startswith(f"unless {target} ")}
    tables = {table for table, _, _ in asked} - refused
    assert len(tables) > 20
    early.sync()
    early.assert_agrees(*sorted(tables))
