"""Every suite of `suites/` on every target: one replication each, all its cases one after the other."""

from __future__ import annotations

import random
import shlex
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conformance.harness import PostgresHarness
from tests.conformance.postgres_versions import installed
from tests.replication.conftest import TARGETS
from tests.replication.servers import Servers
from tests.replication.slt import Case, Suite
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres, pytest.mark.sampled, pytest.mark.timeout(600)]

FOLDER = Path(__file__).parent / "suites"
SUITES = sorted(path.stem for path in FOLDER.glob("*.slt"))
LEAST_CASES = 25
NEWEST = 18  # the version of the server that all tests share


@pytest.mark.parametrize("version", [15, 18])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite(
    suite: str,
    target: str,
    version: int,
    make: Callable[..., Stand],
    servers: Servers,
    folded_by: int,
    pytestconfig: pytest.Config,
) -> None:
    path = FOLDER / f"{suite}.slt"
    read = Suite.read(path)
    assert len(read.cases) >= LEAST_CASES
    words = {step.word for case in read.cases for step in case.steps}
    source = None if version == NEWEST else PostgresHarness(servers.start(install=installed(version)).dsn)
    stand = make(
        target,
        source,
        apart=bool(words & {"kill", "crash"}),
        tables=list(read.tables),
        apply_in_driver_rows=folded_by,
    )
    for statements in read.setup:
        stand.source.execute(statements)
    with ExitStack() as stack:
        runner = _Runner(stand, stack)
        stand.start()
        stand.sync()  # or a case that is quick is copied, and nothing of it captured
        whole, seed = pytestconfig.getoption("--full"), pytestconfig.getoption("--sample-seed")
        for case in read.cases if whole else _sample(read.cases, f"{suite}:{target}:{seed}"):
            runner.run(path, case)


def _sample(cases: Sequence[Case], seed: str) -> list[Case]:
    """Of the cases that crash at one failpoint, one: each costs two starts. And all others."""
    crashes: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        for step in case.steps:
            if step.word == "crash":
                crashes[step.text].append(case)
    chance = random.Random(seed)  # noqa: S311  no secret
    chosen = [id(chance.choice(found)) for found in crashes.values()]
    left = {id(case) for found in crashes.values() for case in found} - set(chosen)
    return [case for case in cases if id(case) not in left]


class _Runner:
    def __init__(self, stand: Stand, stack: ExitStack) -> None:
        self._stand = stand
        self._stack = stack
        self._reached: Path | None = None  # made by a failpoint that kills
        self._sessions: dict[str, psycopg.Connection[Any]] = {}

    def run(self, path: Path, case: Case) -> None:
        for step in case.steps:
            try:
                self._step(step.word, step.text)
            except BaseException as error:
                error.add_note(f"{path.name}:{step.line}, case {case.name!r}: {step.word} {step.text}")
                raise

    def _step(self, word: str, text: str) -> None:
        kind, _, session = word.partition("@")
        if kind == "source":
            self._session(session).execute(text.encode())
        elif kind == "agree":
            self._stand.sync()
            if self._reached is not None:
                assert self._reached.exists(), "it was not killed where it should have been"
                self._reached = None
            tables, _, unless = text.partition(" unless ")
            target, _, why = unless.partition(" ")
            if target and target == self._stand.target.backend:
                self._assert_failed(_name(tables), why)
                return
            self._stand.assert_agrees(*(_name(name) for name in shlex.split(tables.replace('"', "'"))))
        elif kind == "failed":
            table, _, why = text.partition(" ")
            self._stand.sync()
            self._assert_failed(_name(table), why)
        elif kind == "absent":
            self._stand.sync()
            assert not self._stand.target.has_table(text)
        elif kind == "resync":
            self._stand.resync(_name(text))
        elif kind in ("restart", "stop", "start"):
            if kind != "start":
                self._stand.stop()
            if kind != "stop":
                self._stand.start()
        elif kind == "kill":
            self._stand.kill()
            self._stand.start()
        elif kind == "crash":
            self._stand.stop()
            self._reached = self._stand.root / f"reached-{uuid.uuid4().hex}"
            self._stand.start(f"{text}=once:{self._reached}:kill")
        else:
            raise AssertionError(f"{word} is no step of a case")

    def _assert_failed(self, table: str, why: str) -> None:
        state = self._stand.state(table)
        assert state["phase"] == "failed", state
        assert why in state["reason"]
        assert state["remedy"]

    def _session(self, name: str) -> psycopg.Connection[Any]:
        if name not in self._sessions:
            self._sessions[name] = self._stack.enter_context(psycopg.connect(self._stand.source.dsn, autocommit=True))
        return self._sessions[name]


def _name(text: str) -> str:
    return text.strip('"')
