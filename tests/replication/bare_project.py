"""`penstock replicate` of a project without a JVM: `python -m tests.replication.bare_project FOLDER NAME`.

It ends when its standard input does; what ends it otherwise stands on its standard output.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from penstock.errors import PenstockError
from penstock.project import load
from penstock.replicate.agent import Agent
from penstock.state import open_store
from tests.replication.stand import stage_here


def main() -> int:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    project = load(folder)
    with open_store(project.state_location) as store:
        agent = Agent(
            project,
            project.replication(name),
            store=store,
            reload=lambda: load(folder).replication(name),
            stage=stage_here,
        )
        threading.Thread(target=_stop_with_input, args=(agent,), daemon=True).start()
        try:
            agent.run()
        except PenstockError as error:
            print(json.dumps(error.to_record()), flush=True)
            return 1
    return 0


def _stop_with_input(agent: Agent) -> None:
    sys.stdin.read()
    agent.stop()


if __name__ == "__main__":
    sys.exit(main())
