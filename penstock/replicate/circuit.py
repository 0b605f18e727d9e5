"""When something that has failed is tried again: later each time, and never by many at once."""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.replicate.flusher import backoff

# After a failure of the target or of the capture that another try may mend.
AGAIN_SECONDS = (0.5, 60.0)


@dataclass(slots=True)
class Circuit:
    """How often something has failed in a row, and when it is tried again."""

    attempts: int = 0
    at: float = 0.0

    @property
    def closed(self) -> bool:
        return time.monotonic() >= self.at

    def failed(self) -> float:
        wait = backoff(self.attempts, *AGAIN_SECONDS)
        self.attempts += 1
        self.at = time.monotonic() + wait
        return wait
