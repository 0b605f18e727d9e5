"""How large the batches are that a DuckDB file is read in: bounded by bytes, not only by rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.backends.base import ReadRequest, RunContext
from penstock.schema import TableName
from tests.conformance.test_duckdb_backend import BACKEND, Files

BATCH_BYTES = 1024 * 1024


@pytest.mark.parametrize(
    ("width", "rows", "least", "most"),
    [
        (40_000, 3_000, 100, 300),  # a vector of them is 80 times the limit
        (2 * BATCH_BYTES, 5, 5, 5),  # one row is beyond it: a batch of its own
        (100, 50_000, 5, 12),  # narrow rows are joined
    ],
)
def test_no_batch_is_far_beyond_batch_bytes(tmp_path: Path, width: int, rows: int, least: int, most: int) -> None:
    files = Files(tmp_path)
    files.sql("source", f"create table t as select range as id, repeat('x', {width}) as doc from range({rows})")
    run = RunContext("0" * 32, "p", tmp_path / "unused", batch_bytes=BATCH_BYTES)
    source = BACKEND.source(files.config("source"), ReadRequest(table=TableName(None, "t")), run)
    try:
        (part,) = source.partitions(source.schema().columns, 1).partitions
        ids: list[int] = []
        batches = 0
        for batch in part.read():
            batches += 1
            ids += batch.column("id").to_pylist()
            assert batch.num_rows == 1 or batch.get_total_buffer_size() <= 1.1 * BATCH_BYTES
    finally:
        source.close()
    assert sorted(ids) == list(range(rows))
    assert least <= batches <= most
