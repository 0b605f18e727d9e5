"""A target that is away when its agent starts: it is waited for, and the source is captured all the while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import TableVersion
from penstock.errors import PenstockError, TargetError
from penstock.observe import logs
from penstock.replicate.captured import CapturedSide
from penstock.replicate.capturing import Orders
from penstock.replicate.circuit import Circuits
from penstock.replicate.desk import LOOK_SECONDS
from penstock.schema import TableName

log = logs.Log("replicate")

Reached = TypeVar("Reached")

LOOKED_BACK = 2_000  # segments, for what the log has told last of each table


def told_last(chain: Chain) -> list[TableVersion]:
    """What the log has told last of each table that has changed of late; of others, the source is asked."""
    found: dict[TableName, TableVersion] = {}
    for number in chain.numbers()[: -LOOKED_BACK - 1 : -1]:
        footer = chain.footer(number)
        for one in (*footer["stored"], *footer["tables"][::-1]):
            version = TableVersion.from_record(one["version"])
            found.setdefault(version.table, version)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Away:
    """Waits for a target that is known to have been there."""

    captured: CapturedSide
    circuits: Circuits
    orders: Callable[[], Orders | None]  # of a capture that nobody but the buffer tells where to go on; None for none
    say: Callable[[], None]
    stopping: threading.Event

    def reach(self, stack: ExitStack, open_: Callable[[ExitStack], Reached]) -> Reached | None:
        """Until it is there, and what was opened of it is on the stack; None if the agent was stopped meanwhile."""
        circuit = self.circuits.target
        try:
            while True:
                self._wait()
                if self.stopping.is_set():
                    return None
                with ExitStack() as opened:
                    try:
                        reached = open_(opened)
                    except PenstockError as error:
                        # It may be full, read only, or have taken from its user what it had given.
                        if not error.passing and not isinstance(error, TargetError):
                            raise
                        wait = circuit.failed(error)
                        log.warning("the target is away", what=error.what, why=error.why, again_in=round(wait, 1))
                    else:
                        stack.enter_context(opened.pop_all())
                        return reached
        finally:
            self.captured.stop()  # it is told anew where to go on, by the target too

    def _wait(self) -> None:
        while not self.circuits.target.due and not self.stopping.is_set():
            self.captured.tend(self.circuits.source, self._begin_capture)
            self.say()
            self.stopping.wait(LOOK_SECONDS)

    def _begin_capture(self) -> None:
        orders = self.orders()
        if orders is not None:
            self.captured.start(orders, orders.start)
