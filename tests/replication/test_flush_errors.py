"""What a flush does with an error: of the server and of the moment, it is tried again; of a table, that one fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.backends.base import Execute, TableLoad
from penstock.backends.change_target import Flush, TableFailed, TableFlush
from penstock.backends.postgres.apply import PostgresApplier
from penstock.backends.postgres.config import PostgresConfig
from penstock.errors import Kind, PenstockError
from penstock.schema import TableName
from tests.conformance.harness import Harness, PostgresHarness
from tests.unit.changelog_rows import position

pytestmark = pytest.mark.postgres

# Deadlock, serialization, shutdown, no connection, no room, a lock, a standby: nobody's fault in particular.
OF_THE_SERVER = ("40P01", "40001", "57P01", "57P02", "57P03", "53300", "53100", "55P03", "25006")
OF_THE_TABLE = {"23505": Kind.DATA, "22003": Kind.DATA, "42501": Kind.PERMANENT, "P0001": Kind.PERMANENT}
RAISES = """
create or replace function fail() returns trigger language plpgsql as $$
begin raise exception 'no' using errcode = 'CODE'; end $$
"""
TABLE = TableName("public", "t")


def test_a_flush_tells_the_trouble_of_a_table_from_that_of_the_server(harness: Callable[[str], Harness]) -> None:
    target = harness("postgres")
    assert isinstance(target, PostgresHarness)
    target.execute(
        "create table t (v int)",
        RAISES.replace("CODE", "P0001"),
        "create trigger fails before insert on t for each row execute function fail()",
    )
    config = PostgresConfig.model_validate({"name": "to", "type": "postgres", "dsn": target.dsn})
    applier = PostgresApplier(config, "shop")
    applier.claim()
    applier.flush(Flush(None, position(10)))

    def flush() -> None:
        adds = TableFlush(TABLE, TableLoad(TABLE, (), (Execute("insert into public.t values (1)"),)))
        applier.flush(Flush(position(10), position(20), [adds]))

    for state in OF_THE_SERVER:
        target.execute(RAISES.replace("CODE", state))
        with pytest.raises(PenstockError) as caught:
            flush()
        assert caught.value.passing, state
    for state, kind in OF_THE_TABLE.items():
        target.execute(RAISES.replace("CODE", state))
        with pytest.raises(TableFailed) as failed:
            flush()
        assert failed.value.error.kind is kind, state
    target.execute("drop trigger fails on t")
    flush()  # whatever it was, it goes on
    applier.close()
    assert target.query("select v from t") == [(1,)]
