"""A slot waits for everybody who writes: not for ever, and it says for whom."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import psycopg
import pytest

from penstock.backends.change_source import LogNames
from penstock.backends.postgres import replication
from penstock.backends.postgres.change_source import PostgresChangeSource
from penstock.backends.postgres.config import PostgresConfig
from penstock.errors import LinkLost
from tests.conformance.harness import Harness, PostgresHarness

pytestmark = pytest.mark.postgres


def test_whoever_a_slot_waits_for_is_named(harness: Callable[[str], Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    source, elsewhere = harness("postgres"), harness("postgres")
    assert isinstance(source, PostgresHarness)
    assert isinstance(elsewhere, PostgresHarness)
    elsewhere.execute("create table t (v int)")
    monkeypatch.setattr(replication, "SLOT_SECONDS", 1.0)
    slot = f"penstock_{uuid.uuid4().hex[:12]}"
    made = PostgresChangeSource(
        PostgresConfig.model_validate({"name": "from_", "type": "postgres", "dsn": source.dsn}),
        LogNames(slot, slot, own=False),
        [],
    )
    gid = f"stuck-{slot}"
    with (
        psycopg.connect(elsewhere.dsn, autocommit=True) as prepared,
        psycopg.connect(elsewhere.dsn, application_name="nightly load") as writer,
    ):
        prepared.execute("begin")
        prepared.execute("insert into t values (1)")
        prepared.execute(f"prepare transaction '{gid}'".encode())
        try:
            writer.execute("insert into t values (2)")
            with pytest.raises(LinkLost, match="no slot could be made within 1 s") as caught:
                made.begin()
            assert f"pid {writer.info.backend_pid} (database" in caught.value.why
            assert "application nightly load" in caught.value.why
            assert f"prepared transaction '{gid}'" in caught.value.why
            assert not source.query(f"select 1 from pg_replication_slots where slot_name = '{slot}'")
        finally:
            prepared.execute(f"rollback prepared '{gid}'".encode())
    made.begin().close()  # they have ended
    made.remove()
    made.close()
