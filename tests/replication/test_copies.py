"""Copies of several moments, and tables that change under them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence

import pytest

from penstock.backends.base import Receipt, RunContext
from penstock.backends.postgres.partition import PostgresPartition
from penstock.engine.task import Piece, Work
from penstock.errors import LinkLost
from penstock.project import Project
from penstock.replicate.copy import StampedPartition
from tests.replication.conftest import TARGETS
from tests.replication.stand import Stand, stage_here
from tests.replication.test_target_down import told
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

Make = Callable[..., Stand]


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.postgres.change_source.RANGE_BYTES", 8192)


class Between:
    """Runs statements at the source between two waves of ranges."""

    def __init__(self, *turns: Sequence[str]) -> None:
        self.turns = list(turns)
        self.waves: list[list[tuple[str, int]]] = []
        self.stand: Stand | None = None
        self.fails_after = 0
        self.look: Callable[[Stand], None] = lambda _: None

    def __call__(self, project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
        made = stage_here(project, pieces, run)
        self.waves.append([(piece.read_from, piece.part) for piece in map(_Seen, pieces)])
        if self.stand is not None:
            self.look(self.stand)
            if self.turns:
                self.stand.source.execute(*self.turns.pop(0))
        if len(self.waves) == self.fails_after:
            raise LinkLost("the link is gone")  # what was staged is, and nobody was told
        return made

    @property
    def parts(self) -> list[tuple[str, int]]:
        return [part for wave in self.waves for part in wave]


class _Seen:
    """A piece, as a test names it."""

    def __init__(self, piece: Work) -> None:
        assert isinstance(piece, Piece)
        partition = piece.partition.inner if isinstance(piece.partition, StampedPartition) else piece.partition
        assert isinstance(partition, PostgresPartition)
        self.read_from = partition.place
        self.part = piece.part


TOASTED = (
    "create table docs (id int primary key, n int, pad text, big text) with (autovacuum_enabled = off)",
    "alter table docs alter big set storage external, alter pad set storage plain",
    # A page has a few rows: what is updated moves to the last one.
    "insert into docs select i, 0, repeat('x', 1500), repeat(md5(i::text), 100) from generate_series(1, 150) i",
    "delete from docs where id <= 16",
    "vacuum docs",
)


MOVES = (
    # Into the free places of the first pages; the values out of line are not sent.
    ["update docs set n = 1 where id > 135"],
    ["update docs set n = 1 where id between 111 and 135"],
)


@pytest.mark.parametrize("broken", ["by age", "by a lost link"])
def test_a_copy_in_a_log_is_of_one_moment_where_rows_are_sent_in_part(make: Make, broken: str) -> None:
    """Whoever reads the log has no source to read a row from that no range has."""
    between = Between(*MOVES)
    between.fails_after = 3 if broken == "by a lost link" else 0
    age = "1ms" if broken == "by age" else "1h"
    log = make("files", stage=between, parallel=1, snapshot_max_age=age)
    between.stand = log
    log.source.execute(*TOASTED)
    log.start()
    log.sync()
    log.source.execute("update docs set n = n + 1")
    log.sync()
    assert not between.turns
    reader = make("sqlite", of=log)
    reader.start()
    reader.sync(settled=True)
    log.sync()
    reader.assert_agrees("docs")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_move_between_two_moments_are_read_again(make: Make, target: str, deletes: str) -> None:
    """A row leaves the last range, which is not read yet, for a free place in the first, which is: no range has it."""
    between = Between(
        # Into the free places of the first pages; the values out of line are not sent.
        ["update docs set n = 1 where id > 135"],
        ["update docs set n = 1 where id between 111 and 135"],
        ["update docs set n = 2 where id between 111 and 120", "delete from docs where id between 121 and 124"],
        ["update docs set id = id + 1000, n = 3 where id between 125 and 128"],
        ["update docs set id = id - 1000 where id > 1000", "update docs set big = big || 'y' where id = 125"],
    )
    stand = make(target, stage=between, snapshot_max_age="1ms", parallel=1, deletes=deletes)
    between.stand = stand
    stand.source.execute(*TOASTED)
    stand.start()
    stand.sync()
    stand.sync()
    assert not between.turns
    assert len(between.parts) == len(set(between.parts))  # none is read twice
    gone = stand.target.query("select count(*) from docs where big is null")
    assert gone == [(0,)]
    if deletes == "hard":
        stand.assert_agrees("docs")
    stand.source.execute("update docs set n = n + 1")
    stand.sync()
    assert stand.state("docs")["phase"] == "streaming"
    columns = "id, n, pad, big"
    here = stand.source.query(f"select {columns} from docs order by id")
    alive = "" if deletes == "hard" else "where not _penstock_deleted"
    assert stand.target.query(f"select {columns} from docs {alive} order by id") == here


@pytest.mark.parametrize("target", TARGETS)
def test_keys_that_are_swapped_between_two_moments_of_a_copy_take_their_values_along(make: Make, target: str) -> None:
    """Of the two rows one stays in a range that was read, the other one in a range that is read later.

    So under the key of the first lies the second, when the change comes that brings the first elsewhere.
    """
    between = Between(
        [
            "update docs set id = -1 where id = 2;"
            " update docs set id = 2, big = repeat('Z', 5000) where id = 149;"
            " update docs set id = 149 where id = -1"
        ]
    )
    stand = make(target, stage=between, snapshot_max_age="1ms", parallel=1)
    between.stand = stand
    stand.source.execute(
        # Room in every page, where an update leaves its row.
        "create table docs (id int primary key, n int, pad text, big text)"
        " with (autovacuum_enabled = off, fillfactor = 40)",
        "alter table docs alter big set storage external, alter pad set storage plain",
        "insert into docs select i, 0, repeat('x', 1500), repeat(md5(i::text), 100) from generate_series(1, 150) i",
    )
    stand.start()
    stand.sync()
    stand.sync()
    assert not between.turns
    stand.assert_agrees("docs")


@pytest.mark.parametrize("target", TARGETS)
def test_a_key_that_is_given_away_and_taken_again_keeps_the_values_of_each_row(make: Make, target: str) -> None:
    """Between two moments of a copy, with a column that no change brings: the row that is there is the later one."""
    between = Between(
        [
            "update docs set id = id + 9000 where id between 141 and 150",
            "insert into docs select i, 0, repeat('x', 1500), repeat('Z', 5000) from generate_series(141, 150) i",
        ]
    )
    stand = make(target, stage=between, snapshot_max_age="1ms", parallel=1)
    between.stand = stand
    stand.source.execute(
        "create table docs (id int primary key, n int, pad text, big text) with (autovacuum_enabled = off)",
        "alter table docs alter big set storage external, alter pad set storage plain",
        "insert into docs select i, 0, repeat('x', 1500), repeat(md5(i::text), 100) from generate_series(1, 150) i",
    )
    stand.start()
    stand.sync()
    stand.sync()
    assert not between.turns
    stand.assert_agrees("docs")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("versions", ["with", "without"])
def test_a_copy_that_was_broken_off_goes_on_and_reads_no_range_twice(make: Make, target: str, versions: str) -> None:
    """Without versions nothing tells which of two rows is the later one: then it begins anew."""
    between = Between(["update docs set n = 1"], ["delete from docs where id > 140"], ["update docs set n = n + 1"])
    between.fails_after = 2
    stand = make(target, stage=between, parallel=1, metadata_columns=versions == "with")
    between.stand = stand
    stand.source.execute(*TOASTED)
    stand.start()
    stand.sync()
    stand.sync()
    assert not between.turns
    stand.assert_agrees("docs")
    ranges = len(set(between.parts))
    again = len(between.waves[0]) + len(between.waves[1])
    assert len(between.parts) == ranges + (again if versions == "without" else 0)


def test_the_largest_table_stalls_nobody_and_nobody_sees_half_a_copy(make: Make) -> None:
    """One of 50 times the others: all others are read before it is half done; none is there before it is whole."""
    between = Between()
    stand = make("sqlite", stage=between, parallel=1)
    between.stand = stand
    names = [f"small{number}" for number in range(6)]
    for name, rows in (("aaa_large", 400), *((name, 8) for name in names)):
        stand.source.execute(
            f"create table {name} (id int primary key, pad text)",
            f"alter table {name} alter pad set storage plain",
            f"insert into {name} select i, repeat('x', 1500) from generate_series(1, {rows}) i",
        )
    seen: list[bool] = []
    between.look = lambda stand: seen.append(stand.target.has_table("aaa_large"))
    stand.start()
    stand.sync()
    tables = [table for table, _ in between.parts]
    last = max(place for place, table in enumerate(tables) if table != "public.aaa_large")
    assert tables[:last].count("public.aaa_large") < tables.count("public.aaa_large") / 2
    assert len(seen) > 5
    assert not any(seen)
    stand.assert_agrees("aaa_large", *names)
    await_true(lambda: {table["copied"] for table in told(stand)["tables"]} == {400, 8}, 10, lambda: told(stand))
    # Of a table that is there, readers see what was there, to the last.
    between.look = lambda stand: seen.append(stand.target.query("select count(*) from small1") != [(8,)])
    stand.source.execute("delete from small1 where id > 4")
    stand.sync()
    stand.source.execute("insert into small1 select i, 'y' from generate_series(5, 8) i")
    stand.sync()
    stand.resync("small1")
    stand.sync()
    assert not any(seen)
    stand.assert_agrees("small1")


REWRITES = {
    "vacuum": ("vacuum full docs",),
    "cluster": ("cluster docs using docs_pkey",),
    "truncate": ("truncate docs", "insert into docs select i, 9, 'p', 'b' from generate_series(1, 30) i"),
    "alter": ("alter table docs alter n type bigint using n + 7",),
    "wider": ("alter table docs alter price type numeric(20,2)", "update docs set price = 12345678901234.5"),
    "added": ("alter table docs add column more text default 'm'", "update docs set n = 5 where id < 30"),
    "dropped": ("alter table docs drop column pad", "update docs set n = 5 where id < 30"),
    "renamed": ("alter table docs rename column n to m", "update docs set m = 5 where id < 30"),
    "volatile": ("alter table docs add column at float8 default random()",),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("when", ["early", "between", "last"])
@pytest.mark.parametrize("how", list(REWRITES))
def test_a_table_that_changes_its_form_under_its_copy(make: Make, target: str, when: str, how: str) -> None:
    """Under one moment, between two of them, or after the last range was read."""
    between = Between(["update docs set n = 1 where id > 100"], *([REWRITES[how]] if when != "last" else ()))
    stand = make(target, stage=between, parallel=1, snapshot_max_age="1ms" if when == "between" else "1h")
    between.stand = stand

    def last(stand: Stand) -> None:
        if when == "last" and len(set(between.parts)) == 30:
            between.turns, between.look = [REWRITES[how]], lambda _: None

    between.look = last
    stand.source.execute(
        *TOASTED,
        "alter table docs add column price numeric(10,2) default 1",
        "create table others (id int primary key)",
    )
    stand.start()
    stand.sync()
    assert not between.turns
    stand.source.execute("update docs set big = 'changed' where id % 7 = 0", "insert into others values (1)")
    stand.sync(settled=True)
    stand.assert_agrees("docs", "others")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("failpoint", ["copy.begun", "copy.staged", "copy.loaded"])
@pytest.mark.parametrize("how", ["wider", "dropped"])
def test_a_table_that_changes_its_form_while_nobody_copies_it(
    make: Make, target: str, failpoint: str, how: str
) -> None:
    """The agent dies at some point of the copy, and goes on with a table of another form."""
    stand = make(target, apart=True, range_bytes=1 << 16)
    stand.source.execute(
        *TOASTED,
        "alter table docs add column price numeric(10,2) default 1",
        "create table others (id int primary key)",
    )
    reached = stand.root / f"reached-{uuid.uuid4().hex}"
    stand.start(f"{failpoint}=once:{reached}:kill")
    await_true(lambda: stand.died, 60, lambda: stand.seen)
    stand.source.execute("update docs set n = 1", *REWRITES[how], "insert into others values (1)")
    stand.start()
    stand.sync(settled=True)
    stand.assert_agrees("docs", "others")


def test_a_table_that_is_added_while_another_is_copied_is_copied_at_a_moment_of_its_own(
    make: Make,
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def stage(project: Project, pieces: Sequence[Work], run: RunContext) -> list[Receipt]:
        begun.set()
        assert may_go_on.wait(60)
        return stage_here(project, pieces, run)

    stand = make("sqlite", stage=stage, tables=["public.first"])
    stand.source.execute(
        "create table first (id int primary key, v int)",
        "insert into first select i, 0 from generate_series(1, 100) i",
        "create table second (id int primary key, v int)",
        "insert into second select i, 0 from generate_series(1, 100) i",
    )
    stand.start()
    assert begun.wait(60)
    # Behind the moment of the copy, and before it is published: the log has nothing of it.
    stand.source.execute("update second set v = 1")
    stand.replication = stand.replication.model_copy(update={"tables": ("public.first", "public.second")})
    assert stand.ask("reload") == "1 table added, 0 removed"
    may_go_on.set()
    stand.source.execute("update second set v = v + 1 where id < 50")
    stand.sync()
    stand.assert_agrees("first", "second")
