"""What Postgres tells before a load: connections, the user's SQL, and the tables that are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock.backends.base import Source
from penstock.backends.postgres import PostgresConfig
from penstock.backends.postgres.errors import connecting
from penstock.backends.postgres.write import PostgresTarget
from penstock.errors import ConnectionFailed, LinkLost, PenstockError, PlanRefused, SourceError
from penstock.schema import TableName
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.postgres_bench import BACKEND, Bench, Database, new_run, numbered, read_all

pytestmark = pytest.mark.postgres

# ---------------------------------------------------------------- source sessions


@pytest.mark.parametrize(
    "query",
    [
        "delete from t returning *",
        "with gone as (delete from t returning *) select * from gone",
        "select wipe() as n",
    ],
)
def test_source_sessions_are_read_only(query: str, db: Database, opened: Callable[..., Source]) -> None:
    numbered(db, 10)
    db.execute("create function wipe() returns int language plpgsql as $$ begin delete from t; return 1; end $$")
    with pytest.raises(SourceError):
        read_all(opened(db, query))
    assert db.query("select count(*) from t") == [(10,)]


def test_bad_sql_is_shown_with_the_position_marked(db: Database, opened: Callable[..., Source]) -> None:
    with pytest.raises(SourceError) as caught:
        opened(db, "select 1 as a,\n       missing_column\nfrom pg_class")
    assert "line 2:" in caught.value.why
    line, caret = caught.value.why.splitlines()[-2:]
    assert line[caret.index("^") :].startswith("missing_column")


def test_names_twice_in_one_query_are_refused(db: Database, opened: Callable[..., Source]) -> None:
    with pytest.raises(PlanRefused, match="more than one column called 'a'"):
        opened(db, "select 1 as a, 2 as a")


def test_identifiers_are_quoted_everywhere(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    one, two = database(), database()
    one.execute('create table "sel""ect T" (id int, "we ""ird" text, "Über" int[])')
    one.execute("insert into \"sel\"\"ect T\" values (1, 'a', '{1}')")
    assert bench(one, two, 'sel"ect T').load().inserted == 1
    assert two.query('select "we ""ird", "Über" from "sel""ect T"') == [("a", [1])]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"port": 1}, LinkLost),
        ({"password": "wrong-password"}, ConnectionFailed),
        ({"dbname": "nowhere"}, ConnectionFailed),
        ({"user": "nobody_here"}, ConnectionFailed),
        ({"host": "no.such.host.invalid"}, PenstockError),  # as the name server answers, or not at all
    ],
)
def test_a_connection_that_cannot_be_opened_says_why_without_the_password(
    change: dict[str, Any], error: type[PenstockError], postgres_server: EmbeddedPostgres
) -> None:
    config = PostgresConfig(name="shop", dsn=postgres_server.dsn, **change)
    with pytest.raises(error) as caught:
        BACKEND.test(config)
    told = f"{caught.value} {caught.value.remedy} {caught.value.to_record()}"
    assert caught.value.remedy
    assert postgres_server.password not in told
    assert "wrong-password" not in told


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ('could not translate host name "db" to address: Temporary failure in name resolution', LinkLost),
        ("failed to resolve host 'db': [Errno -3] Temporary failure in name resolution", LinkLost),
        ('could not translate host name "db" to address: Name or service not known', ConnectionFailed),
    ],
)
def test_a_name_server_that_does_not_answer_is_asked_again(words: str, error: type[PenstockError]) -> None:
    conninfo = PostgresConfig(name="shop", host="db").conninfo()
    assert type(connecting(psycopg.OperationalError(words), conninfo)) is error


# ---------------------------------------------------------------- targets


def test_an_existing_table_is_reported_with_all_that_a_load_must_know(db: Database) -> None:
    db.execute(
        "create table parent (id int primary key)",
        "create domain positive as int check (value > 0)",
        "create table t (id int generated always as identity primary key, d positive default 1,"
        " twice int generated always as (d * 2) stored, p int references parent, n numeric(10,2) not null)",
        "create function f() returns trigger language plpgsql as $$ begin return new; end $$",
        "create trigger tr before insert on t for each row execute function f()",
        "alter table t enable row level security",
        "create view v as select 1 as a",
    )
    target = PostgresTarget(db.config, new_run())
    found = target.inspect(TableName(None, "t"))
    assert found is not None
    assert [(c.name, c.type_sql) for c in found.columns] == [
        ("id", "integer"),
        ("d", "integer"),
        ("twice", "integer"),
        ("p", "integer"),
        ("n", "numeric(10,2)"),
    ]
    by_name = {c.name: c for c in found.columns}
    assert by_name["id"].identity
    assert by_name["d"].has_default
    assert by_name["twice"].generated
    assert not by_name["n"].nullable
    assert found.primary_key == ("id",)
    assert {note.split()[0] for note in found.notes} == {"trigger", "foreign", "row"}
    view = target.inspect(TableName("public", "v"))
    assert view is not None
    assert view.refusals == ("it is a view",)
    assert target.inspect(TableName("public", "none")) is None
    target.close()


def test_tables_lists_what_is_readable_and_never_our_own(db: Database) -> None:
    numbered(db, 10)
    db.execute("create schema _penstock", "create table _penstock.loads (a int)", "create view v as select 1 as a")
    listed = {(str(info.name), info.kind, info.primary_key) for info in BACKEND.tables(db.config)}
    assert listed == {("public.t", "table", ("id",)), ("public.v", "view", ())}


def test_native_path_only_for_the_same_database_user_and_settings(
    database: Callable[[], Database],
) -> None:
    one, two = database(), database()
    assert BACKEND.same_database(one.config, one.config)[0]
    assert BACKEND.same_database(one.config, two.config) == (False, "source and target are different databases")
    other = PostgresConfig(name="db", dsn=one.dsn, options={"options": "-csearch_path=pg_catalog"})
    assert BACKEND.same_database(one.config, other) == (False, "source and target differ in their search_path")
