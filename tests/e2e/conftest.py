"""The end-to-end tests use the harnesses of the conformance suite, and the command on a shop of its own."""

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import flow, harness, pair
from tests.e2e.cluster import Cluster
from tests.e2e.command import project, shop

__all__ = ["cluster", "flow", "harness", "pair", "project", "shop"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all tests that need it: five processes start."""
    with Cluster() as running:
        running.add_workers()
        yield running
