"""A replication from a Postgres into any target, with an agent in this process and a capture beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.backends.base import Receipt, RunContext
from penstock.backends.changelog import packs
from penstock.backends.changelog.chain import SUFFIX, Chain
from penstock.engine.task import Work
from penstock.errors import from_record
from penstock.project import Project
from penstock.project.replications import Replication
from penstock.replicate.agent import Agent
from penstock.replicate.copy import Stage
from penstock.replicate.status import Status
from penstock.state import open_store
from penstock.state.base import Store
from tests.conformance.harness import Flow, Harness, PostgresHarness
from tests.waiting import await_true

# Tables that most tests have: one with a key, and one in which a change that is applied twice is there twice.
ITEMS = (
    "create table items (id bigint primary key, name text)",
    "insert into items select i, 'item ' || i from generate_series(1, 500) i",
)
BAG = ("create table bag (v text)", "alter table bag replica identity full")
MAY_DIE = 2  # of one failpoint: the agent, and then its capture


def stage_here(_: Project, pieces: Sequence[Work], __: RunContext) -> list[Receipt]:
    """The ranges one after the other, without a JVM."""
    return [piece.sink.write(piece.part, piece.read()) for piece in pieces]


def seen(status: Status) -> dict[str, Any]:
    """What a test wants to know of a round."""
    return {
        "commit": status.position.commit if status.position is not None else -1,
        "state": status.state,
        "error": status.error,
        "remedy": status.remedy,
        "waiting": status.waiting,
        "tables": {
            str(state.source): {
                "phase": state.phase,
                "altered": state.source in status.altered,
                "reason": state.reason,
                "remedy": state.remedy,
            }
            for state in status.tables
        },
    }


class LogHarness(Harness):
    """A folder that a log is written into: read through another replication alone."""

    backend = "files"
    schema = "public"

    def __init__(self, path: Path) -> None:
        self.path = path

    def options(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self.path)}

    def execute(self, *statements: str) -> None:
        raise AssertionError("a log runs no statements")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        raise AssertionError("a log is read through another replication alone")

    def leftovers(self) -> list[str]:
        """Files that no segment names."""
        found = []
        for folder in [folder for folder in (*self.path.iterdir(), *self.path.glob("*/copies")) if folder.is_dir()]:
            chain = Chain(folder)
            footers = [chain.footer(number) for number in chain.numbers()]
            named = {one["file"] for footer in footers for one in footer["stored"]}
            named |= {one["file"] for footer in footers for one in footer["notes"].get("pieces", ())}
            files = {
                entry.name
                for entry in folder.iterdir()
                if entry.is_file() and entry.suffix not in (SUFFIX, packs.SUFFIX)
            }
            found += sorted(files - named)
        return found


class Stand:
    """One replication. `check` is a database of the source's server that a target's tables are copied back into."""

    def __init__(
        self,
        source: PostgresHarness,
        target: Harness,
        check: PostgresHarness,
        root: Path,
        *,
        apart: bool = False,
        stage: Stage = stage_here,
        range_bytes: int = 1 << 25,
        log: Path | None = None,
        **options: Any,
    ) -> None:
        """With `log`, the replication reads this log, of the same source, and never the source itself."""
        self._log = log
        self.source = source
        self.target = target
        self.check = check
        self.root = root
        given: dict[str, Any] = {
            "name": f"r{uuid.uuid4().hex[:8]}",
            "source": "from_",
            "target": "to",
            "tables": ["public.*"],
            "flush_interval_ms": 20,
            "buffer": {"segment_ms": 5},
        }
        self.replication = Replication.model_validate(given | options)
        self.others: dict[str, dict[str, Any]] = {}  # connections beside these two
        self.apart = apart
        self._stage = stage
        self.range_bytes = range_bytes
        self.agent: Agent | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.error: BaseException | None = None
        self.seen: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None

    def project(self) -> Project:
        made = Project.from_objects(self.root, connections=self._connections())
        return replace(made, replications={self.replication.name: self.replication})

    def _connections(self) -> dict[str, dict[str, Any]]:
        read = self.source.options() if self._log is None else {"type": "changelog", "path": str(self._log)}
        return {"from_": read, "to": self.target.options()} | self.others

    @property
    def log(self) -> Path:
        """Where it writes its log: its target, or its buffer."""
        if isinstance(self.target, LogHarness):
            return self.target.path / self.replication.name
        return self.root / ".penstock" / "buffer" / self.replication.name

    def start(self, failpoints: str = "") -> Stand:
        """The agent in this process; with `apart`, in one of its own, which stops at these failpoints."""
        self.error, self.seen = None, None
        if self.apart:
            self._start_apart(failpoints)
            return self
        self.agent = Agent(
            self.project(),
            self.replication,
            self._told,
            store=self._opened(),
            reload=lambda: self.replication,
            stage=self._stage,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    @property
    def store(self) -> Path:
        return self.root / f"{self.replication.name}.db"

    def _opened(self) -> Store:
        self._state = open_store(self.store)
        return self._state

    def _told(self, status: Status) -> None:
        self.seen = seen(status)

    def _run(self) -> None:
        assert self.agent is not None
        try:
            self.agent.run()
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            self.error = error

    def _start_apart(self, failpoints: str) -> None:
        file = self.root / f"{self.replication.name}.json"
        spec = {
            "root": str(self.root),
            "connections": self._connections(),
            "replication": self.replication.model_dump(mode="json"),
            "range_bytes": self.range_bytes,
        }
        file.write_text(json.dumps(spec))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.replication.bare", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PENSTOCK_FAILPOINTS": failpoints},
        )
        self._thread = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self._thread.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            record = json.loads(line)
            if isinstance(record["error"], dict):
                self.error = from_record(record["error"])
            else:
                self.seen = record

    def stop(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(30)
            self.process = None
        elif self.agent is not None and self._thread is not None:
            self.agent.stop()
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._state.close()
            self.agent = None
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """SIGKILL, at whatever moment this is."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    @property
    def died(self) -> bool:
        """Whether its process is gone without a word."""
        return self.process is not None and self.process.poll() is not None and self.error is None

    @property
    def position(self) -> int:
        assert self.seen is not None
        return int(self.seen["commit"])

    def sync(self, seconds: float = 60.0, mark: int | None = None, *, settled: bool = False) -> None:
        """Until the target has all that is committed now, or up to `mark`. An agent that has died is started again.

        With `settled`, a table that has failed is waited for: it is tried again by itself.
        """
        if mark is None:
            [(mark,)] = self.source.query("select (pg_logical_emit_message(true, 'test', '') - '0/0')::int8")
        ends = ("streaming",) if settled else ("streaming", "failed")

        deaths: list[object] = []

        def caught_up() -> bool:
            if self.died:
                deaths.append(self.process)
                assert len(deaths) <= MAY_DIE, "it dies again and again"
                self.start()
            if self.error is not None:
                raise self.error
            known = self.seen
            return (
                known is not None
                and known["commit"] >= mark
                and all(state["phase"] in ends and not state["altered"] for state in known["tables"].values())
            )

        await_true(caught_up, seconds, lambda: self.seen)

    def resync(self, table: str = "") -> None:
        """As `penstock replications resync` asks for it; until the agent has answered."""
        answer = self.ask("resync", f"public.{table}" if table else "")
        assert not answer.startswith("refused"), answer

    def ask(self, word: str, table: str = "") -> str:
        """What the agent answers, as to `penstock replications`."""
        with open_store(self.store) as store:
            number = store.ask(self.replication.name, word, table)

            def answer() -> str:
                found = store.command(number)
                return (found.answer or "") if found is not None else ""

            await_true(lambda: bool(answer()), 30.0, lambda: self.seen)
            return answer()

    def state(self, table: str) -> dict[str, str]:
        assert self.seen is not None
        found: dict[str, str] = self.seen["tables"][f"public.{table}"]
        return found

    # ------------------------------------------------------------ comparing

    def assert_agrees(self, *tables: str) -> None:
        """Row for row and value for value, as the source's own server prints them."""
        for table in tables:
            here, there = self.rows(table), self.replicated(table)
            if here != there:
                missing = [row for row in here if row not in there][:3]
                extra = [row for row in there if row not in here][:3]
                raise AssertionError(
                    f"{table}: {len(here)} rows in the source, {len(there)} in the target;"
                    f" missing {missing}, instead {extra}"
                )

    def rows(self, table: str) -> list[str]:
        return _texts(self.source, table, self._columns(table))

    def replicated(self, table: str) -> list[str]:
        name = self.replication.target_name.replace("{schema}", "public").replace("{table}", table)
        if isinstance(self.target, PostgresHarness):
            return _texts(self.target, name, self._columns(table))
        self.check.execute("drop schema public cascade", "create schema public")
        flow = Flow(self.target, self.check, self.root)
        there = name if self.target.backend == "memory" else f"{self.target.schema}.{name}"
        flow.run(table=there, target="to.public.back", mode="append", keys=[])
        return _texts(self.check, "back", self._columns(table))

    def _columns(self, table: str) -> list[str]:
        return self.source.columns(table)


def _texts(harness: PostgresHarness, table: str, columns: Sequence[str]) -> list[str]:
    listed = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    rows = harness.query(f'select t from (select row({listed})::text as t from "{table}") as x order by t collate "C"')
    return [row[0] for row in rows]
