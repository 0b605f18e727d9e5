"""The demo's stages as they begin, and its result: what moved, how fast, by which path, what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output as out
from penstock.cli.context import Output
from penstock.cli.run import of_record
from penstock.cli.views import outcomes

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.demo.live import Live, Moment
    from penstock.demo.runner import Result, Version

PATHS = (
    ("native", "one statement inside the database; no Spark"),
    ("fused", "Spark tasks copy Arrow batches straight from source to target"),
    ("spark", "through Spark SQL, because the pipeline has a transform"),
)


def stage(text: str) -> None:
    out.err().print(out.cell(f"• {text}", "bold"))


def moment(now: Moment) -> None:
    """A line for each second that a replication is followed."""
    words = f"{now.applied:>9,} changes  {now.rate:>7,.0f}/s  lag {out.lag(now.lag_bytes, now.lag_seconds)}"
    out.err().print(out.cell(words if now.applied else f"{now.copied:>9,} rows copied", "dim"))


def show(result: Result, form: Output, *, serving: bool = False) -> None:
    if form is Output.JSON:
        out.print_json(
            {
                "folder": result.folder,
                "seconds": result.seconds,
                "rounds": [
                    {"title": one.title, "runs": [of_record(record) for record in one.runs]} for one in result.rounds
                ],
                "history": result.history,
                "live": result.live,
            }
        )
        return
    console = out.out()
    for one in result.rounds:
        console.print()
        console.print(outcomes.table([of_record(record) for record in one.runs], one.title))
    for name, meaning in PATHS:
        console.print(out.spans((f"  {name:<7}", "cyan"), (meaning, "dim")))
    console.print(out.cell("  The first pipeline of round 1 also waits for Spark to start, once.", "dim"))
    console.print()
    console.print(_history(result.history))
    if result.live is not None:
        console.print()
        console.print(_live(result.live))
    _next(console, result, serving=serving)


def _history(versions: tuple[Version, ...]) -> object:
    made = out.table(
        "products, with their history (scd2)",
        "sku",
        "title",
        "price",
        "valid from",
        "valid to",
        "current",
        right=["price"],
    )
    for one in versions:
        current = one.is_current == "true"
        made.add_row(
            out.cell(one.sku),
            out.cell(one.title),
            out.cell(one.price, "" if current else "dim"),
            out.cell(one.valid_from),
            out.cell(one.valid_to),
            out.cell("✓" if current else "", "green"),
        )
    return made


def _live(live: Live) -> object:
    made = out.table(
        f"the bank, followed for {live.seconds:.0f} s, with a kill -9 after {live.killed_after:.0f} s",
        "table", "rows in Postgres", "rows in DuckDB", "every row and value agrees",
        right=["rows in Postgres", "rows in DuckDB"],
    )  # fmt: skip
    for one in live.tables:
        agrees = out.cell("✓", "green") if one.agrees else out.cell("no", "red")
        made.add_row(out.cell(one.table), out.cell(f"{one.rows:,}"), out.cell(f"{one.there:,}"), agrees)
    made.caption = out.cell(f"the sum of all balances is {live.balance}, as it was at the start", "dim")
    made.caption_justify = "left"
    return made


def _next(console: Console, result: Result, *, serving: bool) -> None:
    folder = _near(result.folder)
    console.print()
    console.print(out.cell(f"done in {result.seconds:.0f} s; project and warehouse are in {folder}", "green"))
    if serving:
        lines = [
            (f"cd {folder} && . ./shop.env", "in another terminal: where the shop is"),
            ("penstock plan products", "path, types, DDL and SQL"),
            ("penstock run --select tag:hourly", "run some of them again"),
            ("penstock tables show shop shop.customers", "how columns travel"),
        ]
        end = "the shop is open until Ctrl-C"
    else:
        lines = [
            (f"penstock --project {folder} runs list", "the history of what was run"),
            ("penstock demo --serve", "the same, with the shop kept running to play with"),
            ("penstock doctor", "is everything here for your own databases?"),
        ]
        end = f"{folder}/penstock.toml is a project to start from; delete {folder} when you are done"
    console.print(out.cell("\nwhat to try next", "bold"))
    for command, meaning in lines:
        console.print(out.spans((f"  {command:<44}", "cyan"), (meaning, "dim")))
    console.print(out.cell(f"  {end}", "dim"))


def _near(folder: Path) -> str:
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
