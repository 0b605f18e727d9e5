"""Memory stores for tests: one with a few rows, a flow between two, and somebody who puts rows in meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.backends.base import Receipt, Sink
from penstock.project import Project
from penstock.run.prepare import Prepared
from tests.conformance.harness import Flow, Harness, MemoryHarness
from tests.faults.bare import stage_here

ITEMS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})


@pytest.fixture
def here(harness: Callable[[str], Harness]) -> MemoryHarness:
    made = harness("memory")
    assert isinstance(made, MemoryHarness)
    made.store["main.items"] = ITEMS
    return made


@pytest.fixture
def flow(here: MemoryHarness, harness: Callable[[str], Harness], tmp_path: Path) -> Iterator[Flow]:
    """From one store into another; nothing is left in staging, whatever happens."""
    made = Flow(here, harness("memory"), tmp_path)
    yield made
    assert made.target.leftovers() == []


def store(harness: Harness) -> ps.backends.memory.Store:  # type: ignore[name-defined]  # found at run time
    assert isinstance(harness, MemoryHarness)
    return harness.store


class Interfering:
    """Stages as the tests do, and does something meanwhile."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile

    def __call__(
        self, project: Project, prepared: Prepared, sink: Sink, on_progress: Callable[[int, int], None]
    ) -> list[Receipt]:
        receipts = stage_here(project, prepared, sink, on_progress)
        self.meanwhile()
        return receipts
