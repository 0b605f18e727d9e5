"""Transactions that are larger than what is meant to hold them: many rows, or few that are large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.backends.changelog.chain import PIECE
from penstock.backends.duckdb.config import FIRST_MEMORY_LIMIT
from tests.replication.conftest import TARGETS
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(240)]

ROWS, ROW_BYTES = 80, 4 * 1024 * 1024
PEAK_BYTES = 520 * 1024 * 1024  # what a process takes by itself, and a few parts of a transaction


def peaks(stand: Stand) -> dict[str, int]:
    """The most memory that the agent and its capture have taken, each."""
    assert stand.process is not None
    agent = stand.process.pid
    [capture, *_] = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return {"agent": _peak(agent), "capture": _peak(int(capture))}


def _peak(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sent", ["whole", "streamed"])
def test_large_rows_are_held_by_their_bytes(make: Callable[..., Stand], target: str, sent: str) -> None:
    """The server counts rows as they are compressed: a transaction that it holds easily may be too large for us."""
    stand = make(target, apart=True)
    [(database,)] = stand.source.query("select current_database()")
    memory = {"whole": "1GB", "streamed": "64kB"}[sent]
    stand.source.execute(
        f"alter database {database} set logical_decoding_work_mem = '{memory}'",
        "create table docs (id int primary key, body text)",
        "create table notes (id int primary key)",
    )
    stand.start()
    stand.sync()
    stand.source.execute(
        f"begin; insert into notes values (1);"
        f" insert into docs select i, repeat(chr(65 + i % 26), {ROW_BYTES}) from generate_series(1, {ROWS}) i;"
        f" delete from docs where id > 5; insert into notes values (2); commit"
    )
    stand.sync()
    found = peaks(stand)
    assert found["capture"] < PEAK_BYTES
    # A DuckDB file is written by the agent itself, which takes so much for it.
    assert found["agent"] < PEAK_BYTES + (FIRST_MEMORY_LIMIT if target == "duckdb" else 0)
    assert list(stand.log.glob(f"*{PIECE}"))  # it was kept in files
    stand.stop()
    [(rows, size)] = stand.target.query("select count(*), sum(length(body)) from docs")
    assert (rows, int(size)) == (5, 5 * ROW_BYTES)
    stand.assert_agrees("notes")


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_many_rows_are_held_in_bounded_memory(
    make: Callable[..., Stand], pytestconfig: pytest.Config, form: str
) -> None:
    """5 million with --full; as many as do not fit into what is held, and then some, without."""
    rows = 5_000_000 if pytestconfig.getoption("--full") else 300_000
    stand = make("postgres", apart=True, buffer={"segment_ms": 5, "format": form})
    [(database,)] = stand.source.query("select current_database()")
    stand.source.execute(
        f"alter database {database} set logical_decoding_work_mem = '1MB'",
        "create table items (id int primary key, name text, n int)",
    )
    stand.start()
    stand.sync()
    stand.source.execute(
        "begin;"
        f" insert into items select i, 'item ' || i, 0 from generate_series(1, {rows // 2}) i;"
        " savepoint a; delete from items; rollback to a;"
        f" update items set n = id where id <= {rows // 2};"
        " commit"
    )
    stand.sync(600)
    found = peaks(stand)
    assert max(found.values()) < PEAK_BYTES, found
    pieces = list(stand.log.glob(f"*{PIECE}"))
    assert pieces
    assert {piece.read_bytes()[:4] == b"PAR1" for piece in pieces} == {form == "parquet"}
    totals = "select count(*)::text, sum(n)::text, sum(length(name))::text from items"
    assert stand.target.query(totals) == stand.source.query(totals)


def test_many_rows_without_a_key_go_from_a_target_without_hashes(make: Callable[..., Stand]) -> None:
    """Each compared with each would take minutes."""
    stand = make("sqlite")
    row = "i % 3, case when i % 5 <> 0 then i / 8.0::float8 end, 'row ' || i % 19999, decode(md5(i::text), 'hex')"
    stand.source.execute(
        "create table bag (n int, x float8, s text, b bytea)",
        "alter table bag replica identity full",
        f"insert into bag select {row} from generate_series(1, 40000) i",
        "insert into bag select * from bag where n = 0 limit 300",
    )
    stand.start()
    stand.sync()
    stand.source.execute(
        "delete from bag where ctid in (select ctid from bag where n = 0 limit 150)",
        "delete from bag where n = 1 or right(s, 1) in ('3', '4')",
    )
    stand.sync(30)
    stand.assert_agrees("bag")


def test_a_flush_that_cannot_do_with_its_memory_gets_more(
    make: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backends.duckdb.config.FIRST_MEMORY_LIMIT", 12 * 1024 * 1024)
    stand = make("duckdb")
    stand.source.execute("create table docs (id int primary key, body text)")
    stand.start()
    stand.sync()
    stand.source.execute("insert into docs select i, repeat(md5(i::text), 1 << 19) from generate_series(1, 2) i")
    stand.sync()
    stand.stop()
    monkeypatch.undo()
    shown = "select id, md5(body) from docs order by id"
    assert stand.target.query(shown) == stand.source.query(shown)
