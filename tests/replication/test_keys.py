"""Keys of every kind: rows that are changed, moved, swapped and deleted by them, with columns that are not sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.conftest import TARGETS
from tests.replication.servers import Servers
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

TYPES = (
    "create extension if not exists citext",
    "create type mood as enum ('sad', 'ok, fine', 'very happy', 'up', 'down', 'odd')",
    "create domain positive as int check (value > 0)",
    "create domain code as varchar(12)",
)
# Six values of each: four are copied, two are free.
KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "enums": ("mood", ("sad", "ok, fine", "very happy", "up", "down", "odd")),
    "codes": ("code", ("sad", "ok, fine", "very happy", "up", "down", "odd")),
    "docs": ("jsonb", ('{"a": 1}', '{"a": 2}', "[]", '"x"', "null", '{"b": [1, "é"]}')),
    "names": ("citext", ("Ada", "bob", "Éva", "", "a b", 'q"u')),
    "numbers": ("numeric", ("1.0", "0", "-7.50", "1e40", "NaN", "0.0000001")),
    "prices": ("numeric(12,3)", ("1.0", "0", "-7.5", "999999999.999", "0.001", "12")),
    "floats": ("double precision", ("0", "0.1", "-1e300", "Infinity", "5e-324", "7")),
    "ids": ("uuid", tuple(f"0000000{n}-0000-4000-8000-00000000000f" for n in range(6))),
    "bytes": ("bytea", ("\\x", "\\x00", "\\xff00", "\\x5c78", "\\x61", "\\x6100")),
    "moments": (
        "timestamptz",
        ("2020-01-01 00:00:00+00", "2020-01-01 00:00:00.000001+00", "0001-01-01 00:00:00+00",
         "9999-12-31 23:59:59.999999+00", "1970-01-01 00:00:00+00", "2024-06-01 12:00:00+05:30"),
    ),
    "days": ("date", ("2020-01-01", "0001-01-01", "9999-12-31", "1970-01-01", "2000-02-29", "1582-10-10")),
    "hosts": ("inet", ("10.0.0.1", "10.0.0.1/8", "::1", "10.0.0.0/24", "fe80::/10", "1.2.3.4")),
    "positives": ("positive", ("1", "2", "3", "2147483647", "5", "6")),
    "padded": ("char(6)", ("a", "b c", "", "dddddd", "é", "f'")),
    "flags": ("bit(4)", ("0000", "0001", "0010", "0100", "1000", "1111")),
    "lists": ("int[]", ("{}", "{1}", "{1,NULL}", "{2,3}", "{-1}", "{0,0}")),
    "spans": ("interval", ("1 day", "25 hours", "1 mon", "0", "-1 year", "1.000001 s")),
}  # fmt: skip
# Written otherwise, and the same to the server.
RESPELLED = {"names": "ADA", "numbers": "1.00", "floats": "-0", "docs": '{"a": 1.00}'}
UNKNOWN = {("floats", "sqlite")}  # it has no -0


def literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def made(table: str) -> list[str]:
    """Four rows, with a value that lies out of line and a part of the key that is the same in all."""
    kind, values = KEYS[table]
    return [
        f"create table {table} (id int, k {kind}, n int, big text, primary key (k, id))",
        f"alter table {table} alter big set storage external",
        *(
            f"insert into {table} values (7, {literal(value)}, {number}, repeat(md5('{number}'), 100))"
            for number, value in enumerate(values[:4])
        ),
    ]


def changed(table: str, target: str) -> list[list[str]]:
    """Flush by flush: what each needs of the row, the key tells."""
    kind, values = KEYS[table]
    a, b, c, d, e, f = (f"{literal(value)}::{kind}" for value in values)
    turns = [
        [f"update {table} set n = n + 10 where k = {a}"],
        [f"update {table} set k = {e} where k = {a}", f"update {table} set n = n + 100 where k = {e}"],
        [
            f"begin; update {table} set k = {f} where k = {b}; update {table} set k = {b} where k = {c};"
            f" update {table} set k = {c}, n = -1 where k = {f}; commit"
        ],
        [f"delete from {table} where k = {d}", f"update {table} set k = {d} where k = {e}"],
        [f"insert into {table} values (7, {a}, 0, repeat('z', 5000))", f"update {table} set n = 5 where k = {a}"],
    ]
    if table in RESPELLED and (table, target) not in UNKNOWN:
        other = f"{literal(RESPELLED[table])}::{kind}"
        turns += [[f"update {table} set k = {other} where k = {a}"], [f"update {table} set n = 6 where k = {other}"]]
    turns += [[f"update {table} set id = 8 where k = {b}"], [f"delete from {table} where k = {c}"]]
    return turns


@pytest.mark.parametrize("folded", ["driver", "tasks"])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_found_by_their_keys_whatever_the_keys_are(
    make: Callable[..., Stand], target: str, folded: str
) -> None:
    stand = make(target, apply_in_driver_rows=0 if folded == "tasks" else 10_000)
    stand.source.execute(*TYPES, *(line for table in KEYS for line in made(table)))
    if isinstance(stand.target, PostgresHarness):
        stand.target.execute(*TYPES)
    stand.check.execute(*TYPES)
    stand.start()
    stand.sync()
    turns = [changed(table, target) for table in KEYS]
    for number in range(max(map(len, turns))):
        stand.source.execute(*(line for turn in turns if number < len(turn) for line in turn[number]))
        if number % 2:
            stand.sync()
    stand.sync()
    assert stand.seen is not None
    failed = {name: state["reason"] for name, state in stand.seen["tables"].items() if state["phase"] != "streaming"}
    assert failed == {}
    stand.assert_agrees(*KEYS)


BLIND = "create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
WORDS = "create table words (k text collate blind primary key, n int, big text)"


@pytest.mark.parametrize("target", [*TARGETS, "blind postgres"])
def test_keys_under_a_collation_that_is_blind_to_case(
    make: Callable[..., Stand], servers: Servers, target: str
) -> None:
    """To the source 'Ada' and 'ADA' are one key: a row that is spelled anew is the same row, and is there once.

    The suite's newest server has no such collations. A blind target has them too, on a table of its own.
    """
    source = PostgresHarness(servers.start(install=installed(15)).dsn)
    source.execute(BLIND, WORDS, "alter table words alter big set storage external")
    if target == "blind postgres":
        stand = make("postgres", source, what="changes", metadata_columns=False)
        stand.target = PostgresHarness(servers.start(install=installed(15)).dsn)
        stand.target.execute(BLIND, WORDS)
    else:
        stand = make(target, source)
    stand.start()
    stand.sync()
    for turn in (
        ["insert into words select w, 0, repeat(md5(w), 100) from unnest(array['Ada', 'bob', 'Eve']) w"],
        ["update words set k = 'ADA' where k = 'ada'", "update words set n = 1 where k = 'ada'"],
        ["update words set n = n + 1 where k = 'Ada'"],
        ["begin; delete from words where k = 'BOB'; insert into words values ('Bob', 7, 'new'); commit"],
        ["update words set k = 'x' where k = 'eve'; update words set k = 'EVE' where k = 'X'"],
        ["delete from words where k = 'ADA'", "insert into words values ('ada', 9, repeat('z', 5000))"],
    ):
        source.execute(*turn)
        stand.sync()
    stand.assert_agrees("words")
    assert sorted(row[0] for row in stand.target.query("select k from words")) == ["Bob", "EVE", "ada"]
