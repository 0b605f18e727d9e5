"""Files that the driver hands out to tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.backends.base import RunContext
from penstock.backends.exchange import Exchange
from penstock.errors import SourceError
from penstock.schema import Column


def test_what_was_not_handed_out_whole_is_handed_out_again(tmp_path: Path) -> None:
    exchange = Exchange(RunContext(uuid.uuid4().hex, "p", tmp_path / "staging" / "run"))
    tries: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        tries.append(1)
        for number in range(3):
            if number == 2 and len(tries) == 1:
                raise SourceError("the link was cut")
            yield pa.record_batch({"n": pa.array([number], pa.int64())})

    part = exchange.partition([Column("n", pa.int64())], batches)
    with pytest.raises(SourceError):
        exchange.write()
    exchange.write()
    exchange.write()
    assert [n for batch in part.read() for n in batch.column("n").to_pylist()] == [0, 1, 2]
    assert len(tries) == 2
    exchange.close()
    assert not part.file.exists()
