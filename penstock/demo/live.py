"""The demo's second half: a bank at work, replicated into a DuckDB file by an agent that is killed on the way.

The agent is `penstock replicate` in a process of its own. What is shown of it comes from the state store, as for
`penstock replications show`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.backends import registry
from penstock.backends.base import ReadRequest, RunContext
from penstock.demo import shop as shops
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.project import Project
    from penstock.state import Store

NAME = "live"
ACCOUNTS = 100_000
LOOK_SECONDS = 1.0
COPY_SECONDS = 90.0
TABLES = {
    "accounts": "select id, owner, balance from {schema}.accounts order by id",
    "transfers": "select id, sender, receiver, amount, sent_at from {schema}.transfers order by id",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """How the replication is, once a second."""

    copied: int
    applied: int
    rate: float  # changes per second since the last one
    lag_bytes: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One table on both sides."""

    table: str
    rows: int  # of the source
    there: int  # of the target
    agrees: bool


@dataclass(frozen=True, slots=True)
class Live:
    """What became of it."""

    copied: int
    seconds: float
    killed_after: float
    tables: tuple[Compared, ...]
    balance: str  # the sum over all accounts of the target


def live(
    project: Project,
    store: Store,
    shop: shops.Shop,
    seconds: float,
    stage: Callable[[str], None],
    told: Callable[[Moment], None],
) -> Live:
    """Copy the bank, follow it for so many seconds with a kill in the middle, and compare."""
    stage(f"a bank opens: {ACCOUNTS:,} accounts; `penstock replicate {NAME}` copies them into live.duckdb")
    shop.open_bank(ACCOUNTS)
    with _agent(project.root) as agent:
        copied = _await_copy(store, agent, told)
        with shop.trading(ACCOUNTS):
            stage("people send each other money, and every transfer follows: lag and changes per second")
            _follow(store, seconds / 2, told)
            stage("kill -9: the agent dies in the middle of its work, the transfers go on")
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            stage("started again: it goes on where the target says it is")
            with _agent(project.root) as again:
                _await_agent(store, again)
                _follow(store, seconds / 2, told)
                again.terminate()
                again.wait()
    stage("the bank closes: the last transfers, then both sides are compared, row for row")
    _run(project.root, "replicate", NAME, "--until-caught-up")
    tables = tuple(_compared(project, table) for table in TABLES)
    balance = _read(project, "mirror", "select cast(sum(balance) as varchar) as total from main.accounts")
    return Live(copied, seconds, seconds / 2, tables, balance["total"][0].as_py())


def _command(root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", "--project", str(root), *arguments]


def _environment(root: Path) -> dict[str, str]:
    """What a killed agent leaves goes with the demo's folder, not into everybody's."""
    folder = root / ".penstock" / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return os.environ | {"TMPDIR": str(folder)}


@contextmanager
def _agent(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Ends with the block, however that ends."""
    with (root / f"{NAME}.log").open("ab") as log:
        process = subprocess.Popen(
            _command(root, "replicate", NAME), stdout=log, stderr=log, start_new_session=True, env=_environment(root)
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _run(root: Path, *arguments: str) -> None:
    done = subprocess.run(
        _command(root, *arguments), capture_output=True, text=True, check=False, env=_environment(root)
    )
    if done.returncode != 0:
        raise PenstockError(f"penstock {' '.join(arguments)} failed", why=done.stderr.strip()[-400:])


def _await_copy(store: Store, agent: subprocess.Popen[bytes], told: Callable[[Moment], None]) -> int:
    moment = _moment(_await_agent(store, agent), None, 0.0)
    told(moment)
    return moment.copied


def _await_agent(store: Store, agent: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Until every table streams: what it tells then."""
    began = time.monotonic()
    while time.monotonic() - began < COPY_SECONDS:
        status = _status(store)
        if status and all(table["phase"] == "streaming" for table in status["tables"]):
            return status
        if agent.poll() is not None:
            raise PenstockError(f"the agent ended with {agent.returncode}", remedy=f"see {NAME}.log in the folder")
        time.sleep(0.1)
    raise PenstockError("the copy did not end", why=f"in {COPY_SECONDS:.0f} s", remedy=f"see {NAME}.log in the folder")


def _follow(store: Store, seconds: float, told: Callable[[Moment], None]) -> None:
    ends = time.monotonic() + seconds
    before: int | None = None
    while time.monotonic() < ends:
        time.sleep(min(LOOK_SECONDS, max(ends - time.monotonic(), 0.0)))
        record = store.agent(NAME)
        if record is None or record.gone:
            continue  # it is just starting
        moment = _moment(dict(record.status), before, LOOK_SECONDS)
        told(moment)
        before = moment.applied


def _status(store: Store) -> dict[str, Any]:
    record = store.agent(NAME)
    return dict(record.status) if record is not None and not record.gone else {}


def _moment(status: dict[str, Any], before: int | None, since: float) -> Moment:
    applied = sum(table["applied"] for table in status["tables"])
    rate = (applied - before) / since if before is not None and applied >= before else 0.0
    copied = sum(table["copied"] for table in status["tables"])
    return Moment(copied, applied, rate, status["lag_bytes"], status["lag_seconds"])


def _compared(project: Project, table: str) -> Compared:
    source = _read(project, "shop", TABLES[table].format(schema="bank"))
    target = _read(project, "mirror", TABLES[table].format(schema="main"))
    return Compared(table, source.num_rows, target.num_rows, source.equals(target.cast(source.schema)))


def _read(project: Project, connection: str, query: str) -> pa.Table:
    config = project.connection(connection)
    run = RunContext(run_id="0" * 32, pipeline="demo", staging=project.root / ".penstock" / "demo")
    source = registry.backend(config.type).source(config, ReadRequest(query=query), run)
    try:
        columns = source.schema().columns
        batches = [batch for part in source.partitions(columns, 1).partitions for batch in part.read()]
        return pa.Table.from_batches(batches)
    finally:
        source.close()
