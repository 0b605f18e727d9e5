"""Whether the log still reaches back to what the target has, and how a replication begins anew where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.backends.base import Dialect, Execute, TableLoad
from penstock.backends.change_source import COPY_AGAIN, ChangeSource, HeldLog, Obstacle, TableRequest
from penstock.backends.change_target import TableFlush, TableState
from penstock.errors import StateError
from penstock.project.replications import Replication
from penstock.replicate.buffer import Buffer, is_marked
from penstock.replicate.ledger import Ledger
from penstock.replicate.tables import Ends
from penstock.replicate.watch import Watch
from penstock.schema import TableName


class Obstructed(StateError):
    """The log cannot be read on: nothing more would come, or something would be missing."""

    usually_kept = "the target is whole up to its position"

    def __init__(self, what: str, *, state: str = "gap", healed: bool = True, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.state = state
        self.healed = healed

    def extra(self) -> dict[str, Any]:
        return {"state": self.state, "healed": self.healed}

    @staticmethod
    def by(replication: Replication, found: Obstacle) -> Obstructed:
        return Obstructed(
            f"replication {replication.name}: {found.state}",
            why=found.why,
            remedy=found.remedy.replace("NAME", replication.name),
            state=found.state,
            healed=found.healed,
        )


def recopies(replication: Replication, found: Obstacle | Obstructed) -> bool:
    """Whether every table is to be copied again, without a question."""
    # A copy that is over has taken back its slot: the next start is another copy.
    return found.healed and (replication.on_slot_loss == "recopy" or replication.what == "copy")


def lost_buffer(folder: Path) -> Obstacle | None:
    """Of a replication that has begun, whose buffer is not there: to go on without it would lose what it has."""
    if is_marked(folder):
        return None
    return Obstacle(
        "buffer lost",
        f"{folder} is empty, or not there: its disk is not mounted, or it was removed",
        f"bring it back and start again; if it is gone for good, {COPY_AGAIN}",
    )


def obstacle(source: ChangeSource, buffer: Buffer, ledger: Ledger) -> Obstacle | None:
    """Why what the buffer has cannot be gone on with; None if it can."""
    if source.log is not None:
        return source.obstacle(ledger.oldest)  # its end is where it is written, and nobody's of ours
    chain = buffer.chain
    why = buffer.lacks(ledger.oldest)
    if why:
        return Obstacle("gap", why, COPY_AGAIN)
    while True:
        last = chain.end()
        found = source.obstacle(last[1] if last is not None else ledger.oldest)
        if not is_marked(chain.folder):
            return None  # it went away meanwhile: what it has is not known
        # A capture that runs makes durable and confirms while we ask: then the slot is ahead of what we knew.
        if found is None or found.state != "gap" or chain.end() == last:
            return found


def examine(
    replication: Replication,
    ends: Ends,
    tables: Sequence[TableRequest],
    buffer: Buffer,
    ledger: Ledger,
    watch: Watch,
) -> HeldLog | None:
    """Ask through sessions of its own: those of the agent may have died with the server that they knew.

    Returns what the source keeps of its log for us.
    """
    source = ends.change_source(replication, tables)
    try:
        found = obstacle(source, buffer, ledger)
        if found is not None:
            raise Obstructed.by(replication, found)
        watch.look(source)
        return source.held()
    finally:
        source.close()


def dropped_copies(states: Sequence[TableState], dialect: Dialect | None) -> list[TableFlush]:
    """Without the hidden tables of copies that were on their way: nobody goes on with them."""
    if dialect is None:
        return []  # of a log: what it does not name is not there
    hidden = [(state.source, TableName(state.target.schema, state.hidden)) for state in states if state.hidden]
    return [
        TableFlush(source, TableLoad(table, (), (Execute(f"drop table if exists {dialect.relation(table)}"),)))
        for source, table in hidden
    ]
