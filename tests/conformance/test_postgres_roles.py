"""Postgres roles with few rights: a reader of views or of some columns, a writer that may only add."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.backends.base import Source
from penstock.errors import PenstockError, SourceError, SourceMoved
from penstock.run.records import RunOptions
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.conformance.postgres_bench import Database, read_all

pytestmark = pytest.mark.postgres


@pytest.fixture
def role(db: Database) -> str:
    name = f"r{uuid.uuid4().hex[:12]}"
    db.execute(f"create role {name} login password 'few-rights'")
    return name


def as_role(db: Database, role: str) -> Database:
    """The same database as a role sees it that owns nothing."""
    parts = psycopg.conninfo.conninfo_to_dict(db.dsn)
    return Database(psycopg.conninfo.make_conninfo(**(parts | {"user": role, "password": "few-rights"})))


# ---------------------------------------------------------------- reading


def reporting(db: Database, role: str) -> Database:
    """A view for the role; the tables under it, and their schema, are closed."""
    db.execute(
        "create schema inner_",
        "create table inner_.people (id int primary key, name text, salary int)",
        "create materialized view inner_.teams as select generate_series(1, 3) as team",
        "insert into inner_.people select n, 'x' || n, n from generate_series(1, 100) n",
        "create view report as select id, name, team from inner_.people join inner_.teams on id % 3 + 1 = team",
    )
    db.execute(f"grant select on report to {role}")
    return as_role(db, role)


@pytest.mark.parametrize("request_", [{"table": "public.report"}, {"query": "select * from report where id > 0"}])
def test_roles_a_view_is_read_without_rights_on_its_tables(
    request_: dict[str, str], db: Database, role: str, opened: Callable[..., Source]
) -> None:
    source = opened(reporting(db, role), **request_)
    assert sorted(read_all(source, 4)["id"].to_pylist()) == list(range(1, 101))
    split = opened(as_role(db, role), **request_, partition_on="id")
    assert sorted(read_all(split, 4)["id"].to_pylist()) == list(range(1, 101))


@pytest.mark.parametrize(
    "change",
    [
        "truncate inner_.people",
        "vacuum full inner_.people",
        "alter table inner_.people alter salary type bigint",
        "refresh materialized view inner_.teams",
        "drop view report",
    ],
)
def test_roles_a_table_under_a_view_is_guarded_all_the_same(
    change: str, db: Database, role: str, opened: Callable[..., Source]
) -> None:
    source = opened(reporting(db, role), table="public.report")
    [piece] = source.partitions(list(source.schema()), 4).partitions
    assert sum(batch.num_rows for batch in piece.read()) == 100
    db.execute(change)
    with pytest.raises(SourceMoved):
        list(piece.read())


def test_roles_a_table_under_a_view_that_is_being_changed_is_not_waited_for(
    db: Database, role: str, opened: Callable[..., Source]
) -> None:
    source = opened(reporting(db, role), table="public.report")
    [piece] = source.partitions(list(source.schema()), 4).partitions
    with psycopg.connect(db.dsn) as changer:
        changer.execute("lock table inner_.people in access exclusive mode")
        with pytest.raises(SourceMoved, match="locked"):
            list(piece.read())


def some_columns(db: Database, role: str) -> Database:
    db.execute(
        "create table people (id int primary key, name text, city text, salary int)",
        "insert into people select n, 'x' || n, 'y' || n, n from generate_series(1, 100) n",
    )
    db.execute(f"grant select (id, name, city) on people to {role}")
    return as_role(db, role)


def test_roles_a_grant_on_columns_is_enough_for_a_query_of_them(
    db: Database, role: str, opened: Callable[..., Source]
) -> None:
    reader = some_columns(db, role)
    source = opened(reader, "select id, name from people")
    assert sorted(read_all(source, 4)["id"].to_pylist()) == list(range(1, 101))
    with pytest.raises(SourceError, match="denies"):
        opened(reader, "select salary from people")


@pytest.mark.parametrize(
    "change",
    [
        "alter table people rename name to old; alter table people rename city to name",
        "alter table people drop name",
        "truncate people",
        "alter table people rename to old; create table people (id int, name text); grant select on people to ROLE",
    ],
)
def test_roles_a_grant_on_columns_is_guarded_all_the_same(
    change: str, db: Database, role: str, opened: Callable[..., Source]
) -> None:
    source = opened(some_columns(db, role), "select id, name from people")
    [piece] = source.partitions(list(source.schema()), 4).partitions
    db.execute(*change.replace("ROLE", role).split("; "))
    with pytest.raises(SourceMoved):
        list(piece.read())


# ---------------------------------------------------------------- writing


def test_roles_the_right_to_insert_is_enough_for_an_append(
    harness: Callable[[str], Harness], tmp_path: Path, db: Database, role: str
) -> None:
    db.execute("create table items (id int)", f"grant insert, select on items to {role}")
    [(name,)] = db.query("select current_database()")
    db.execute(f"grant create on database {name} to {role}")
    flow = Flow(harness("postgres"), PostgresHarness(as_role(db, role).dsn), tmp_path)
    flow.run(query="select 1 as id")
    assert db.query("select id from items") == [(1,)]
    with pytest.raises(PenstockError, match="denies"):
        flow.run(query="select 1 as id", mode="merge", keys=["id"])


@pytest.mark.parametrize(("full_refresh", "locked"), [(False, False), (True, True)])
def test_roles_an_append_leaves_others_to_write(
    harness: Callable[[str], Harness], tmp_path: Path, full_refresh: bool, locked: bool
) -> None:
    flow = Flow(harness("postgres"), harness("postgres"), tmp_path)
    flow.target.execute("create table items (id int)", "create table seen (mode text)")
    look = "insert into seen select mode from pg_locks where relation = 'items'::regclass and pid = pg_backend_pid()"
    flow.run(RunOptions(full_refresh=full_refresh), query="select 1 as id", transforms_post=[look])
    modes = {mode for (mode,) in flow.target.query("select mode from seen")}
    assert "RowExclusiveLock" in modes
    assert ("ShareRowExclusiveLock" in modes) is locked
