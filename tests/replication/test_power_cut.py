"""What is confirmed to the source would outlive a power cut: shown by the calls that are made, in their order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from penstock.backends.changelog.chain import SUFFIX, Chain
from tests.replication.stand import Stand
from tests.replication.tracing import TRACERS, Call, straced, wrap
from tests.waiting import await_true

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("tracer", TRACERS)
def test_data_then_its_name_then_the_folder_then_the_confirmation(
    tracer: str, make: Callable[..., Stand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = make("files", apart=True)
    stand.source.execute("create table items (id bigint primary key, name text)")
    with ExitStack() as stack:
        if tracer == "wrapped":
            environment, written = wrap(tmp_path / "wrapped")
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
        stand.start()
        stand.sync()
        calls: list[Call] = []
        if tracer == "strace":
            assert stand.process is not None
            agent = psutil.Process(stand.process.pid)
            await_true(agent.children)
            calls = stack.enter_context(straced(tmp_path / "calls", agent.pid, agent.children()[0].pid))
        for number in range(5):
            stand.source.execute(f"insert into items select i, 'x' from generate_series({number}00, {number}99) i")
            stand.sync()
        await_true(lambda: _confirmed(stand) >= stand.position, 30)
    stand.stop()
    calls = written() if tracer == "wrapped" else calls
    buffer = stand.root / ".penstock" / "buffer" / stand.replication.name
    assert _links(calls, buffer) >= 5
    assert _links(calls, stand.log) >= 5
    for folder in (buffer, stand.log):
        _assert_durable_in_order(calls, folder)
    _assert_confirmed_what_is_durable(calls, buffer)


def _confirmed(stand: Stand) -> int:
    [(position,)] = stand.source.query(
        "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
        f" where slot_name = '{stand.replication.slot_name}'"
    )
    return int(position)


def _links(calls: list[Call], folder: Path) -> int:
    return sum(_is_segment(call, folder) for call in calls)


def _is_segment(call: Call, folder: Path) -> bool:
    path = Path(call.path)
    return call.name == "link" and path.parent == folder and path.suffix == SUFFIX


def _assert_durable_in_order(calls: list[Call], folder: Path) -> None:
    """All of a segment is on the disk before it has a name, and its name before the next has one."""
    synced: set[str] = set()  # files whose every byte is on the disk
    unsynced = ""  # a name that is not
    for call in calls:
        path = Path(call.path)
        if path == folder and call.name == "fsync":
            unsynced = ""
        elif path.parent == folder and call.name == "fsync":
            synced.add(path.name)
        elif path.parent == folder and call.name == "write":
            synced.discard(path.name)
        elif _is_segment(call, folder):
            assert unsynced == ""
            assert any(name.startswith(f".{path.stem}.") for name in synced), f"{path.name} was named too early"
            unsynced = path.name


def _assert_confirmed_what_is_durable(calls: list[Call], folder: Path) -> None:
    chain = Chain(folder)
    linked: list[int] = []
    durable, confirmed = 0, []
    for call in calls:
        if _is_segment(call, folder):
            footer = chain.footer(int(Path(call.path).stem))
            durable = durable or footer["after"]["end"]
            linked.append(footer["until"]["end"])
        elif call.name == "fsync" and call.path == str(folder) and linked:
            durable = max(durable, linked[-1])
        elif call.name == "confirm" and durable:
            assert call.position <= durable, f"{call.position} was confirmed, {durable} is durable"
            confirmed.append(call.position)
    assert len(set(confirmed)) >= 2
