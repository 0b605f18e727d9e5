"""Links that are cut, stalled and half-open, on both sides of a replication, while it copies and while it streams."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import Harness
from tests.faults.test_replication_kills import TABLES, Workload
from tests.replication.links import MANNERS, Linked, Links, Manner
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

REPLICATED = ("accounts", "transfers", "bag", "toasted")


@pytest.fixture
def links(postgres_server: EmbeddedPostgres) -> Iterator[Links]:
    with Links(postgres_server.port) as made:
        yield made


def linked(make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links, side: str) -> Stand:
    """Into Postgres, with one of its sides behind the links; the agent in a process of its own."""
    source, target = harness("postgres"), harness("postgres")
    behind = Linked((source if side == "source" else target).dsn, links)  # type: ignore[attr-defined]  # of Postgres
    stand = make("postgres", source=behind if side == "source" else source, apart=True, range_bytes=1 << 16)
    stand.target = behind if side == "target" else target
    stand.source.execute(*TABLES)
    return stand


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_link_that_fails_in_the_stream_costs_nothing(
    side: str, manner: Manner, make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links
) -> None:
    stand = linked(make, harness, links, side)
    stand.start()
    stand.sync()
    work = Workload(stand.source.dsn)
    work.start()
    try:
        stand.sync()
        links.trouble(manner)
        await_true(lambda: links.tried > 1, 30, lambda: stand.seen)
        links.heal()
        stand.sync(seconds=30)
    finally:
        work.stop()
    stand.sync()
    stand.assert_agrees(*REPLICATED)


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_link_that_fails_in_the_copy_costs_nothing(
    side: str, manner: Manner, make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links
) -> None:
    stand = linked(make, harness, links, side)
    once, paused = (stand.root / f"{name}-{uuid.uuid4().hex}" for name in ("once", "paused"))
    place = "read.open" if side == "source" else "sink.staged"
    stand.start(f"{place}=once:{once}:pause:{paused}")
    work = Workload(stand.source.dsn)
    work.start()
    try:
        await_true(paused.exists, 30, lambda: stand.error)
        links.trouble(manner)
        paused.unlink()
        # A driver may end its process over a broken link: a worker that Spark starts again, and here the agent.
        await_true(lambda: links.tried > 1 or stand.died, 30, lambda: stand.seen)
        links.heal()
        stand.sync(seconds=60)
    finally:
        work.stop()
    stand.sync()
    stand.assert_agrees(*REPLICATED)
