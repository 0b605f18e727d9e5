"""`penstock runs`: the history as people and programs see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli import runs
from penstock.cli.context import Output
from penstock.cli.views import runs as view
from penstock.errors import ConfigError
from penstock.state import RunRecord, Store, open_store

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("COLUMNS", "100")
    with open_store("memory:") as opened:
        for number, state in enumerate(("done", "failed")):
            run_id = f"019{number}" + "0" * 24 + f"beef{number}"[-4:]
            opened.start_run(RunRecord(run_id, "customers", started_at=BEGAN, plan='{"path": "fused"}'))
            error = {"what": "2 keys occur twice", "why": "no", "remedy": "order_by"} if state == "failed" else None
            opened.finish_run(run_id, state, error=error, finished_at=BEGAN + timedelta(seconds=2), rows=12345)  # type: ignore[arg-type]  # a state of a table of cases
        yield opened


def test_list_fits_100_columns(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    view.show_list(store.runs(), Output.TEXT)
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "12,345" in text
    assert "failed" in text


def test_list_as_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    view.show_list(store.runs(state="failed"), Output.JSON)
    [record] = json.loads(capsys.readouterr().out)
    assert record["error"]["what"] == "2 keys occur twice"
    assert record["plan"] == {"path": "fused"}
    assert record["seconds"] == 2.0
    assert record["started_at"] == "2026-01-02T03:04:05+00:00"


def test_show_says_why_a_run_failed_and_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    view.show_one(store.runs(state="failed")[0], [], Output.TEXT)
    text = capsys.readouterr().out
    assert "2 keys occur twice" in text
    assert "order_by" in text


def test_run_is_found_by_the_start_or_the_end_of_its_id(store: Store) -> None:
    whole = store.runs(state="failed")[0].run_id
    assert runs.find(store, whole).run_id == whole
    assert runs.find(store, "0191").run_id == whole
    assert runs.find(store, whole[-8:]).run_id == whole


@pytest.mark.parametrize("part", ["zzzz", "019", "0000"])
def test_unknown_run_is_a_usage_error(store: Store, part: str) -> None:
    with pytest.raises(ConfigError, match="there is no run") as caught:
        runs.find(store, part)
    assert caught.value.exit_code == 2


def test_empty_history_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_list([], Output.TEXT)
    assert capsys.readouterr().out == "no runs yet\n"
