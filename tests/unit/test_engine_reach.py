"""Masters and Connect servers that are not there, or are something else: told at once, without a token."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from penstock.engine import reach
from penstock.errors import ConfigError, SparkError


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_local_master_needs_nobody() -> None:
    assert reach.check_master("local[*]") == "this machine"
    assert reach.is_local("local")
    assert not reach.is_local("local-cluster[2,1,512]")


def test_one_of_several_masters_is_enough(silent: int, closed: int) -> None:
    masters = f"spark://127.0.0.1:{closed},127.0.0.1:{silent}"
    assert reach.check_master(masters) == f"127.0.0.1:{silent}"
    assert reach.standalone_masters(masters) == 2


def test_every_master_that_does_not_answer_is_named(closed: int) -> None:
    with pytest.raises(SparkError) as raised:
        reach.check_master(f"spark://127.0.0.1:{closed},no-such-host.invalid:7077")
    assert f"127.0.0.1:{closed}: connection refused" in raised.value.why
    assert "no-such-host.invalid:7077: no such host" in raised.value.why
    assert raised.value.kept == "nothing was touched"


def test_kubernetes_is_asked_at_its_own_port(closed: int) -> None:
    with pytest.raises(SparkError, match="connection refused"):
        reach.check_master(f"k8s://https://127.0.0.1:{closed}")
    assert reach._places("k8s://example.org") == [("example.org", 443)]


@pytest.mark.parametrize("master", ["spark://host", "spark://", "http://host:7077", "cluster"])
def test_a_master_of_no_kind_is_a_mistake_in_the_project(master: str) -> None:
    with pytest.raises(ConfigError) as raised:
        reach.check_master(master)
    assert "spark://host:7077" in raised.value.remedy


def test_a_connect_server_that_is_not_there(closed: int) -> None:
    with pytest.raises(SparkError) as raised:
        reach.check_remote(f"sc://127.0.0.1:{closed}/;token=t0psecret")
    assert "connection refused" in raised.value.why
    assert "t0psecret" not in str(raised.value.to_record())


def test_something_else_than_a_connect_server(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "READY_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(SparkError, match="something else than a Spark Connect server"):
        reach.check_remote(f"sc://127.0.0.1:{silent}")
    assert time.monotonic() - began < 10


def test_a_remote_that_is_no_url_shows_no_token() -> None:
    with pytest.raises(ConfigError) as raised:
        reach.check_remote("http://host:15002/;token=t0psecret")
    assert "t0psecret" not in str(raised.value.to_record())
    assert "sc://host:15002" in raised.value.remedy


def test_without_its_client_connect_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from penstock.errors import DriverMissing

    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(DriverMissing) as raised:
        reach.check_remote("sc://127.0.0.1:15002")
    assert raised.value.remedy == "pip install 'penstock[connect]'"
