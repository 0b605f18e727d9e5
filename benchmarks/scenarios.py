"""The scenarios. Each seeds nothing of its own: the tables are there, in the sizes of the scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import dataset
from benchmarks.measure import Median, Sample
from benchmarks.race import LEFT_OUT, Entrant, Row, race
from benchmarks.results import Section, limit_goal, ratio_goal, seconds_of
from benchmarks.sides import PeerMissing, Side, SideFailed
from benchmarks.stand import TARGET, Stand, say

PENSTOCK = "Penstock"
DDL = dataset.CREATE.split("(", 1)[1].rsplit(")", 1)[0]


@dataclass(frozen=True, slots=True)
class Scale:
    """How many rows and runs."""

    merge_rows: int
    copy_rows: int
    small_rows: int
    large_rows: int
    runs: int


FULL = Scale(merge_rows=1_000_000, copy_rows=4_000_000, small_rows=1_000_000, large_rows=8_000_000, runs=5)
QUICK = Scale(merge_rows=100_000, copy_rows=100_000, small_rows=20_000, large_rows=100_000, runs=1)


def merge_between_postgres(stand: Stand, scale: Scale) -> list[Section]:
    table = "public.orders_merge"
    stand.seed(table, scale.merge_rows)
    stand.pipeline("merge_postgres", table, "warehouse.penstock.orders", "merge", more='keys = ["id"]')
    stand.execute("create schema penstock; create schema psql; create schema ematix_flow")
    penstock, psql, ematix = (side_of(stand, name) for name in ("penstock", "psql", "ematix_flow"))

    def entrant(label: str, side: Side | str, target: str, **job: Any) -> Entrant:
        job = {"table": table, "target_table": target, "ddl": DDL, "pipeline": "merge_postgres"} | job
        check = partial(_check_postgres, stand, table, target)
        missing = side if isinstance(side, str) else ""
        return Entrant(label, None if isinstance(side, str) else side, job, check, note=missing)

    def first(label: str, side: Side | str, target: str, **job: Any) -> Entrant:
        made = entrant(label, side, target, **job)
        made.reset = lambda: stand.execute(f"drop table if exists {target}")
        return made

    rows = f"{scale.merge_rows:,} rows"
    say(f"first merge, Postgres to Postgres, {rows}")
    found = race(
        [
            first("psql COPY | psql COPY", psql, "psql.orders"),
            first("psql COPY | psql COPY, binary", psql, "psql.orders", binary=True),
            first("psql COPY | psql COPY, then the key", psql, "psql.orders", key=True),
            first(PENSTOCK, penstock, "penstock.orders"),
            first("ematix-flow 1.0.0", ematix, "ematix_flow.orders"),
        ],
        scale.runs,
    )
    _cold(stand, found, "merge_postgres", lambda: stand.execute("drop table if exists penstock.orders"))
    ours, plain = seconds_of(found, PENSTOCK), seconds_of(found, "psql COPY | psql COPY")
    opening = Section(
        f"Postgres → Postgres, {rows}, first merge",
        "The target table does not exist. Penstock and ematix-flow leave a table with its primary key behind.",
        found,
        [
            limit_goal("first merge against psql COPY", ours and plain and ours / plain, at_most=2.5, unit="×"),
            ratio_goal("first merge against ematix-flow", seconds_of(found, "ematix-flow 1.0.0"), ours, at_least=4),
        ],
    )
    again = [entrant(PENSTOCK, penstock, "penstock.orders"), entrant("ematix-flow 1.0.0", ematix, "ematix_flow.orders")]
    sections = [opening]
    for percent, words in ((0, "nothing changed"), (10, "10 % of the rows changed")):
        say(f"second merge, {words}, {rows}")
        found = race(again, scale.runs, partial(_before_merge, stand, table, percent), warm=True)
        ours = seconds_of(found, PENSTOCK)
        goal = ratio_goal(
            f"second merge, {percent} % changed, against ematix-flow",
            seconds_of(found, "ematix-flow 1.0.0"),
            ours,
            at_least=4,
        )
        about = "The target holds the rows of the run before; it is vacuumed and analysed between the runs."
        sections.append(Section(f"Postgres → Postgres, {rows}, second merge, {words}", about, found, [goal]))
    for side in (penstock, psql, ematix):
        stop(side)
    return sections


def _before_merge(stand: Stand, table: str, percent: int, turn: int) -> None:
    if percent:
        stand.change(table, one_in=100 // percent, turn=turn)
    for target in ("penstock.orders", "ematix_flow.orders"):
        stand.vacuum(target)


def copy_into_duckdb(stand: Stand, scale: Scale) -> list[Section]:
    table = "public.orders_copy"
    stand.seed(table, scale.copy_rows)
    stand.pipeline("copy_duckdb", table, "duck.main.orders", "append")
    entrants = [_duckdb_entrant(stand, table, scale, PENSTOCK, "penstock", stand.duckdb, pipeline="copy_duckdb")]
    for label, name, job in (
        ("dlt 1.31.0, connectorx", "dlt", {"variant": "connectorx"}),
        ("dlt 1.31.0, connectorx stream", "dlt", {"variant": "connectorx stream"}),
        ("dlt 1.31.0, pyarrow", "dlt", {"variant": "pyarrow"}),
        ("sling 1.4.11", "sling", {}),
        ("ingestr 0.15.9", "ingestr", {}),
        ("Spark JDBC, Parquet, read_parquet", "spark_jdbc", {"kind": "duckdb"}),
    ):
        path = stand.folder / f"{name}.duckdb"
        entrants.append(_duckdb_entrant(stand, table, scale, label, name, path, **job))
    rows = f"{scale.copy_rows:,} rows"
    say(f"Postgres to DuckDB, {rows}")
    found = race(entrants, scale.runs)
    _cold(stand, found, "copy_duckdb", lambda: remove(stand.duckdb))
    ours = seconds_of(found, PENSTOCK)
    dlt = min((row.median.seconds for row in found if "dlt" in row.label and row.median is not None), default=None)
    goals = [ratio_goal("copy into DuckDB against dlt, best backend", dlt, ours, at_least=1)]
    for label in ("sling 1.4.11", "ingestr 0.15.9", "Spark JDBC, Parquet, read_parquet"):
        goals.append(ratio_goal(f"copy into DuckDB against {label}", seconds_of(found, label), ours, at_least=1))
    for entrant in entrants:
        stop(entrant.side)
    about = "Into a new DuckDB file. sling and ingestr are programs that start anew for every run, as they are used."
    return [Section(f"Postgres → DuckDB, {rows}", about, found, goals)]


def _duckdb_entrant(stand: Stand, table: str, scale: Scale, label: str, name: str, path: Path, **job: Any) -> Entrant:
    side = side_of(stand, name)
    job = {"table": table, "rows": scale.copy_rows, "target_table": "main.orders", "path": str(path)} | job
    check = partial(_check_duckdb, stand, table, path)
    if isinstance(side, str):
        return Entrant(label, None, job, check, note=side)
    return Entrant(label, side, job, check, partial(remove, path))


def starts(stand: Stand, scale: Scale) -> list[Section]:
    stand.seed("public.one_row", 1)
    stand.pipeline("one_row", "public.one_row", "duck.main.one_row", "append")
    stand.execute("create table public.near as select 1::bigint as id, 'x' as word")
    stand.pipeline("same_database", "public.near", "warehouse.public.far", "append", source=TARGET)
    say("starts of the command line")
    found = []
    for label, arguments in (
        ("one-row pipeline, whole process", ("run", "one_row")),
        ("same-database pipeline, whole process", ("run", "same_database")),
        ("penstock --help", ("--help",)),
    ):
        found.append(_repeat(label, partial(stand.command, *arguments), max(scale.runs, 2)))
    limits = ((found[0], 8.0), (found[1], 1.5), (found[2], 0.3))
    goals = [limit_goal(row.label, seconds_of(found, row.label), at_most=limit, unit="s") for row, limit in limits]
    about = "A new process each time. Cold is the first of these starts, before the files are in the page cache."
    return [Section("Starts", about, found, goals)]


def _repeat(label: str, once: Callable[..., Sample], runs: int) -> Row:
    row = Row(label)
    try:
        row.cold = once().seconds
        row.samples = [once() for _ in range(runs)]
        row.median = Median.of(row.samples, once(watched=True))
        say(f"  {label}: {row.median.seconds:.2f} s (first {row.cold:.2f} s)")
    except SideFailed as error:
        row.failed = str(error)
        say(f"  {label}: {error}")
    return row


def _cold(stand: Stand, rows: list[Row], pipeline: str, reset: Callable[[], None]) -> None:
    """Penstock's cold total is the command line's: a process, a session and one run."""
    row = next(row for row in rows if row.label == PENSTOCK)
    if row.failed:
        return
    reset()
    try:
        row.cold = stand.command("run", pipeline).seconds
        say(f"  {PENSTOCK}, cold, by the command line: {row.cold:.2f} s")
    except SideFailed as error:
        row.note = f"cold run failed: {error}"


def _check_postgres(stand: Stand, table: str, target: str) -> dataset.Check:
    return dataset.check_postgres(stand.figures(table), stand.dsn(TARGET), target)


def _check_duckdb(stand: Stand, table: str, path: Path) -> dataset.Check:
    return dataset.check_duckdb(stand.figures(table), path, "main.orders")


def side_of(stand: Stand, name: str) -> Side | str:
    """The side, or the reason why it cannot be had."""
    if not stand.takes(name):
        return LEFT_OUT
    try:
        return stand.side(name)
    except PeerMissing as error:
        say(f"  {name}: {error}")
        return f"not installed: {error}"


def stop(side: Side | str | None) -> None:
    if isinstance(side, Side):
        side.stop()


def remove(path: Path) -> None:
    for found in path.parent.glob(path.name + "*"):
        found.unlink()
