"""Partitioned tables: what happens to a leaf sends nothing, and is found all the same. And generated columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.conftest import TARGETS
from tests.replication.servers import Servers
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

EVENTS = (
    "create table events (id int, month int, what text, primary key (id, month)) partition by list (month)",
    "create table events_1 partition of events for values in (1)",
    "create table events_2 partition of events for values in (2) partition by range (id)",
    "create table events_2_low partition of events_2 for values from (0) to (100)",
    "create table events_2_high partition of events_2 for values from (100) to (10000)",
    "create table events_4 partition of events for values in (4)",
    "create table loose (id int not null, month int not null, what text, primary key (id, month))",
    "insert into events select i, 1 + i % 2, 'event ' || i from generate_series(1, 300) i",
    "insert into events select i, 4, 'fourth ' || i from generate_series(1, 60) i",
    "insert into loose select i, 3, 'loose ' || i from generate_series(1, 50) i",
)
# Each sends nothing by the root's name.
SILENT = {
    "truncate": "truncate events_2_low",
    "drop": "drop table events_1",
    "detach": "alter table events detach partition events_4",
    "detach below": "alter table events_2 detach partition events_2_high",
    "attach": "alter table events attach partition loose for values in (3)",
}
Make = Callable[..., Stand]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)


def begun(stand: Stand) -> Stand:
    stand.replication = stand.replication.model_copy(update={"tables": ("public.events",)})
    stand.source.execute(*EVENTS)
    stand.start()
    stand.sync()
    stand.assert_agrees("events")
    return stand


def recopied(stand: Stand) -> Callable[[], bool]:
    """Whether the root has been copied again since."""
    assert stand.agent is not None
    ledger = stand.agent._at.ledger
    name = next(state.source for state in ledger.tables())
    before = ledger.table(name)
    assert before is not None
    outline = before.outline

    def again() -> bool:
        if stand.error is not None:
            raise stand.error
        state = ledger.table(name)
        return state is not None and state.outline != outline and state.phase == "streaming"

    return again


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("target", TARGETS)
def test_partitions_are_kept_by_their_root(make: Make, target: str) -> None:
    """A day of retention: leaves come and go while rows move between them."""
    stand = begun(make(target))
    for statement in SILENT.values():
        again = recopied(stand)
        stand.source.execute("update events set what = what || '.' where id % 7 = 0", statement)
        await_true(again, 60, lambda: stand.seen)
        stand.source.execute("update events set what = what || '!' where id % 11 = 0")
        stand.sync()
        stand.assert_agrees("events")
    stand.source.execute(
        "create table events_5 partition of events for values in (5)",
        "insert into events values (1, 5, 'in a new leaf')",
        "update events set month = 5 where month = 3 and id % 2 = 0",  # into another leaf
        "delete from events where id % 13 = 0",
    )
    stand.sync()
    stand.assert_agrees("events")
    stand.source.execute("truncate events", "insert into events values (7, 5, 'after')")
    stand.sync()
    stand.assert_agrees("events")


def test_a_leaf_is_found_with_the_next_change_of_its_root(make: Make) -> None:
    """Without waiting for a minute to pass: the log tells that the root has another form."""
    stand = begun(make("sqlite"))
    again = recopied(stand)
    stand.source.execute(SILENT["attach"], "insert into events values (1000, 3, 'tells')")
    await_true(again, 30, lambda: stand.seen)
    stand.sync()
    stand.assert_agrees("events")


@pytest.mark.parametrize("how", SILENT)
def test_a_leaf_is_found_at_the_next_start(make: Make, how: str) -> None:
    stand = begun(make("sqlite"))
    stand.stop()
    stand.source.execute(SILENT[how])
    stand.start()
    stand.sync()
    stand.assert_agrees("events")


# ---------------------------------------------------------------- generated columns

PRICES = (
    "create table prices (id int primary key, net int, tax int, gross int generated always as (net + tax) stored)",
    "insert into prices select i, i, 2 from generate_series(1, 100) i",
)


@pytest.mark.parametrize("target", TARGETS)
def test_generated_columns_of_the_newest_are_replicated_where_they_are_stored(make: Make, target: str) -> None:
    stand = make(target)
    stand.source.execute(*PRICES, "alter table prices add column twice int generated always as (net * 2) virtual")
    stand.start()
    stand.sync()
    stand.source.execute("update prices set net = 1000 where id < 10", "insert into prices values (500, 1, 1)")
    stand.sync()
    rows = stand.source.query("select id, net, tax, gross from prices order by id")
    assert stand.target.query("select id, net, tax, gross from prices order by id") == rows
    assert "twice" not in stand.target.columns("prices")


@pytest.mark.parametrize("version", [15, 17])
def test_generated_columns_of_older_ones_are_left_out_and_told(
    make: Make, servers: Servers, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers.start(install=installed(version))
    stand = make("sqlite", PostgresHarness(server.dsn))
    stand.source.execute(*PRICES)
    stand.start()
    stand.sync()
    stand.source.execute("update prices set net = 1000 where id < 10", "insert into prices values (500, 1, 1)")
    stand.sync()
    rows = stand.source.query("select id, net, tax from prices order by id")
    assert stand.target.query("select id, net, tax from prices order by id") == rows
    assert "gross" not in stand.target.columns("prices")
    assert any("gross is left out" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("version", [14, 15])
def test_partitions_on_older_servers(make: Make, servers: Servers, version: int) -> None:
    server = servers.start(install=installed(version))
    stand = begun(make("sqlite", PostgresHarness(server.dsn)))
    again = recopied(stand)
    stand.source.execute(SILENT["drop"])
    await_true(again, 60, lambda: stand.seen)
    stand.sync()
    stand.assert_agrees("events")
