"""An agent that takes a replication over while a flush of the one before it is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.backends.change_target import Flush, TableFlush
from penstock.backends.postgres.apply import PostgresApplier
from penstock.backends.postgres.config import PostgresConfig
from penstock.errors import Busy
from tests.conformance.harness import Harness, PostgresHarness
from tests.unit.changelog_rows import position
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

WAITS = (
    "select 1 from pg_stat_activity where application_name = 'penstock:shop:apply' and wait_event_type = 'Lock'"
    " and datname = current_database()"
)


def test_it_goes_on_behind_the_flush_and_the_one_before_it_commits_no_more(harness: Callable[[str], Harness]) -> None:
    target = harness("postgres")
    assert isinstance(target, PostgresHarness)
    config = PostgresConfig.model_validate({"name": "to", "type": "postgres", "dsn": target.dsn})
    before, after = PostgresApplier(config, "shop"), PostgresApplier(config, "shop")
    before.claim()
    before.flush(Flush(None, position(10)))
    taken: list[object] = []
    other = threading.Thread(target=lambda: taken.append(after.claim()))

    def under_way() -> Iterator[TableFlush]:
        """Asked for behind the fence: there the flush stays until somebody waits for it."""
        other.start()
        await_true(lambda: target.query(WAITS))
        yield from ()

    before.flush(Flush(position(10), position(20), under_way()))
    other.join(30)
    [applied] = taken
    assert applied.position == position(20)  # type: ignore[attr-defined]  # of Applied
    after.flush(Flush(position(20), position(30)))
    with pytest.raises(Busy, match="another agent runs"):
        before.flush(Flush(position(30), position(40)))
    before.close()
    after.close()
