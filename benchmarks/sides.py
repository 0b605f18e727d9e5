"""A side of a benchmark: a worker process that stays, fed one job at a time.

Every side is measured in the same way, around the answer of its worker: Penstock too.
"""

from __future__ import annotations

import importlib
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.environments import PeerMissing, environment, jar
from benchmarks.measure import SAMPLE_SECONDS, Meter, Sample

WORKER = Path(__file__).parent / "worker.py"
ENDING_SECONDS = 30.0


class SideFailed(Exception):
    """A run of a side that did not load what it should, with the reason."""


@dataclass(slots=True)
class Side:
    """One tool. `start` is not measured except as part of the cold total."""

    name: str
    settings: dict[str, Any]
    server_pid: int
    log: Path
    _module: ModuleType = field(init=False)
    _process: subprocess.Popen[str] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._module = importlib.import_module(f"benchmarks.peers.{self.name}")

    def prepare(self) -> None:
        """Make the environment; raises `PeerMissing` with the reason."""
        place = environment(self.name, self._module)
        self.settings = self.settings | {"environment": str(place)}
        if self.name == "spark_jdbc":
            self.settings = self.settings | {"jar": str(jar(*self._module.DRIVER))}

    def start(self) -> None:
        python = Path(self.settings["environment"]) / "bin" / "python"
        command = [str(python), "-P", str(WORKER), str(self._module.__file__)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.log.parent,
            )
        self._send(self.settings)

    def run(self, job: dict[str, Any], *, watched: bool) -> Sample:
        """`watched` measures its memory too, which takes its time."""
        if self._process is None:
            self.start()
        assert self._process is not None
        with Meter(self._process.pid, self.server_pid, memory=SAMPLE_SECONDS if watched else None) as meter:
            self._send(job)
            answer = self._receive()
        if "error" in answer:
            raise SideFailed(answer["error"])
        return meter.sample(answer["seconds"], answer["phases"])

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise SideFailed(self._last_words()) from error

    def _receive(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            reason = self._last_words()
            self.stop()
            raise SideFailed(reason)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "the worker ended without a word"


__all__ = ["PeerMissing", "Side", "SideFailed"]
