"""Servers and sessions that the whole suite shares, each started when a test first asks for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.databases import Databases
from tests.sampling import sampled

# A machine that is busy with other tests is slow, not wrong.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every combination of the sampled matrices")
    parser.addoption("--sample-seed", type=int, default=0, help="which sample of them is taken otherwise")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    items[:], left = sampled(items, config.getoption("--sample-seed"))
    if left:
        config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_the_commands() -> None:
    """Under `nohup`, or in the background of a script, the suite would hand ignored signals on to what it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres_server: EmbeddedPostgres) -> Databases:
    return Databases(postgres_server)
