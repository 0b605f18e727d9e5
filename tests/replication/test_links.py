"""Links that are cut, stalled and half-open, on both sides of a replication, while it copies and while it streams."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
@pytest.mark.parametrize("moment", ["copy", "stream"])
def test_a_link_that_fails_costs_nothing(
    moment: str, side: str, manner: Manner, make: Callable[..., Stand], harness: Callable[[str], Harness], links: Links
) -> None:
    stand = linked(make, harness, links, side)
    work = Workload(stand.source.dsn)
    begin = in_a_copy if moment == "copy" else in_the_stream
    try:
        with begin(stand, side, work):
            links.trouble(manner)
        # A driver may end its process over a broken link: a worker that Spark starts again, and here the agent.
        await_true(lambda: links.tried > 1 or stand.died, 30, lambda: stand.seen)
        links.heal()
        stand.sync()
    finally:
        work.stop()
    stand.sync()
    stand.assert_agrees(*REPLICATED)


@contextmanager
def in_a_copy(stand: Stand, side: str, work: Workload) -> Iterator[None]:
    """A range is being read, or its rows are staged and not committed."""
    once, paused = (stand.root / f"{name}-{uuid.uuid4().hex}" for name in ("once", "paused"))
    place = "read.open" if side == "source" else "sink.staged"
    stand.start(f"{place}=once:{once}:pause:{paused}")
    work.start()
    await_true(paused.exists, 30, lambda: stand.error)
    yield
    paused.unlink()


@contextmanager
def in_the_stream(stand: Stand, side: str, work: Workload) -> Iterator[None]:
    del side
    stand.start()
    stand.sync()
    work.start()
    stand.sync()
    yield
