"""The sample of a quick run: nothing that a matrix has is left out of it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

MODULE = """
import pytest
pytestmark = pytest.mark.sampled

@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def target(request):
    return request.param

@pytest.mark.parametrize("place", ["begin", "commit", "sweep"])
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_killed(victim, place, target): print("ran", victim, place, target)

def test_modes(target): print("ran", target)

def test_alone(): print("ran alone")
"""


def ran(pytester: pytest.Pytester, *options: str) -> list[str]:
    result = pytester.runpytest("-q", "-s", "-p", "no:randomly", *options)
    assert result.ret == 0
    return [line.split("ran ", 1)[1].rstrip(".") for line in result.outlines if "ran " in line]


@pytest.fixture
def matrix(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers = sampled")
    pytester.makepyfile(MODULE)
    return pytester


def test_every_function_and_every_value_is_in_the_sample(matrix: pytest.Pytester) -> None:
    lines = ran(matrix)
    words = {word for line in lines for word in line.split()}
    assert words == {"begin", "commit", "sweep", "driver", "worker", "postgres", "duckdb", "sqlite", "alone"}
    assert len([line for line in lines if line.startswith(("driver", "worker"))]) == 3
    assert len([line for line in lines if len(line.split()) == 1]) == 2


def test_a_seed_gives_the_same_sample_again_and_another_one_another(matrix: pytest.Pytester) -> None:
    samples = [tuple(ran(matrix, f"--sample-seed={seed}")) for seed in (1, 1, 2, 3, 4)]
    assert samples[0] == samples[1]
    assert len(set(samples)) > 1


def test_the_full_run_has_every_combination(matrix: pytest.Pytester) -> None:
    assert len(ran(matrix, "--full")) == 2 * 3 * 3 + 3 + 1


SHARED = """
import pytest
pytestmark = pytest.mark.sampled(shared=("place",))

@pytest.mark.parametrize("place", ["begin", "commit", "sweep", "end"])
def test_one(place): print("ran", place)

@pytest.mark.parametrize("place", ["begin", "commit", "sweep", "end"])
def test_other(place): print("ran", place)
"""


def test_the_values_of_a_shared_parameter_are_had_once_by_all_functions_together(matrix: pytest.Pytester) -> None:
    matrix.makepyfile(SHARED)
    lines = ran(matrix, "-k", "test_one or test_other")
    assert sorted(lines) == ["begin", "commit", "end", "sweep"]
