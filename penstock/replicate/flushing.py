"""What flushes into any target have in common: where they read, and what becomes of a table that fails."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.backends.change_source import ChangeSource
from penstock.backends.change_target import TableState
from penstock.backends.changes import Position, Segment, TableVersion
from penstock.errors import DataError, Kind, PenstockError
from penstock.observe import logs
from penstock.project.replications import Replication
from penstock.replicate.buffer import Buffer
from penstock.replicate.ledger import Ledger
from penstock.replicate.tables import Kept
from penstock.schema import TableName

log = logs.Log("replicate")

# After the first failure of a table, and at most.
RETRY_SECONDS = (1.0, 600.0)


def backoff(attempts: int, least: float, most: float) -> float:
    """Twice as long each time, and never the same for two that failed together."""
    return float(min(least * 2.0 ** min(attempts, 30), most) * (0.75 + random.random() / 2))  # noqa: S311  no secret


class Flushing(ABC):
    """Brings the buffer into the target. Used by the agent's own thread alone."""

    def __init__(
        self,
        replication: Replication,
        source: ChangeSource,
        ledger: Ledger,
        buffer: Buffer,
        kept: dict[TableName, Kept],
    ) -> None:
        self._replication = replication
        self._source = source
        self._ledger = ledger
        self._buffer = buffer
        self._kept = kept
        self.applied: dict[TableName, int] = {}  # changes since this start
        self.failure: PenstockError | None = None  # the last that a table has failed with, until somebody takes it

    @abstractmethod
    def step(self) -> bool:
        """One flush, and one step of every table that is behind; whether anything was brought."""

    @abstractmethod
    def follow(self, state: TableState, version: TableVersion) -> None:
        """A table that streams takes a form that no change has told of."""

    def close(self) -> None:
        """Let go of what was asked of the source."""

    def _segments(self, after: Position) -> list[Segment]:
        return self._buffer.behind(after, self._replication.flush_rows)

    def fail(self, state: TableState, error: PenstockError) -> None:
        """Out of the consistent set, with the reason; or everything stops, where that is asked for."""
        if self._replication.on_table_error == "halt":
            raise error
        self.failure = error  # before others can see that it has failed
        name = self._replication.name
        log.warning("a table has failed", replication=name, table=str(state.source), what=error.what, why=error.why)
        self._ledger.save(self.failed(state, error))

    def failed(self, state: TableState, error: PenstockError) -> TableState:
        """The state of a table that is left alone from now on, until it is tried again."""
        wait = backoff(state.attempts, *RETRY_SECONDS)
        streamed = state.phase == "streaming"
        return replace(
            state,
            phase="failed",
            # One that has streamed goes on by itself, behind the others; any other where it was.
            failed_in="catching up" if streamed else state.phase,
            position=self._ledger.position if streamed else state.position,
            reason=f"{error.what}: {error.why}" if error.why else error.what,
            remedy=self._remedy(state, error),
            attempts=state.attempts + 1,
            retry_at=(datetime.now(UTC) + timedelta(seconds=wait)).isoformat(),
        )

    def _remedy(self, state: TableState, error: PenstockError) -> str:
        """Of a value that the target does not hold, what a replication can do: it has no casts, as pipelines have."""
        again = f"`penstock replications resync {self._replication.name} {state.source}`"
        cast = "columns" in error.remedy or error.remedy == DataError.usual_remedy
        if error.kind is Kind.DATA and cast:
            return f"correct the value at the source, or leave the column out (`exclude`), then {again}"
        return error.remedy.replace("`penstock replications resync NAME TABLE`", again)

    def _try_again(self, *states: TableState) -> bool:
        """From where each failed: in its hidden table, or, as others may see, in its own."""
        for state in states:
            again = replace(state, phase=state.failed_in)  # type: ignore[arg-type]  # one of the phases
            error = self._refusal(again)
            if error is None:
                self._ledger.save(again)
            else:
                self.fail(again, error)
        return True

    def _refusal(self, state: TableState) -> PenstockError | None:
        """Why its table of the target must not be written to as it is now."""
        del state
        return None

    def try_all(self) -> bool:
        """Every table that has failed, whatever its own time is."""
        return self._try_again(*(state for state in self._ledger.tables() if state.phase == "failed"))


def fresh_copy(state: TableState) -> TableState:
    """A table that is to be copied from the beginning; what others see of it stays until it joins."""
    return replace(
        state, phase="waiting", position=None, copy="", ranges=(), hidden="", exact=0, reason="", remedy="", retry_at=""
    )


def due(state: TableState) -> bool:
    return bool(state.retry_at) and datetime.fromisoformat(state.retry_at) <= datetime.now(UTC)
