"""Fuzz of replications: random values of every type, by the copy and by the changes, as the source itself prints them.

`make fuzz` takes 10,000 values of each type (PENSTOCK_FUZZ_VALUES), the suite 1,000. Many types share a table, all
tables share a replication, and the settings of the role and of the database change whatever the server prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.conformance.harness import Harness, PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.fuzz.kinds import SETUP, Dice, kinds, thrown
from tests.replication.servers import Servers
from tests.replication.stand import Stand

VALUES = int(os.environ.get("PENSTOCK_FUZZ_VALUES", "1000"))
TARGETS = ("postgres", "duckdb", "sqlite", "memory", "files")
VERSIONS = (15, 18)
COLUMNS = 16  # of one table
SYNC_SECONDS = 60.0 + VALUES / 20

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240 + VALUES / 10)]

# As a test must read: what is set on the role would round its own look at the values too.
PLAIN = {
    "extra_float_digits": "1",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "timezone": "UTC",
}
OF_THE_DATABASE = {"extra_float_digits": "-15", "bytea_output": "escape", "timezone": "America/St_Johns"}
OF_THE_ROLE = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "lc_monetary": "C.UTF-8",
    "timezone": "Asia/Kathmandu",
}
# Of rows without a key, told apart by all of their values.
BAGGED = (
    *("real", "double precision", "numeric", "numeric(12,3)", "money", "char(20)", "bytea", "timestamptz", "date"),
    *("interval", "json", "jsonb", "inet", "point", "text[]", "double precision[]", "mood", "pair"),
)


class Plain(PostgresHarness):
    """A database that the test sees through settings of its own, and the replication through those that are set."""

    def __init__(self, dsn: str) -> None:
        given = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in PLAIN.items())
        super().__init__(f"{dsn}?options={quote(given)}")
        self._given = dsn

    def options(self) -> dict[str, Any]:
        return {"type": "postgres", "dsn": self._given}


def unlike(source: Plain) -> None:
    """Let the server print otherwise for whoever does not say how."""
    [(database, role)] = source.query("select current_database(), current_user")
    for name, value in OF_THE_DATABASE.items():
        source.execute(f"alter database {database} set {name} to '{value}'")
    for name, value in OF_THE_ROLE.items():
        values = ", ".join(f"'{part.strip()}'" for part in value.split(","))
        source.execute(f"alter role {role} in database {database} set {name} to {values}")


@pytest.fixture
def databases_of(harness: Callable[[str], Harness], servers: Servers) -> Callable[[int], list[Plain]]:
    """Three databases of a version: a source, a target, and one to compare in."""

    def made(version: int) -> list[Plain]:
        if version == VERSIONS[-1]:
            shared = [harness("postgres") for _ in range(3)]
            return [Plain(one.dsn) for one in shared if isinstance(one, PostgresHarness)]
        server = servers.start(install=installed(version))
        names = ("one", "other", "third")
        PostgresHarness(server.dsn).execute(*(f"create database {name}" for name in names))
        return [Plain(server.dsn_of(name)) for name in names]

    return made


def fill(source: Plain, table: str, types: Sequence[str], texts: Sequence[Sequence[str | None]]) -> None:
    """A table with a column for each type; what the values are is the server's to say."""
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(types))
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        connection.execute(f"create table {table} (id int primary key, n int, {columns})".encode())
        with connection.cursor().copy(f"copy {table} from stdin".encode()) as copy:
            for number, row in enumerate(zip(*texts, strict=True)):
                copy.write_row((number, 0, *row))


def listed(types: Sequence[str], alias: str = "") -> str:
    return ", ".join(f"{alias}c{number}" for number in range(len(types)))


def changed(table: str, types: Sequence[str]) -> list[str]:
    """By every kind of change; `VALUES` rows are copied, as many more were inserted."""
    moved = ", ".join(f"c{number} = s.c{number}" for number in range(len(types)))
    return [
        # Another column: what is stored out of line is not sent again.
        f"update {table} set n = n + 1 where id % 2 = 0",
        f"update {table} as t set {moved} from {table} as s where s.id = {VALUES} + (t.id + 7) % {VALUES}"
        f" and t.id < {VALUES} and t.id % 3 <> 0",
        f"delete from {table} where id % 5 = 0",
        f"update {table} set id = -1 - id where id % 5 = 1",
        f"update {table} set id = -1 - id, n = n + 1 where id % 5 = 2",
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_random_values_are_the_same_by_the_copy_and_by_the_changes(
    target: str, version: int, make: Callable[..., Stand], databases_of: Callable[[int], list[Plain]]
) -> None:
    source, other, check = databases_of(version)
    source.execute(*SETUP)
    dice = Dice(20)
    types = kinds(target, version, dice)
    every = list(types)
    tables = {f"kinds{low // COLUMNS}": every[low : low + COLUMNS] for low in range(0, len(every), COLUMNS)}
    for table, names in tables.items():
        fill(source, table, names, [thrown(dice, types[name], VALUES) for name in names])
    bagged = [every.index(name) for name in BAGGED]
    selected = ", ".join(f"k{number // COLUMNS}.c{number % COLUMNS} as b{number}" for number in bagged)
    joins = " ".join(f"join kinds{number} as k{number} using (id)" for number in range(1, len(tables)))
    source.execute(
        f"create table bag as select {selected} from kinds0 as k0 {joins} where id < 200",
        "alter table bag replica identity full",
        "insert into bag select * from bag limit 100",
    )
    unlike(source)
    stand = make(target, source)
    stand.check = check
    if target == "postgres":
        other.execute(*SETUP)
        stand.target = other
    reader = stand.start()
    stand.sync(SYNC_SECONDS)
    if target == "files":
        reader = make("duckdb", of=stand).start()

    def sync() -> None:
        for one in (stand, reader):
            one.sync(SYNC_SECONDS)
            assert {state["phase"] for state in (one.seen or {})["tables"].values()} == {"streaming"}, one.seen

    sync()
    reader.assert_agrees(*tables, "bag")
    for table, names in tables.items():
        source.execute(f"insert into {table} select id + {VALUES}, n, {listed(names)} from {table} where id < {VALUES}")
    sync()
    for table, names in tables.items():
        assert_spelled_alike(reader.target, table, names)
        source.execute(*changed(table, names))
    source.execute(
        "insert into bag select * from bag limit 50",
        "delete from bag where ctid in (select ctid from bag order by ctid limit 70)",
        f"update bag set b{bagged[0]} = null where ctid in (select ctid from bag order by ctid desc limit 40)",
    )
    sync()
    reader.assert_agrees(*tables, "bag")


def assert_spelled_alike(target: Harness, table: str, types: Sequence[str]) -> None:
    """What was copied and what came as a change is one and the same to whoever reads the target."""
    if isinstance(target, PostgresHarness):
        return  # compared by its own texts
    differs = "is not" if target.backend == "sqlite" else "is distinct from"
    counts = ", ".join(
        f"sum(case when a.c{number} {differs} b.c{number} then 1 else 0 end)" for number in range(len(types))
    )
    [found] = target.query(f"select {counts} from {table} as a join {table} as b on b.id = a.id + {VALUES}")
    assert {name: count for name, count in zip(types, found, strict=True) if count} == {}
