"""Servers and sessions that the whole suite shares, each started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server
