"""Tables that the source alters without changing a row of them: the log tells nothing, and the target follows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock.errors import PenstockError
from tests.conformance.harness import PostgresHarness
from tests.replication.conftest import TARGETS
from tests.replication.servers import Servers
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

Make = Callable[..., Stand]
FORMS = {
    "a new column with a default": ["alter table items add column c int default 7"],
    "a new column that each row computes": ["alter table items add column c text default md5(random()::text)"],
    "a column less": ["alter table items drop column b"],
    "another name": ["alter table items rename column b to c"],
    "a wider type": ["alter table items alter b type bigint"],
    "other values": ["alter table items alter b type bigint using b * 2"],
    "a column of the same name and type": ["alter table items drop column b", "alter table items add column b int"],
    "one form after another": ["alter table items add column c int default 7", "alter table items drop column a"],
}


def begun(make: Make, target: str) -> Stand:
    stand = make(target)
    stand.source.execute(
        "create table items (id int primary key, a text, b int)",
        "insert into items select i, 'a' || i, i from generate_series(1, 20) i",
        "create table bag (a text, b int)",
        "alter table bag replica identity full",
        "insert into bag select 'a', i % 3 from generate_series(1, 20) i",
    )
    stand.start()
    stand.sync()
    return stand


def agrees(stand: Stand, *tables: str) -> Callable[[], bool]:
    def found() -> bool:
        if stand.error is not None:
            raise stand.error
        try:
            stand.assert_agrees(*tables)
        except (AssertionError, PenstockError, psycopg.errors.UndefinedColumn):
            return False
        return True

    return found


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_no_change_tells_of_is_found_at_a_look(
    make: Make, monkeypatch: pytest.MonkeyPatch, target: str, form: str
) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)
    stand = begun(make, target)
    bag = [statement.replace("items", "bag") for statement in FORMS[form]]
    stand.source.execute(*FORMS[form], *bag)
    await_true(agrees(stand, "items", "bag"), 60, lambda: stand.seen)
    stand.source.execute("update items set id = id + 100", "delete from bag where ctid = '(0,1)'")
    stand.sync()
    stand.assert_agrees("items", "bag")
    stand.stop()
    # A column that has gone is not missed by its rows.
    held = {name for name in stand.target.columns("items") if not name.startswith("_penstock")}
    assert held == set(stand.source.columns("items"))


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_no_change_tells_of_is_found_at_a_start(make: Make, target: str, form: str) -> None:
    stand = begun(make, target)
    stand.stop()
    stand.source.execute(*FORMS[form], *(statement.replace("items", "bag") for statement in FORMS[form]))
    stand.start()
    stand.sync()
    stand.assert_agrees("items", "bag")


@pytest.mark.parametrize("target", ["postgres", "files"])
def test_values_of_a_column_that_has_gone_are_none_of_the_one_that_has_come(make: Make, target: str) -> None:
    """Of one name and type: the version before looks like the one after, and the catalog knows only the later one."""
    stand = begun(make, target)
    reader = make("duckdb", of=stand).start() if target == "files" else stand
    for table in ("items", "bag"):
        stand.source.execute(  # in one transaction
            f"update {table} set b = 1000 where b = 1; alter table {table} drop column b;"
            f" alter table {table} add column b int; update {table} set b = 5 where a like 'a%'"
        )
    stand.sync(settled=True)
    reader.sync(settled=True)
    reader.assert_agrees("items", "bag")


# ---------------------------------------------------------------- the log is ahead of the catalog

ALTERED = {
    "each row computes a value": "alter table items add column c text default md5(random()::text)",
    "other values of one type": "alter table items alter b type int using b * 2",
}


@pytest.mark.parametrize("streamed", [False, True], ids=["sent whole", "streamed"])
@pytest.mark.parametrize("form", ALTERED)
def test_a_form_is_looked_at_when_its_transaction_is_seen(
    make: Make, servers: Servers, form: str, streamed: bool
) -> None:
    """A commit is sent before others see it: for long, where it waits for a standby that does not answer."""
    memory = "64kB" if streamed else "64MB"
    server = servers.start(logical_decoding_work_mem=memory, synchronous_commit="local")
    source = PostgresHarness(server.dsn)
    stand = make("postgres", source)
    source.execute(
        "create table items (id int primary key, a text, b int)",
        "insert into items select i, repeat('a', 100), i from generate_series(1, 20) i",
    )
    stand.start()
    stand.sync()
    source.execute("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    rows = 5000 if streamed else 5
    change = (
        f"set synchronous_commit = on; {ALTERED[form]};"
        f" insert into items (id, a, b) select i, repeat('a', 100), i from generate_series(101, {100 + rows}) i"
    )
    waits = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(source.execute, change)
        try:
            await_true(lambda: source.query(waits) == [(1,)], 60)
            # All of it has gone to the capture, which asks the catalog for what it may not show yet.
            sent = "select bool_and(sent_lsn >= %s) from pg_stat_replication"
            [(end,)] = source.query("select pg_current_wal_flush_lsn()::text")
            await_true(lambda: source.query(sent.replace("%s", f"'{end}'")) == [(True,)], 60)
            asked = (
                "select count(*) from pg_stat_activity where query like '%transactionid%' and pid <> pg_backend_pid()"
            )
            await_true(lambda: source.query(asked) != [(0,)], 60)
        finally:
            source.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
            done.result(60)
    stand.sync()
    stand.assert_agrees("items")
