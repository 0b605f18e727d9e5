"""An application at work all along: whatever a replication does, its statements neither fail nor wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.errors import PlanRefused
from penstock.project.replications import TableOptions
from penstock.replicate.tables import ends_of, requests
from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.servers import Servers
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]
# Each with a column `n`, which is updated; what comes behind is why the server would refuse that in a publication.
TABLES = {
    "items": "create table items (id bigint primary key, n int)",
    "whole": "create table whole (id int, n int); alter table whole replica identity full",
    "words": "create table words (id int, n int)",  # no key
    "named": "create table named (id int, n int)",  # no key, and named letter by letter
    "nothing": "create table nothing (id int primary key, n int); alter table nothing replica identity nothing",
    "deferred": "create table deferred (id int primary key deferrable, n int)",
    "unindexed": "create table unindexed (id int not null, n int); create unique index gone on unindexed (id);"
    " alter table unindexed replica identity using index gone; drop index gone",
    "parent": "create table parent (id int primary key, n int); create table heir () inherits (parent);"
    " insert into heir select i, 0 from generate_series(1000, 1050) i",
    "parted": "create table parted (id int primary key, n int) partition by range (id);"
    " create table leaf partition of parted for values from (0) to (30);"
    " create table rest partition of parted default; alter table rest replica identity nothing",
    "unlogged": "create unlogged table unlogged (id int primary key, n int)",
}
VIRTUAL = (
    "create table virtual (id int primary key, n int, twice int generated always as (n * 2) virtual);"
    " alter table virtual replica identity full"
)
REPLICATED = ["public.items", "public.named", "public.parent", "public.whole"]


@contextmanager
def application(dsn: str, statements: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Runs statements all along, as an application does; `slowest` is what one of them took."""
    told: dict[str, Any] = {"rounds": 0, "slowest": 0.0, "error": None}
    over = threading.Event()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                for statement in statements:
                    began = time.monotonic()
                    try:
                        connection.execute(statement.encode())
                    except psycopg.Error as error:
                        told["error"] = error
                        return
                    told["slowest"] = max(told["slowest"], time.monotonic() - began)
                told["rounds"] += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join(10)


@pytest.mark.parametrize("version", [15, 18])
def test_an_application_goes_on_undisturbed(
    make: Make, servers: Servers, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, during and after: prepare, copy, changes, a reload, a restart, a table that loses its key, the end."""
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)
    source = None if version == 18 else PostgresHarness(servers.start(install=installed(version)).dsn)
    stand = make("sqlite", source, tables=["public.*", "public.named", "!public.late", "!public.heir"])
    tables = TABLES | ({"virtual": VIRTUAL} if version == 18 else {})
    stand.source.execute(*tables.values(), "create table late (id int primary key, n int)")
    fill = "insert into {} (id, n) select i, 0 from generate_series(1, 50) i"
    stand.source.execute(*(fill.format(table) for table in (*tables, "late")))
    statements = (
        *("set lock_timeout = '500ms'", "insert into named values (7, 0)", "delete from words where id = 1"),
        *(f"update {table} set n = n + 1 where id % 10 = 0" for table in (*tables, "late")),
    )
    with application(stand.source.dsn, statements) as told:

        def goes_on() -> None:
            reached = told["rounds"]
            await_true(lambda: told["rounds"] > reached + 10 or told["error"])
            assert told["error"] is None

        goes_on()
        prepared = ends_of(stand.project(), stand.replication).change_source(
            stand.replication, requests(stand.project(), stand.replication, ends_of(stand.project(), stand.replication))
        )
        prepared.publish()
        goes_on()
        stand.start()
        stand.sync()
        assert stand.seen is not None
        assert sorted(stand.seen["tables"]) == REPLICATED
        goes_on()
        wanted = ("public.*", "public.named", "!public.heir")
        stand.replication = stand.replication.model_copy(update={"tables": wanted})
        assert stand.ask("reload") == "1 table added, 0 removed"
        stand.sync()
        assert sorted(stand.seen["tables"]) == sorted([*REPLICATED, "public.late"])
        goes_on()
        stand.stop()
        stand.start()
        stand.sync()
        goes_on()
        stand.stop()
        prepared.remove()
        prepared.close()
        goes_on()
    assert told["slowest"] < 2.0


def test_rows_that_only_inherit_are_not_the_tables_own(make: Make) -> None:
    stand = make("sqlite")
    stand.source.execute(TABLES["parent"], "insert into parent values (1, 0)")
    stand.start()
    stand.sync()
    assert stand.target.query("select id from parent") == [(1,)]
    stand.source.execute("update parent set n = 1")
    stand.sync()
    assert stand.target.query("select id, n from parent") == [(1, 1)]


def test_a_table_that_loses_its_key_is_published_no_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replicate.agent.EXAMINE_SECONDS", 0.2)
    stand = make("sqlite")
    stand.source.execute(TABLES["items"], "insert into items values (1, 0)", "create table others (id int primary key)")
    stand.start()
    stand.sync()
    stand.source.execute("alter table items drop constraint items_pkey")
    await_true(lambda: stand.state("items")["phase"] == "failed", 30, lambda: stand.seen)
    stand.source.execute("update items set n = n + 1", "insert into others values (1)")  # not refused any more
    assert "it has no key" in stand.state("items")["reason"]
    assert "replica identity full" in stand.state("items")["remedy"]
    stand.source.execute("alter table items add primary key (id)")
    stand.sync(settled=True)
    stand.assert_agrees("items", "others")


@pytest.mark.parametrize(
    ("made", "options", "why"),
    [
        ("items", {"where": "n > 0"}, "uses n, which is no part of its key"),
        ("items", {"where": "n >"}, "cannot be used: syntax error"),
        ("items", {"where": "missing > 0"}, "cannot be used: column"),
        ("whole", {"include": ("id",)}, "no columns can be chosen"),
    ],
)
def test_options_that_would_make_updates_fail_are_refused(
    make: Make, made: str, options: dict[str, Any], why: str
) -> None:
    stand = make("sqlite")
    stand.source.execute(TABLES[made], f"insert into {made} values (1, 0)")
    plain = stand.replication
    given = plain.model_copy(update={"options": {f"public.{made}": TableOptions(**options)}})
    stand.replication = given
    stand.start()
    await_true(lambda: stand.error is not None, 30)
    error, stand.error = stand.error, None
    stand.stop()
    assert isinstance(error, PlanRefused)
    assert why in error.why
    assert error.remedy
    assert stand.source.query("select 1 from pg_publication") == []
    # The same by a reload: what is published stays as it is.
    stand.replication = plain
    stand.start()
    stand.sync()
    stand.replication = given
    assert why in stand.ask("reload")
    stand.source.execute(f"update {made} set n = n + 1")
    stand.sync()
    stand.assert_agrees(made)
