"""Faults in the last part of a large source: most rows are staged by then, and none may be loaded.

The good rows are read by tasks before the bad one is found, whatever planning has looked at.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.backends.files import shares
from penstock.errors import DataError, PenstockError, SourceError
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow, Harness, SQLiteHarness

pytestmark = pytest.mark.sampled

FILES, ROWS = 3, 1500  # files of so many rows each; the last rows of the last one are bad
CELL = "s3cr3tcell"  # in every row: no error may show it
PARALLEL = 4
DECLARED = {"id": "int", "v": "text"}


def csv_of(first: int) -> str:
    return "id,v\n" + "".join(f"{n},{CELL}{n}\n" for n in range(first, first + ROWS))


def jsonl_of(first: int) -> str:
    return "".join(json.dumps({"id": n, "v": f"{CELL}{n}"}) + "\n" for n in range(first, first + ROWS))


def parquet_of(first: int, id_type: pa.DataType | None = None) -> bytes:
    numbers = range(first, first + ROWS)
    table = pa.table(
        {"id": pa.array(numbers, pa.int32()).cast(id_type or pa.int32()), "v": [f"{CELL}{n}" for n in numbers]}
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=ROWS // 4, use_dictionary=False)
    return file.getvalue()


def damaged_page(data: bytes) -> bytes:
    """The last page's packed bytes overwritten; the footer, and all that planning reads, is whole."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(3).column(1)
    end = group.data_page_offset + group.total_compressed_size
    return data[: end - 2000] + b"\xff" * 2000 + data[end:]


def packed(text: str) -> bytes:
    return gzip.compress(text.encode())


def cut(data: bytes) -> bytes:
    return data[:-2000]


def flipped(data: bytes) -> bytes:
    return data[:-2000] + bytes(1000) + data[-1000:]


@dataclass(frozen=True)
class Fault:
    name: str  # of the files, by their format
    good: Callable[[int], str | bytes]
    bad: Callable[[int], str | bytes]
    error: type[PenstockError]
    match: str  # `LAST` is the path of the file that is bad
    declared: bool = True
    parts: bool = True  # whether the plan is made before the fault is met


FAULTS = {
    "ragged row": Fault(
        "csv", csv_of, lambda n: csv_of(n) + f"1,{CELL},2\n", SourceError, "LAST has 3 values instead of 2"
    ),
    "ragged row, short": Fault(
        "csv", csv_of, lambda n: csv_of(n) + f"{CELL}\n", SourceError, "LAST has 1 values instead of 2"
    ),
    "open quote": Fault("csv", csv_of, lambda n: csv_of(n) + f'1,"{CELL}\n', SourceError, "LAST ends inside quotes"),
    "encoding": Fault(
        "csv", csv_of, lambda n: csv_of(n).encode() + f"1,{CELL}".encode() + b"\xff\n", SourceError, "LAST is not utf-8"
    ),
    "no integer": Fault(
        "csv",
        csv_of,
        lambda n: csv_of(n) + f"{CELL},x\n",
        DataError,
        "column id of LAST.* holds a value that is no int",
    ),
    "json line": Fault(
        "jsonl",
        jsonl_of,
        lambda n: jsonl_of(n) + f'{{"id": 1, "v": "{CELL}"\n',
        SourceError,
        f"line {ROWS + 1} of LAST is not a JSON object",
    ),
    "json encoding": Fault(
        "jsonl",
        jsonl_of,
        lambda n: jsonl_of(n).encode() + b'{"id": 1, "v": "' + CELL.encode() + b'\xff"}\n',
        SourceError,
        "LAST is not utf-8",
    ),
    "json member": Fault(
        "jsonl",
        jsonl_of,
        lambda n: jsonl_of(n) + f'{{"id": 1, "w": "{CELL}"}}\n',
        SourceError,
        "LAST has members that no column is declared for",
    ),
    "json value": Fault(
        "jsonl",
        jsonl_of,
        lambda n: jsonl_of(n) + f'{{"id": "{CELL}", "v": null}}\n',
        DataError,
        "column id of LAST.* holds a value that is no int",
    ),
    # Arrow reads ahead while a header is looked for: of a small file, to its end.
    "gzip, cut": Fault(
        "csv.gz",
        lambda n: packed(csv_of(n)),
        lambda n: cut(packed(csv_of(n))),
        SourceError,
        "LAST cannot be (read|unpacked)",
        parts=False,
    ),
    "json gzip, cut": Fault(
        "jsonl.gz",
        lambda n: packed(jsonl_of(n)),
        lambda n: cut(packed(jsonl_of(n))),
        SourceError,
        "LAST cannot be read",
    ),
    "json gzip, damaged": Fault(
        "jsonl.gz",
        lambda n: packed(jsonl_of(n)),
        lambda n: flipped(packed(jsonl_of(n))),
        SourceError,
        "LAST cannot be read",
    ),
    "parquet page": Fault(
        "parquet",
        parquet_of,
        lambda n: damaged_page(parquet_of(n)),
        SourceError,
        "LAST is not a whole Parquet file",
        declared=False,
    ),
    "other type": Fault(
        "parquet",
        parquet_of,
        lambda n: parquet_of(n, pa.string()),
        SourceError,
        "LAST have different types of column id",
        declared=False,
        parts=False,
    ),
    "other columns": Fault(
        "csv",
        csv_of,
        lambda n: f"id\n{n}\n",
        SourceError,
        "LAST and .*part0.csv have different columns",
        declared=False,
        parts=False,
    ),
}


