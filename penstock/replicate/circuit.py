"""When an end of a replication that has failed, or its copies, are tried again: later each time, never many at once.

How often it has failed and when it is tried next is kept in the state store: an agent that starts while the circuit
is open waits for the rest of the time, as the one before it would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.errors import PenstockError
from penstock.replicate.flushing import backoff

# After a failure of an end that another try may mend.
AGAIN_SECONDS = (0.5, 60.0)
NAMES = ("source", "target", "copies", "kept_copies")


@dataclass(slots=True)
class Circuit:
    """Of one of them: closed while it works; open until the next try; then that one try decides."""

    attempts: int = 0  # that have failed in a row
    at: datetime | None = None  # of the next one
    reason: str = ""  # of the last failure

    @property
    def state(self) -> str:
        if not self.attempts:
            return "closed"
        return "half-open" if self.due else "open"

    @property
    def due(self) -> bool:
        """Whether it may be tried."""
        at = self.at  # once: another thread may change it
        return at is None or datetime.now(UTC) >= at

    def failed(self, error: PenstockError) -> float:
        """Seconds until the next try."""
        wait = backoff(self.attempts, *AGAIN_SECONDS)
        self.attempts += 1
        self.at = datetime.now(UTC) + timedelta(seconds=wait)
        self.reason = str(error)
        return wait

    def succeeded(self) -> None:
        self.attempts, self.at, self.reason = 0, None, ""

    def to_record(self) -> dict[str, Any]:
        at = self.at  # as above
        retry_at = at.isoformat() if at is not None else ""
        return {"state": self.state, "attempts": self.attempts, "retry_at": retry_at, "reason": self.reason}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Circuit:
        at = datetime.fromisoformat(record["retry_at"]) if record.get("retry_at") else None
        if at is not None:
            # A clock that was set back must not keep it waiting.
            at = min(at, datetime.now(UTC) + timedelta(seconds=2 * AGAIN_SECONDS[1]))
        return Circuit(int(record.get("attempts", 0)), at, str(record.get("reason", "")))


@dataclass(slots=True)
class Circuits:
    """Of both ends, and of the copies, which need both: while they wait, what streams goes on."""

    source: Circuit = field(default_factory=Circuit)
    target: Circuit = field(default_factory=Circuit)
    copies: Circuit = field(default_factory=Circuit)
    kept_copies: Circuit = field(default_factory=Circuit)  # those beside the buffer

    @property
    def waiting(self) -> str:
        """The state of an agent that waits for one of them; "" if it waits for none."""
        if self.target.attempts:
            return "waiting for target"
        return "waiting for source" if self.source.attempts else ""

    @property
    def reason(self) -> str:
        return self.target.reason or self.source.reason or self.copies.reason or self.kept_copies.reason

    def try_now(self) -> None:
        """Somebody asks for it: the rest of the time is not waited for."""
        self.target.at = self.copies.at = None

    def to_record(self) -> dict[str, Any]:
        return {name: getattr(self, name).to_record() for name in NAMES}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Circuits:
        return Circuits(**{name: Circuit.from_record(record.get(name, {})) for name in NAMES})
