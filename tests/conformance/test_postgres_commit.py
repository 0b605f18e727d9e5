"""The commit of a load into Postgres: all or nothing, known after a lost answer.

Each test's name tells the rule that it guards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.backends.base import Source, StagedColumn
from penstock.backends.postgres import PostgresConfig, load
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import LinkLost, StagingLost, TargetError
from penstock.observe.failpoints import ENV, FailpointError
from penstock.schema import TableName
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.postgres_bench import Bench, Database, new_run, numbered
from tests.faults.proxy import Cut, Proxy

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("point", ["commit.begin", "commit.loaded"])
def test_commit_stopped_before_it_leaves_the_target_as_it_was(
    point: str, database: Callable[[], Database], bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    work = bench(one, two)
    with monkeypatch.context() as patch:
        patch.setenv(ENV, f"{point}=raise")
        with pytest.raises(FailpointError):
            work.load()
    assert two.query("select to_regclass('public.t'), count(*) from _penstock.loads") == [(None, 0)]
    assert two.leftovers() == []
    assert work.load().inserted == 10


@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_a_lost_answer_is_looked_for_in_the_target(
    when: Any, database: Callable[[], Database], bench: Callable[..., Bench], postgres_server: EmbeddedPostgres
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    cut = Cut(b"commit\0", b"_penstock.loads", when)
    with Proxy(postgres_server.port, cut) as proxy:
        through = Database(two.dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        work = bench(one, through)
        if when == "before":
            with pytest.raises(LinkLost) as caught:
                work.load()
            assert caught.value.kept == "nothing was committed"
        else:
            assert work.load().inserted == 10
        assert cut.done.is_set()
    rows = 0 if when == "before" else 1
    assert two.query("select count(*) from _penstock.loads") == [(rows,)]
    if rows:
        assert two.query("select count(*) from t") == [(10,)]
    assert two.leftovers() == []


class Interrupting:
    """A session's link on which Ctrl-C comes as soon as the answer to COMMIT is there."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: Any, *rest: Any) -> Any:
        answer = self._connection.execute(sql, *rest)
        if sql == "commit":
            sys._getframe(1).f_trace = self._interrupt  # before the caller's next line
            sys.settrace(lambda *_: None)
        return answer

    def _interrupt(self, *_: Any) -> Any:
        sys.settrace(None)
        raise KeyboardInterrupt


def test_commit_an_interrupt_with_the_answer_is_no_rollback(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 10)
    work = bench(one, two)
    loading, columns = work.begin()
    receipts = work.stage(loading, columns)
    session = loading._session  # type: ignore[attr-defined]  # the backend's own part
    session._connection = Interrupting(session.connection)
    with pytest.raises(KeyboardInterrupt):
        loading.commit(receipts)
    assert loading.result is not None
    assert loading.result.inserted == 10
    loading.close()


def test_commit_a_lost_answer_that_nobody_may_ask_for_is_unknown(
    tmp_path: Path,
    database: Callable[[], Database],
    opened: Callable[..., Source],
    postgres_server: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server refuses us when we come back: another run of this append could load everything twice."""
    one, two = database(), database()
    numbered(one, 10)
    password = tmp_path / "password"
    password.write_text(postgres_server.password)

    def at(point: str) -> None:
        if point == "commit.loaded":
            password.write_text("no longer this one")

    monkeypatch.setattr(load, "failpoint", at)
    with Proxy(postgres_server.port, Cut(b"commit\0", b"_penstock.loads", "after")) as proxy:
        keywords = conninfo_to_dict(two.dsn) | {"port": proxy.port}
        del keywords["password"]
        run = new_run()
        config = PostgresConfig(name="db", dsn=make_conninfo(**keywords), password_command=f"cat {password}")
        target = PostgresTarget(config, run)
        work = Bench(opened(one, table="public.t"), target, TableName("public", "t"), run)
        with pytest.raises(TargetError, match="cannot be asked") as caught:
            work.load()
        target.close()
    assert not caught.value.retryable
    assert caught.value.kept.startswith("unknown")
    assert run.run_id in caught.value.remedy
    assert two.query("select count(*) from t") == [(10,)]


def test_commit_counts_staging_against_the_receipts_after_a_crash(
    tmp_path: Path, database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one = database()
    numbered(one, 10)
    with EmbeddedPostgres(synchronous_commit="on") as server:
        two = Database(server.dsn)
        work = bench(one, two)
        loading, columns = work.begin()
        receipts = work.stage(loading, columns)
        server.restart(immediate=True)  # a crash empties UNLOGGED tables
        with pytest.raises(StagingLost) as caught:
            loading.commit(receipts)
        assert "0 rows in staging, 10 on the receipts" in caught.value.why
        loading.abort()
        loading.close()
        assert two.leftovers() == []


def test_commit_a_native_query_reads_one_moment_in_the_database(
    db: Database, opened: Callable[..., Source], bench: Callable[..., Bench]
) -> None:
    numbered(db, 10)
    source = opened(db, "select id, v from t where id <= 5")
    run = new_run()
    target = PostgresTarget(db.config, run)
    columns = list(source.schema())
    native = [StagedColumn(c.name, c, target.native(c, None, None)) for c in columns]
    work = Bench(source, target, TableName("public", "copy"), run)
    query = source.select_sql([(c, c.name) for c in columns])
    loading = target.begin(replace(work.plan(native), native_query=query))
    assert loading.commit([]).inserted == 5
    loading.close()
    target.close()
    assert db.query("select count(*) from copy") == [(5,)]
    assert db.leftovers() == []


def test_an_adopted_staging_table_is_logged_and_becomes_the_target(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    numbered(one, 1000)
    result = bench(one, two, adopt=True).load()
    assert result.rows == 1000
    assert two.query("select count(*), min(relpersistence::text) from t, pg_class where oid = 't'::regclass") == [
        (1000, "p")
    ]
    assert two.leftovers() == []
