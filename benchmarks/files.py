"""Files at one end: Parquet out of Postgres and into it, CSV into DuckDB, a join of three tables into Parquet."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import dataset
from benchmarks.race import Entrant, race
from benchmarks.results import Section, limit_goal, ratio_goal, seconds_of
from benchmarks.scenarios import PENSTOCK, Scale, remove, side_of, stop
from benchmarks.sides import Side
from benchmarks.stand import TARGET, Stand, say

CONNECTIONS = 2
COPY = f"COPY BINARY to nowhere, {CONNECTIONS} connections"
JDBC = "Spark JDBC, 2 partitions"
READ_CSV = "DuckDB read_csv"
BY_HAND = "plain PySpark"


def _entrant(label: str, side: Side | str, job: dict[str, Any], check: Any, reset: Any = None) -> Entrant:
    if isinstance(side, str):
        return Entrant(label, None, job, check, note=side)
    made = Entrant(label, side, job, check)
    if reset is not None:
        made.reset = reset
    return made


def parquet_out(stand: Stand, scale: Scale) -> list[Section]:
    """Postgres into Parquet."""
    table, rows = "public.orders_out", scale.copy_rows
    stand.seed(table, rows)
    stand.pipeline("parquet_out", table, "lake.orders_out", "truncate", more="allow_empty = true")
    theirs = stand.folder / "spark_out"
    ours = stand.lake / "orders_out"
    figures = stand.figures(table)
    penstock, psql, jdbc = (side_of(stand, name) for name in ("penstock", "psql", "spark_jdbc"))
    say(f"Postgres to Parquet, {rows:,} rows")
    found = race(
        [
            _entrant(COPY, psql, {"table": table, "rows": rows, "connections": CONNECTIONS}, _nothing_to_check),
            _entrant(
                PENSTOCK, penstock, {"pipeline": "parquet_out"}, partial(_check, figures, ours), partial(_clear, ours)
            ),
            _entrant(
                JDBC,
                jdbc,
                {"kind": "parquet", "table": table, "rows": rows, "path": str(theirs)},
                partial(_check, figures, theirs),
                partial(_clear, theirs),
            ),
        ],
        scale.runs,
    )
    took, limit = seconds_of(found, PENSTOCK), seconds_of(found, COPY)
    for side in (penstock, psql, jdbc):
        stop(side)
    about = "Into a new folder. COPY writes nothing: it is what the source can emit in as many connections."
    goals = [
        limit_goal("Postgres to Parquet against COPY BINARY", took and limit and took / limit, at_most=1.6, unit="×"),
        ratio_goal("Postgres to Parquet against Spark JDBC", seconds_of(found, JDBC), took, at_least=2),
    ]
    return [Section(f"Postgres → Parquet, {rows:,} rows", about, found, goals)]


def parquet_in(stand: Stand, scale: Scale) -> list[Section]:
    """Parquet into Postgres."""
    table, rows = "public.orders_in", scale.copy_rows
    stand.seed(table, rows)
    files = stand.lake / "orders_in"
    dataset.write_parquet(stand.dsn("shop"), table, files)
    stand.execute("create schema files_in; create schema jdbc_in")
    stand.pipeline("parquet_in", "orders_in", "warehouse.files_in.orders", "append", source="lake")
    figures = stand.figures(table)
    penstock, jdbc = (side_of(stand, name) for name in ("penstock", "spark_jdbc"))

    def checked(target: str) -> dataset.Check:
        return dataset.check_postgres(figures, stand.dsn(TARGET), target)

    say(f"Parquet to Postgres, {rows:,} rows")
    found = race(
        [
            _entrant(
                PENSTOCK,
                penstock,
                {"pipeline": "parquet_in"},
                partial(checked, "files_in.orders"),
                lambda: stand.execute("drop table if exists files_in.orders"),
            ),
            _entrant(
                JDBC,
                jdbc,
                {"kind": "postgres", "files": str(files), "target_table": "jdbc_in.orders"},
                partial(checked, "jdbc_in.orders"),
                lambda: stand.execute(
                    f"drop table if exists jdbc_in.orders; {dataset.CREATE.format(table='jdbc_in.orders')}"
                ),
            ),
        ],
        scale.runs,
    )
    for side in (penstock, jdbc):
        stop(side)
    about = "Into a new table. Spark writes in batches of 10,000 rows, the driver joining them into one statement."
    ratio = ratio_goal(
        "Parquet to Postgres against Spark JDBC", seconds_of(found, JDBC), seconds_of(found, PENSTOCK), at_least=1
    )
    return [Section(f"Parquet → Postgres, {rows:,} rows", about, found, [ratio])]


def csv_in(stand: Stand, scale: Scale) -> list[Section]:
    """CSV into DuckDB."""
    table, rows = "public.orders_csv", scale.copy_rows
    stand.seed(table, rows)
    file = stand.lake / "orders_csv.csv"
    dataset.write_csv(stand.dsn("shop"), table, file)
    declared = ", ".join(f'{name} = "{word}"' for name, word in dataset.WORDS.items())
    stand.declare(f'[connections.lake.tables.orders_csv]\nformat = "csv"\ncolumns = {{ {declared} }}\n')
    stand.pipeline("csv_in", "orders_csv", "duck.main.orders", "append", source="lake")
    figures = stand.figures(table)
    penstock, duckdb = (side_of(stand, name) for name in ("penstock", "duckdb_csv"))
    theirs = stand.folder / "read_csv.duckdb"
    say(f"CSV to DuckDB, {rows:,} rows")
    job = {"files": str(file), "path": str(theirs), "target_table": "main.orders", "types": dataset.DUCKDB_TYPES}
    found = race(
        [
            _entrant(
                PENSTOCK,
                penstock,
                {"pipeline": "csv_in"},
                partial(dataset.check_duckdb, figures, stand.duckdb, "main.orders"),
                partial(remove, stand.duckdb),
            ),
            _entrant(
                READ_CSV,
                duckdb,
                job,
                partial(dataset.check_duckdb, figures, theirs, "main.orders"),
                partial(remove, theirs),
            ),
        ],
        scale.runs,
    )
    for side in (penstock, duckdb):
        stop(side)
    about = "Into a new DuckDB file, the types declared on both sides. DuckDB reads the file itself, with every core."
    return [Section(f"CSV → DuckDB, {rows:,} rows", about, found)]


JOIN = """
select c.segment, o.day, sum(l.price * (1 - l.discount)) as revenue, count(*) as items
from {lines} l join orders o on l.order_id = o.id join customers c on o.customer_id = c.id
where c.segment <> 'HOUSEHOLD' and l.shipped > o.day
group by c.segment, o.day
"""


def join(stand: Stand, scale: Scale) -> list[Section]:
    """A join of three tables of Postgres, grouped, into Parquet."""
    lines = scale.copy_rows
    sizes = {"lines": lines, "orders": lines // 4, "customers": lines // 40}
    stand.seed_shop(sizes)
    stand.pipeline(
        "join",
        "public.lines",
        "lake.revenue",
        "truncate",
        more=f'transform = """{JOIN.format(lines="source")}"""\nallow_empty = true\n'
        'inputs = { orders = "shop.public.orders", customers = "shop.public.customers" }',
    )
    ours, theirs = stand.lake / "revenue", stand.folder / "spark_join"
    wanted = dataset.join_figures(stand.dsn("shop"), JOIN.format(lines="lines"))
    penstock, jdbc = (side_of(stand, name) for name in ("penstock", "spark_jdbc"))
    say(f"a join of three tables, {lines:,} lines")
    views = {name: (f"public.{name}", rows) for name, rows in sizes.items()}
    by_hand = {"kind": "join", "views": views, "sql": JOIN.format(lines="lines"), "path": str(theirs)}
    found = race(
        [
            _entrant(
                PENSTOCK,
                penstock,
                {"pipeline": "join"},
                partial(dataset.check_join, wanted, ours),
                partial(_clear, ours),
            ),
            _entrant(BY_HAND, jdbc, by_hand, partial(dataset.check_join, wanted, theirs), partial(_clear, theirs)),
        ],
        scale.runs,
    )
    took, hand = seconds_of(found, PENSTOCK), seconds_of(found, BY_HAND)
    for side in (penstock, jdbc):
        stop(side)
    about = (
        f"Three tables of one Postgres ({', '.join(f'{rows:,} {name}' for name, rows in sizes.items())}) joined and"
        " grouped into Parquet. By hand: Spark JDBC in two partitions, the same SQL, Spark's Parquet writer."
    )
    goal = limit_goal("join transform against plain PySpark", took and hand and took / hand, at_most=1.1, unit="×")
    return [Section("A join of three tables", about, found, [goal])]


def files(stand: Stand, scale: Scale) -> list[Section]:
    return [*parquet_out(stand, scale), *parquet_in(stand, scale), *csv_in(stand, scale)]


def _check(figures: dataset.Figures, folder: Path) -> dataset.Check:
    return dataset.check_parquet(figures, folder)


def _nothing_to_check() -> dataset.Check:
    return dataset.Check(complete=True, differing=(), types={})


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
