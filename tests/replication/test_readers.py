"""Another process reads the target all along: no sum is ever torn, whatever happens to the agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.conformance.harness import PostgresHarness
from tests.replication.conftest import TARGETS
from tests.replication.stand import Stand
from tests.waiting import await_true

pytestmark = pytest.mark.postgres

ACCOUNTS, BALANCE = 200, 100
TABLES = (
    "create table accounts (id int primary key, balance int not null, moves int not null)",
    f"insert into accounts select i, {BALANCE}, 0 from generate_series(1, {ACCOUNTS}) i",
    "create table transfers (id serial primary key, src int, dst int, amount int)",
)
TRANSFERS = f"""
do $$ declare a int; b int; begin
  for i in 1..40 loop
    a := 1 + (random() * {ACCOUNTS - 1})::int; b := 1 + a % {ACCOUNTS};
    update accounts set balance = balance - i, moves = moves + 1 where id = a;
    insert into transfers (src, dst, amount) values (a, b, i);
    update accounts set balance = balance + i, moves = moves + 1 where id = b;
    if i % 9 = 0 then rollback; else commit; end if;
  end loop; end $$
"""


@contextmanager
def reading(stand: Stand) -> Iterator[dict[str, Any]]:
    """What the reader has seen is there when it has ended."""
    target = stand.target
    place = target.dsn if isinstance(target, PostgresHarness) else str(target.path)  # type: ignore[attr-defined]  # of a file
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.replication.reader", target.backend, place, str(ACCOUNTS * BALANCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    seen: dict[str, Any] = {}
    try:
        yield seen
    finally:
        said, _ = process.communicate(timeout=30)
    seen |= json.loads(said)


def _has_passed(stand: Stand, position: int) -> bool:
    return stand.position > position


@pytest.mark.parametrize("target", TARGETS)
def test_no_reader_sees_a_torn_sum(target: str, make: Callable[..., Stand]) -> None:
    stand = make(target, apart=True)
    stand.source.execute(*TABLES)
    with reading(stand) as seen:
        stand.start()
        stand.sync()
        for _ in range(6):
            before = stand.position
            stand.source.execute(TRANSFERS)
            await_true(partial(_has_passed, stand, before), 30, lambda: stand.seen)
        stand.kill()
        stand.source.execute(TRANSFERS)
        stand.start()
        stand.sync()
    assert seen["torn"] == []
    assert seen["reads"] > 20
    assert seen["moments"] > 3
    stand.assert_agrees("accounts", "transfers")
