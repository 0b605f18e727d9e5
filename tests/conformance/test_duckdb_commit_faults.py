"""What becomes of a DuckDB load when its COMMIT, or the close after it, does not answer properly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.backends.base import Load, LoadPlan, Receipt
from penstock.backends.duckdb import write
from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.connect import Session, open_file
from penstock.errors import TargetError
from tests.conformance.duckdb_bench import BACKEND, INTS, Files, ints

FATAL = duckdb.FatalException("FATAL Error: Failed to create checkpoint because of error: No space left")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, lock_timeout=0.3)


class Faulty:
    """A connection that does something else at COMMIT, or when it is closed."""

    def __init__(
        self, real: Any, commit: Callable[[Any], None] | None, closing: Exception | None, done: list[str]
    ) -> None:
        self._real, self._commit, self._closing, self._done = real, commit, closing, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, sql: str, *params: Any) -> Any:
        if sql == "commit" and self._commit is not None:
            self._done.append("commit")
            return self._commit(self._real)
        return self._real.execute(sql, *params)

    def close(self) -> None:
        self._real.close()
        if self._closing is not None:
            self._done.append("close")
            raise self._closing


@contextmanager
def begun(files: Files) -> Iterator[tuple[LoadPlan, Load, Receipt]]:
    plan = files.plan(INTS)
    load = BACKEND.target(files.config("target"), plan.run).begin(plan)
    try:
        yield plan, load, load.sink(0).write(0, ints(1, 2))
    finally:
        load.close()


def arm(
    monkeypatch: pytest.MonkeyPatch, commit: Callable[[Any], None] | None = None, closing: Exception | None = None
) -> list[str]:
    """What was done otherwise is noted: a fault that nobody met would prove nothing."""
    done: list[str] = []

    def opened(config: DuckDBConfig, *, read_only: bool, memory_limit: str | None = None) -> Session:
        session = open_file(config, read_only=read_only, memory_limit=memory_limit)
        if not read_only:
            session.connection = Faulty(session.connection, commit, closing, done)
        return session

    monkeypatch.setattr(write, "open_file", opened)
    return done


@contextmanager
def held(path: Path, mode: str) -> Iterator[Callable[[], None]]:
    """A way to make another process open the file; it lets go at the end."""
    code = (
        "import sys, duckdb; sys.stdin.readline()\n"
        f"held = duckdb.connect({str(path)!r}, read_only={mode == 'reader'}); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None

        def take() -> None:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(b"now\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == b"held\n"

        yield take
        holder.stdin.close()
        holder.wait(20)


def lost_to(take: Callable[[], None]) -> Callable[[Any], None]:
    """A commit that is carried out, but whose answer is lost, while somebody else takes the file."""

    def lost(real: Any) -> None:
        real.execute("commit")
        real.close()
        take()
        raise FATAL

    return lost


def test_a_commit_that_cannot_be_looked_up_is_neither_repeated_nor_called_failed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(files) as (plan, load, receipt), held(files.config("target").file, "writer") as take:
        arm(monkeypatch, lost_to(take))
        with pytest.raises(TargetError) as raised:
            load.commit([receipt])
    assert not raised.value.retryable
    assert raised.value.kept == (
        f"it is not known whether the load was committed: run {plan.run.run_id} in _penstock.loads tells"
    )
    assert load.result is None
    assert files.sql("target", "select count(*) from t") == [(2,)]


def test_a_reader_does_not_hinder_the_look_up(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(files) as (_, load, receipt), held(files.config("target").file, "reader") as take:
        met = arm(monkeypatch, lost_to(take))
        assert load.commit([receipt]).rows == 2
    assert met == ["commit"]
    assert load.result is not None


def test_an_interrupt_during_commit_is_told_what_became_of_it(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def after(real: Any) -> None:
        real.execute("commit")
        raise KeyboardInterrupt

    def before(real: Any) -> None:
        raise KeyboardInterrupt

    arm(monkeypatch, before)
    with begun(files) as (_, load, receipt):
        with pytest.raises(KeyboardInterrupt):
            load.commit([receipt])
        assert load.result is None
    arm(monkeypatch, after)
    with begun(files) as (_, load, receipt):
        with pytest.raises(KeyboardInterrupt):
            load.commit([receipt])
        assert load.result is not None
        assert load.result.rows == 2
    assert files.sql("target", "select count(*) from t") == [(2,)]


def test_a_close_that_fails_after_the_commit_leaves_the_load_done(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = arm(monkeypatch, closing=FATAL)
    with begun(files) as (_, load, receipt):
        assert load.commit([receipt]).rows == 2
        assert load.result is not None
    assert met == ["close"]
    assert files.sql("target", "select count(*) from t") == [(2,)]
