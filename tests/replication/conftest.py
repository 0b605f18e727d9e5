"""Stands by target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.conftest import harness
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.servers import Servers
from tests.replication.stand import LogHarness, Stand

__all__ = ["harness", "make"]

TARGETS = ("postgres", "duckdb", "sqlite")


@pytest.fixture
def make(
    harness: Callable[[str], Harness], tmp_path: Path, postgres_server: EmbeddedPostgres, servers: Servers
) -> Iterator[Callable[..., Stand]]:
    made: list[Stand] = []
    shared = postgres_server.dsn_of("")
    del servers  # they end after the stands

    def stand(target: str, source: PostgresHarness | None = None, of: Stand | None = None, **options: Any) -> Stand:
        """Of a source of its own, of a database of the test's own server, or of the log that another one writes."""
        into = LogHarness(tmp_path / f"log{len(made)}") if target == "files" else harness(target)
        if of is not None:
            made.append(Stand(of.source, into, of.check, tmp_path, log=of.log, **options))
        else:
            made.append(Stand(source or harness("postgres"), into, harness("postgres"), tmp_path, **options))  # type: ignore[arg-type]  # of Postgres
        return made[-1]

    yield stand
    for one in made:
        try:
            one.stop()
        finally:
            if one.source.dsn.startswith(shared):
                drop_slot(one.source, one.replication.slot_name)


def drop_slot(source: PostgresHarness, slot: str) -> None:
    source.execute(
        "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
        f" where slot_name = '{slot}' and active_pid is not null",
        f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{slot}'",
    )


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=TARGETS)
def stand(request: pytest.FixtureRequest, make: Callable[..., Stand], folded_by: int) -> Stand:
    return make(request.param, apply_in_driver_rows=folded_by)


@pytest.fixture(params=[0, 10_000], ids=["tasks", "driver"])
def folded_by(request: pytest.FixtureRequest) -> int:
    """Who folds a flush of few rows: with 0, tasks fold all of them."""
    rows: int = request.param
    return rows