class Source(FilesHarness):
    """A table of somebody else's files, the last of which is bad, or not."""

    def __init__(self, root: Path, fault: Fault) -> None:
        more: dict[str, Any] = {"tables": {"items": {"columns": DECLARED}}} if fault.declared else {}
        super().__init__(root, fault.name.partition(".")[0], **more)
        self.fault = fault

    @property
    def last(self) -> Path:
        return self.root / "main" / "items" / f"part{FILES - 1}.{self.fault.name}"

    def put(self, *, bad: bool) -> None:
        self.last.parent.mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            make = self.fault.bad if bad and number == FILES - 1 else self.fault.good
            made = make(number * ROWS)
            path = self.last.with_name(f"part{number}.{self.fault.name}")
            path.write_bytes(made.encode() if isinstance(made, str) else made)


def target_of(kind: str, folder: Path) -> Harness:
    if kind == "parquet":
        return FilesHarness(folder / "lake", kind)
    return SQLiteHarness(folder / "w.sqlite") if kind == "sqlite" else DuckDBHarness(folder / "w.duckdb")


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "parquet"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_last_part_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(shares, "MIN_PART_BYTES", 1000)
    fault = FAULTS[name]
    source = Source(tmp_path / "source", fault)
    flow = Flow(source, target_of(kind, tmp_path), tmp_path)
    source.put(bad=False)
    flow.run(parallel=PARALLEL)
    before = flow.target.query("select count(*), min(id), max(id) from items")
    assert before[0][0] == FILES * ROWS

    source.put(bad=True)
    if fault.parts:
        assert flow.plan(parallel=PARALLEL).partitions > 1
    with pytest.raises(fault.error, match=fault.match.replace("LAST", re.escape(str(source.last)))) as caught:
        flow.run(parallel=PARALLEL)
    record = json.dumps(caught.value.to_record())
    assert CELL not in record
    assert "\\ufffd" not in record
    assert caught.value.kept in ("nothing was committed", "nothing was touched")
    assert caught.value.remedy
    assert flow.target.query("select count(*), min(id), max(id) from items") == before

    source.put(bad=False)
    assert flow.run(parallel=PARALLEL).rows == FILES * ROWS
    assert flow.target.query("select count(*) from items") == [(2 * FILES * ROWS,)]
    assert flow.target.leftovers() == []
