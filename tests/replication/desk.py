"""A project with one replication, an agent of it in a process of its own, and the `penstock` command beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from penstock.errors import from_record
from penstock.project import load
from penstock.state import Command, open_store
from tests.conformance.harness import Harness, PostgresHarness
from tests.waiting import await_true

NAME = "shop"
OPTIONS: dict[str, Any] = {"tables": ["public.*"], "flush_interval_ms": 20}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has said."""

    code: int
    out: str
    err: str


class Desk:
    def __init__(self, source: PostgresHarness, target: Harness, folder: Path) -> None:
        self.source = source
        self.target = target
        self.folder = folder
        self.slot = f"penstock_{NAME}_{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.configure()

    def configure(self, **options: Any) -> None:
        """Write the project anew."""
        connections = {"from_": self.source.options(), "to": self.target.options()}
        lines = []
        for name, given in connections.items():
            lines += [f"[connections.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given.items()), ""]
        lines += [f"[replications.{NAME}]", 'source = "from_"', 'target = "to"', f'slot = "{self.slot}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in (OPTIONS | options).items()]
        (self.folder / "penstock.toml").write_text("\n".join(lines) + "\n")

    # ------------------------------------------------------------ the agent

    def start(self) -> None:
        """In a process of its own: a DuckDB file is open in one at a time."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.replication.bare_project", str(self.folder), NAME],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
        )

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            said, _ = process.communicate(timeout=60)
            if process.returncode:
                raise from_record(json.loads(said))

    def _check(self) -> None:
        """Whether it still runs."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
            raise AssertionError("the agent has ended")

    def clear(self) -> None:
        """Take the slot away, which would keep the server's log for ever."""
        self.source.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            f" where slot_name = '{self.slot}' and active_pid is not null",
            f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{self.slot}'",
        )

    # ------------------------------------------------------------ the command

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "penstock.cli.main", *words]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return kept | {"COLUMNS": "100"}

    def run(self, *words: str) -> Answer:
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def ask(self, word: str, *rest: str) -> Answer:
        """Of a running agent."""
        answer = self.run("replications", word, NAME, *rest)
        assert answer.code == 0, answer.err
        return answer

    def answered(self, word: str) -> float:
        """How long a running agent takes to do what is asked: without the command's own start."""
        with open_store(load(self.folder).state_location) as store:
            began = time.monotonic()
            number = store.ask(NAME, word)
            await_true(lambda: (store.command(number) or Command(0, "", "")).answer is not None)
            return time.monotonic() - began

    def show(self) -> dict[str, Any]:
        answer = self.run("replications", "show", NAME, "--output", "json")
        assert answer.code == 0, answer.err
        found: dict[str, Any] = json.loads(answer.out)
        return found

    def tables(self) -> dict[str, dict[str, Any]]:
        """As the agent last told, without a process in between."""
        with open_store(load(self.folder).state_location) as store:
            known = store.agent(NAME)
        return {table["table"]: table for table in known.status["tables"]} if known is not None else {}

    def await_streaming(self, *tables: str, seconds: float = 60.0) -> None:
        def all_stream() -> bool:
            self._check()
            known = self.tables()
            return {f"public.{name}" for name in tables} <= known.keys() and all(
                known[f"public.{name}"]["phase"] == "streaming" for name in tables
            )

        await_true(all_stream, seconds, self.tables)

    def await_target(self, sql: str, expected: list[tuple[Any, ...]], seconds: float = 60.0) -> None:
        def there() -> bool:
            self._check()
            return self.read(sql) == expected

        await_true(there, seconds, lambda: self.read(sql))

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        """From the target."""
        found: list[list[tuple[Any, ...]]] = []
        self._when_free(lambda: found.append(self.target.query(sql)))
        return found[0]

    def write(self, *statements: str) -> None:
        """Past the replication, which does not know of it."""
        self._when_free(lambda: self.target.execute(*statements))

    def _when_free(self, act: Callable[[], None]) -> None:
        def done() -> bool:
            try:
                act()
            except duckdb.IOException:  # locked: a flush is on its way
                return False
            return True

        await_true(done, 30)
