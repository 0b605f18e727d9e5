"""One cluster for all tests of this folder, which run in one process: five processes start for it."""

from collections.abc import Iterator

import pytest

from tests.cluster.servers import Cluster
from tests.conformance.conftest import flow, harness, pair
from tests.e2e.command import project, shop

__all__ = ["cluster", "flow", "harness", "pair", "project", "shop"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.add_workers()
        yield running
