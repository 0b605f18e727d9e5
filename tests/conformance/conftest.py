"""Harnesses by backend, every pair of them, and the benches of single backends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from penstock.run.pipeline import stage_with_spark
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.duckdb_bench import files
from tests.conformance.files_lake import Lake
from tests.conformance.harness import (
    DuckDBHarness,
    Flow,
    Harness,
    InMemoryDuckDBHarness,
    InMemorySQLiteHarness,
    MemoryHarness,
    PostgresHarness,
    RefusedAsDenied,
    SQLiteHarness,
)
from tests.conformance.postgres_bench import bench, database, db, opened, typed

__all__ = ["bench", "database", "db", "files", "flow", "harness", "lake", "opened", "pair", "spark_pair", "typed"]

BACKENDS = ("postgres", "duckdb", "sqlite")
# Sources and targets meet only in Arrow: two kinds of servers with each other, every other backend as a
# target of one of them. What each reads has tests of its own, and values go through every pair of
# backends in test_exactness.py.
FIRST = ("postgres", "duckdb")
PAIRS = [(source, target) for source in FIRST for target in FIRST]
PAIRS += [(FIRST[0], other) for other in BACKENDS if other not in FIRST]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """A test of what a backend's capabilities deny is passed by the refusal, which it has seen."""
    try:
        return (yield)
    except RefusedAsDenied:
        return True


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Harness]]:
    """An empty database of a backend, by name."""
    taken: list[str] = []

    def make(backend: str) -> Harness:
        if backend == "memory":
            return MemoryHarness(f"m{uuid.uuid4().hex[:12]}", tmp_path)
        if backend == "duckdb:memory":
            return InMemoryDuckDBHarness(f"d{uuid.uuid4().hex[:12]}", tmp_path)
        if backend == "sqlite:memory":
            return InMemorySQLiteHarness(f"s{uuid.uuid4().hex[:12]}", tmp_path)
        if backend == "duckdb":
            return DuckDBHarness(tmp_path / f"t{uuid.uuid4().hex[:12]}.duckdb")
        if backend == "sqlite":
            return SQLiteHarness(tmp_path / f"t{uuid.uuid4().hex[:12]}.sqlite")
        server: EmbeddedPostgres = request.getfixturevalue("postgres_server")
        taken.append(request.getfixturevalue("databases").take())
        return PostgresHarness(server.dsn_of(taken[-1]))

    yield make
    for name in taken:
        request.getfixturevalue("databases").give_back(name)


@pytest.fixture(params=BACKENDS)
def flow(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into each backend."""
    return Flow(harness("postgres"), harness(request.param), tmp_path)


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def spark_pair(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """Every source with every target, the data moved by Spark."""
    source, target = request.param
    return Flow(harness(source), harness(target), tmp_path, stage_with_spark)


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def pair(request: pytest.FixtureRequest, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """Every source with every target."""
    source, target = request.param
    return Flow(harness(source), harness(target), tmp_path)
