"""Tables of a replication whose agent does not run: to be copied again when it is started next."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.project.model import Project
from penstock.project.replications import Replication
from penstock.replicate.flushing import fresh_copy
from penstock.replicate.ledger import Ledger
from penstock.replicate.tables import ends_of


def mark_for_copy(project: Project, replication: Replication, table: str = "") -> int:
    """How many are marked. An agent that runs somewhere unseen is fenced out by this, and stops."""
    applier = ends_of(project, replication).applier(replication)
    try:
        ledger = Ledger(applier)
        chosen = [state for state in ledger.tables() if not table or str(state.source) == table]
        if not chosen:
            known = ", ".join(str(state.source) for state in ledger.tables()) or "none yet"
            raise ConfigError(
                f"replication {replication.name} has no table {table}".rstrip(),
                why=f"it has {known}",
                kept="nothing was changed",
                place=replication.place,
            )
        ledger.save(*(fresh_copy(state) for state in chosen))
        return len(chosen)
    finally:
        applier.close()
