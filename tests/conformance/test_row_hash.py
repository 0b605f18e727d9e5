"""`row_hash`: one definition, whatever the target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.conftest import BACKENDS
from tests.conformance.harness import Flow, Harness

pytestmark = pytest.mark.postgres

ROWS = {
    1: ("7", "-12", "1.50", "true", "2024-02-29", "2024-01-01 10:00:00.5", "ab"),
    2: (None, None, None, None, None, None, ""),
    3: ("0", "9223372036854775807", "-0.01", "false", "0001-01-01", "9999-12-31 23:59:59", "ü:-3:\U0001f600"),
}
TYPES = ("smallint", "bigint", "numeric(10,2)", "boolean", "date", "timestamp", "text")


def defined(texts: tuple[str | None, ...]) -> str:
    joined = "".join("-" if text is None else f"{len(text)}:{text}" for text in texts)
    return "2:" + hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_hash_is_the_same_in_every_target(harness: Callable[[str], Harness], tmp_path: Path, backend: str) -> None:
    flow = Flow(harness("postgres"), harness(backend), tmp_path)
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES))
    flow.source.execute(f"create table items (id int primary key, {columns})")
    for id_, texts in ROWS.items():
        cells = ", ".join("null" if text is None else f"'{text}'" for text in texts)
        flow.source.execute(f"insert into items values ({id_}, {cells})")
    flow.run(mode="scd2")
    found = flow.target.query("select id, row_hash from items order by id")
    hashes = flow.target.hashes
    assert found == [(id_, defined(texts) if hashes else None) for id_, texts in ROWS.items()]
    notes = [note for note in flow.plan(mode="scd2").notes if "row_hash stays NULL" in note]
    assert bool(notes) is not hashes  # what is missing is said
