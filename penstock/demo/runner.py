"""The demo from start to end: shop, project, first round, a day's work, second round, history.

Runs on the same API as every pipeline. The server dies with `running()`, whatever happens in it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import project as projects
from penstock import state
from penstock.backends import registry
from penstock.backends.base import ReadRequest, RunContext
from penstock.demo import shop as shops
from penstock.demo.live import Live, Moment, live
from penstock.errors import ConfigError
from penstock.observe import redact
from penstock.run import pipeline as runner

if TYPE_CHECKING:
    from penstock.project import Project
    from penstock.run.pipeline import ProgressEvent
    from penstock.state import RunRecord, Store

DSN = "SHOP_DSN"
MARKER = ".penstock-demo"  # a folder that holds it was made here and may be made again
ENV_FILE = "shop.env"
PROJECT_FILES = ("penstock.toml", "pipelines.py")
ORDER = ("customers", "order_lines", "products", "events", "revenue", "baskets", "best_sellers")

HISTORY = """
select sku, title, price::varchar as price,
       strftime(valid_from at time zone 'UTC', '%H:%M:%S') as valid_from,
       coalesce(strftime(valid_to at time zone 'UTC', '%H:%M:%S'), '') as valid_to,
       is_current::varchar as is_current
from main.products
where sku in (select sku from main.products where not is_current order by sku limit 3) or sku = 'SKU-9001'
order by sku, products.valid_from"""


@dataclass(frozen=True, slots=True)
class Version:
    """A line of scd2 history, as text."""

    sku: str
    title: str
    price: str
    valid_from: str
    valid_to: str
    is_current: str


@dataclass(frozen=True, slots=True)
class Round:
    title: str
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True, slots=True)
class Result:
    folder: Path
    rounds: tuple[Round, ...]
    history: tuple[Version, ...]
    live: Live | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who looks on: told of each stage, given each pipeline's progress, asked to hold at the end."""

    stage: Callable[[str], None]
    progress: Callable[[str], AbstractContextManager[Callable[[ProgressEvent], None]]]
    moment: Callable[[Moment], None]
    hold: Callable[[Result], None] | None = None


def demo(folder: Path, orders: int, seconds: float, watcher: Watcher) -> Result:
    """Run the demo in `folder`; everything but the server stays there. `seconds`: how long the bank is followed."""
    began = time.monotonic()
    folder = prepare(folder)
    watcher.stage("starting an embedded Postgres")
    with shops.running() as shop, _environment(shop):
        watcher.stage(f"filling a shop: {orders:,} orders with {4 * orders:,} lines")
        shop.seed(orders)
        project = projects.load(folder)
        rounds = _rounds(project, shop, watcher)
        followed = _followed(project, shop, seconds, watcher) if seconds else None
        result = Result(folder, rounds, history(project), followed, round(time.monotonic() - began, 1))
        if watcher.hold is not None:
            _hold(folder, shop, watcher.hold, result)
    return result


def prepare(folder: Path) -> Path:
    """An empty project in `folder`. A demo's own folder is emptied, anybody else's refused."""
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", remedy="penstock demo --folder ANOTHER")
    if folder.exists() and not (folder / MARKER).exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} holds something else than a demo", remedy="penstock demo --folder ANOTHER, or move it away"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    shutil.rmtree(folder / ".penstock", ignore_errors=True)
    for leftover in (*folder.glob("warehouse.duckdb*"), *folder.glob("live.*")):
        if leftover.is_dir():
            shutil.rmtree(leftover)  # the staging of a demo that was killed
        else:
            leftover.unlink()
    for name in PROJECT_FILES:
        _write(folder / name, (files("penstock.demo") / "project" / name).read_text())
    return folder


def history(project: Project) -> tuple[Version, ...]:
    """Some products' versions, read from the warehouse by Penstock's own reader."""
    config = project.connection("warehouse")
    run = RunContext(run_id="0" * 32, pipeline="demo", staging=project.root / ".penstock" / "demo")
    source = registry.backend(config.type).source(config, ReadRequest(query=HISTORY), run)
    try:
        columns = source.schema().columns
        parts = source.partitions(columns, 1).partitions
        rows = [row for part in parts for batch in part.read() for row in batch.to_pylist()]
    finally:
        source.close()
    return tuple(Version(**row) for row in rows)


def _rounds(project: Project, shop: shops.Shop, watcher: Watcher) -> tuple[Round, ...]:
    with state.open_store(project.state_location) as store:
        watcher.stage("round 1: everything is new")
        first = Round("round 1: everything is new", _round(project, store, watcher))
        watcher.stage("a day's work in the shop: new, changed and deleted rows")
        shop.change()
        watcher.stage("round 2: only what changed is touched")
        second = Round("round 2: after a day's work", _round(project, store, watcher))
    return first, second


def _followed(project: Project, shop: shops.Shop, seconds: float, watcher: Watcher) -> Live:
    with state.open_store(project.state_location) as store:
        return live(project, store, shop, seconds, watcher.stage, watcher.moment)


def _round(project: Project, store: Store, watcher: Watcher) -> tuple[RunRecord, ...]:
    records: list[RunRecord] = []
    for name in ORDER:
        with watcher.progress(name) as report:
            records += runner.run(project, project.pipelines[name], store, runner.RunOptions(), report)
    return tuple(records)


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text() != text:
        path.replace(path.with_name(path.name + ".old"))  # somebody has tried something in it
    path.write_text(text)


def _hold(folder: Path, shop: shops.Shop, hold: Callable[[Result], None], result: Result) -> None:
    """Keep the shop open, with a file that tells a shell where it is."""
    path = folder / ENV_FILE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"export {DSN}={shlex.quote(shop.dsn)}\n")
    try:
        hold(result)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _environment(shop: shops.Shop) -> Iterator[None]:
    redact.register(shop.password)
    before = os.environ.get(DSN)
    os.environ[DSN] = shop.dsn
    try:
        yield
    finally:
        if before is None:
            del os.environ[DSN]
        else:
            os.environ[DSN] = before
