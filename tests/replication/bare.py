"""An agent in a process of its own without a JVM: `python -m tests.replication.bare FILE`.

FILE is JSON with the connections and the replication. Every round of the agent prints a line that says where it is;
it ends when its standard input does, or is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.backends.postgres import change_source
from penstock.errors import PenstockError
from penstock.project import Project
from penstock.project.replications import Replication
from penstock.replicate.agent import Agent
from penstock.replicate.status import Status
from tests.replication.stand import seen, stage_here


def main() -> int:
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    replication = Replication.model_validate(spec["replication"])
    project = replace(
        Project.from_objects(Path(spec["root"]), connections=spec["connections"]),
        replications={replication.name: replication},
    )

    change_source.RANGE_BYTES = spec["range_bytes"]

    def told(status: Status) -> None:
        print(json.dumps(seen(status)), flush=True)

    agent = Agent(project, replication, told, stage=stage_here)
    threading.Thread(target=_stop_with_input, args=(agent,), daemon=True).start()
    try:
        agent.run()
    except PenstockError as error:
        print(json.dumps({"error": error.to_record()}), flush=True)
        return 1
    return 0


def _stop_with_input(agent: Agent) -> None:
    sys.stdin.read()
    agent.stop()


if __name__ == "__main__":
    sys.exit(main())
