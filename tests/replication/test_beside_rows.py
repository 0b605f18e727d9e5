"""What a log has beside rows: messages that others write into it, and how far the server says that it goes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.backends.change_source import LogNames, TableRequest
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import Batch, Position
from penstock.backends.postgres.change_source import PostgresChangeSource
from penstock.backends.postgres.config import PostgresConfig
from penstock.schema import TableName
from tests.conformance.harness import Harness, PostgresHarness
from tests.replication.stand import ITEMS, Stand
from tests.waiting import await_true

pytestmark = pytest.mark.postgres


def test_a_row_is_not_held_back_by_a_message_of_others_behind_it(make: Callable[..., Stand]) -> None:
    """Such a message belongs to no transaction: nothing ends it."""
    stand = make("sqlite")
    stand.source.execute(*ITEMS)
    stand.start()
    stand.sync()
    stand.stop()
    stand.source.execute(
        "insert into items values (9001, 'last')", "select pg_logical_emit_message(false, 'other', 'x')"
    )
    stand.start()
    last = "select count(*) from items where id = 9001"
    await_true(lambda: stand.target.query(last) == [(1,)], 20, lambda: (stand.seen, stand.error))


@pytest.fixture
def source(harness: Callable[[str], Harness]) -> Iterator[tuple[PostgresHarness, PostgresChangeSource]]:
    database = harness("postgres")
    assert isinstance(database, PostgresHarness)
    database.execute("create table t (id int primary key)")
    config = {"name": "from_", "type": "postgres", "dsn": database.dsn, "link_timeout": "1s"}
    slot = f"penstock_{uuid.uuid4().hex[:12]}"
    requests = [TableRequest(TableName("public", "t"))]
    made = PostgresChangeSource(PostgresConfig.model_validate(config), LogNames(slot, slot), requests)
    with closing(made):
        yield database, made
        made.remove()


def test_a_keepalive_moves_nothing_past_what_is_not_durable(
    source: tuple[PostgresHarness, PostgresChangeSource], tmp_path: Path
) -> None:
    database, reads = source
    with closing(reads.begin()) as moment:
        start = Position(moment.origin, moment.commit, moment.commit)
    with closing(reads.stream(start, Chain(tmp_path), {})) as stream:
        database.execute("insert into t values (1)")
        taken: list[Batch] = []

        def took() -> bool:
            batch = stream.take(0.1)
            taken.extend([batch] if batch is not None and batch.transactions.num_rows else [])
            return bool(taken)

        await_true(took)
        end = taken[0].transactions["end"][-1].as_py()
        # The log goes on without anything for us, and the server says so again and again.
        database.execute("create temp table other as select i from generate_series(1, 1000) i")
        [(later,)] = database.query("select (pg_current_wal_insert_lsn() - '0/0')::int8")
        await_true(lambda: stream.source_end >= later > end, 20, lambda: (stream.source_end, later, end))
        heard = time.monotonic() + 1.5  # more than one keepalive's time
        await_true(lambda: time.monotonic() > heard)
        assert stream.idle_end < end
        stream.durable(end)
        await_true(lambda: stream.idle_end >= later, 20, lambda: (stream.idle_end, later))
